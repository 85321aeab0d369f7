"""What can go wrong in the engine, by what the caller may do next."""

from kvgrove_protocol.errors import Retryable, Terminal


class UnsupportedModel(Terminal):
    """The model cannot be served exactly by this engine: refused at load, never served approximately."""

    code = "unsupported_model"


class MissingModel(Terminal):
    """The model directory, or a file in it, is not there."""

    code = "missing_model"


class DigestMismatch(Terminal):
    """The files are not those that the ModelVersion pins."""

    code = "digest_mismatch"


class BadRequest(Terminal):
    """A request the loop cannot run, whatever the load."""

    code = "bad_request"


class ContextTooLong(BadRequest):
    """The prompt has more tokens than the model's context holds."""

    code = "context_length_exceeded"


class QueueFull(Retryable):
    """The bound on waiting requests is reached (I11)."""

    code = "queue_full"


class CacheNotAdvanced(Terminal):
    """The model ran but did not write its KV through our cache: its answers could not be trusted."""

    code = "cache_not_advanced"


class EngineFailure(Retryable):
    """The model did not compute a step; nothing is known against the request itself."""

    code = "engine_failure"
