"""One request's answer as it arrives from a node: a bounded line between the node's link and the request."""

import asyncio
from collections import deque
from typing import TypeAlias

from kvgrove_gateway.errors import SlowClient
from kvgrove_protocol.data import Done, PromptLogprobs, Started, Token
from kvgrove_protocol.errors import KvgroveError

Reply: TypeAlias = Started | PromptLogprobs | Token | Done


class AnswerStream:
    """Replies in order, then the end: `Done`, or an error raised from `next`. On the event loop only."""

    def __init__(self, request_id: str, limit: int) -> None:
        self.request_id = request_id
        self._limit = limit
        self._replies: deque[Reply] = deque()
        self._failure: KvgroveError | None = None
        self._arrived = asyncio.Event()

    def push(self, reply: Reply) -> bool:
        """Append ``reply``; False if the reader is too far behind: the stream has failed then."""
        if len(self._replies) >= self._limit:
            self._replies.clear()
            self.fail(SlowClient("the answer is not read fast enough"))
            return False
        self._replies.append(reply)
        self._arrived.set()
        return True

    def fail(self, error: KvgroveError) -> None:
        """End the stream with ``error``, behind what has arrived. The first failure counts."""
        if self._failure is None:
            self._failure = error
        self._arrived.set()

    async def next(self) -> Reply:
        """The next reply; raises the failure once all before it is read."""
        while not self._replies:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        return self._replies.popleft()
