"""HTTP beneath the API: bodies with a bound, callers that leave, streamed answers.

Written against ASGI where FastAPI's own helpers leave a gap: a caller that leaves must free its node at once, also
while the prompt is still computed and also from the middle of a stream.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from kvgrove_gateway.errors import BadRequest, TooLarge

T = TypeVar("T")

BODY_S = 30.0
"""A body that takes longer to arrive is given up."""

JSON = "application/json"

DROPPED_LIMITS = 4
"""A body of up to this many times the limit is taken off the wire before the refusal."""


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; raises TooLarge beyond ``limit`` bytes, BadRequest if it comes too slowly.

    A body beyond the limit is read on and dropped, boundedly: a caller that is cut off while it sends would see a
    broken connection in place of the answer. One that is announced beyond that bound is refused without waiting for it.
    """
    too_large = TooLarge(f"The body is larger than {limit} bytes: shorten the prompt.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > DROPPED_LIMITS * limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif size > DROPPED_LIMITS * limit:
                    break
    except TimeoutError:
        raise BadRequest(f"The body did not arrive within {BODY_S:.0f} s.", code="body_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    if size > limit:
        raise too_large
    return b"".join(parts)


async def unless_gone(request: Request, work: Coroutine[None, None, T]) -> T:
    """The result of ``work``, which is cancelled when the caller leaves first: raises ClientGone then.

    To be used after the body was read: from then on the only thing to receive is the caller's leaving.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events. ``closed`` is called once sending is over, however it ends."""

    def __init__(
        self, events: AsyncIterator[bytes], closed: Callable[[], None], more_headers: Mapping[str, str]
    ) -> None:
        # X-Accel-Buffering: common proxies would otherwise collect tokens until the answer is whole.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **more_headers}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()
