"""What a caller is told when a request fails: HTTP status, OpenAI's error type, a stable code, the field and the cure.

Messages speak of the request and the service, never of what other callers hold (I2), and never quote prompt text (I12).
Errors of the data plane that a retry may heal are here too: they become an `ApiError` only when retries are used up.
"""

from kvgrove_protocol.errors import KvgroveError, Retryable, Terminal


class ApiError(KvgroveError):
    """The request ends with an HTTP error. ``field`` is OpenAI's ``param``."""

    status = 500
    kind = "server_error"
    """OpenAI's ``type``."""
    retry_after_s: int | None = None

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's error shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.field, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class BadRequest(ApiError, Terminal):
    status = 400
    kind = "invalid_request_error"
    code = "invalid_value"


class Unauthorized(ApiError, Terminal):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError, Terminal):
    status = 403
    kind = "permission_error"
    code = "namespace_not_allowed"


class NotFound(ApiError, Terminal):
    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"


class TooLarge(ApiError, Terminal):
    status = 413
    kind = "invalid_request_error"
    code = "body_too_large"


class Busy(ApiError, Retryable):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"
    retry_after_s = 1


class Unavailable(ApiError, Retryable):
    """Nothing is wrong with the request; it cannot be served now."""

    status = 503
    kind = "service_unavailable_error"
    code = "unavailable"
    retry_after_s = 1


class Failed(ApiError, Terminal):
    """A node failed this request and would again."""

    code = "node_error"


class NodeLost(Retryable):
    """The node fell silent or restarted with the request on it."""

    code = "node_lost"


class FrameTooLarge(Terminal):
    """The request is larger than any node takes."""

    code = "frame_too_large"


class NodeRefused(KvgroveError):
    """The node answered Error. ``retryable``: another node, or a fresh resolution, may do better."""

    code = "node_refused"

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message, code=code)
        self.retryable = retryable


class SlowClient(Terminal):
    """The caller reads more slowly than the node writes, beyond what is buffered for it."""

    code = "slow_client"
