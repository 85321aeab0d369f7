"""Answers to requests that are not begun."""

from kvgrove_daemon.commands import Start
from kvgrove_protocol.data import Error


def refusal(command: Start, code: str, message: str, *, retryable: bool = False) -> Error:
    """The answer to a request that is not begun."""
    return Error(request_id=command.request.request_id, code=code, message=message, retryable=retryable)


def queue_full(request_id: str) -> Error:
    """The answer where a bound on waiting requests is reached."""
    full = "too many requests wait on this node: try another one, or later"
    return Error(request_id=request_id, code="queue_full", message=full, retryable=True)
