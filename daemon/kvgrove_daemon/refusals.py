"""Answers to requests that are not begun."""

from dataclasses import dataclass

from kvgrove_protocol.data import Error


@dataclass(frozen=True)
class Refusal:
    """Why a request is not served. ``retryable``: elsewhere, later, or resolved anew it may be."""

    code: str
    message: str
    retryable: bool = False

    def to(self, request_id: str) -> Error:
        """As the answer to ``request_id``."""
        return Error(request_id=request_id, code=self.code, message=self.message, retryable=self.retryable)


QUEUE_FULL = Refusal("queue_full", "too many requests wait on this node: try another one, or later", retryable=True)
ENDING = Refusal("not_ready", "this node is about to end: ask another one", retryable=True)
NEVER_ROOM = Refusal("no_room", "the pool has no room for this prompt: raise spec.pool", retryable=True)
NO_ROOM_IN_TIME = Refusal(
    "no_room", "the pool had no room for this prompt in time: try another node, or raise spec.pool", retryable=True
)
