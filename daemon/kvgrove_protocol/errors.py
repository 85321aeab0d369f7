"""The roots of every package's errors.

An error carries data: ``code`` is the reason that conditions, HTTP bodies and metrics use, ``field`` names what is
wrong where one field is, and the message says the cure. What a caller may do next is in the root it derives from.
"""


class KvgroveError(Exception):
    """Base of all errors raised on purpose. ``code`` is stable and machine-readable."""

    code = "error"

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        if code is not None:
            self.code = code


class Retryable(KvgroveError):
    """The same call may succeed later or elsewhere."""

    code = "retryable"


class Terminal(KvgroveError):
    """The same call will fail again: something has to change first."""

    code = "terminal"


class Inconclusive(KvgroveError):
    """It is not known whether it happened: neither success nor failure may be reported."""

    code = "inconclusive"


class Malformed(Terminal):
    """Bytes or fields that are not what the protocol says."""

    code = "malformed"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}", field=field)


class VersionMismatch(Terminal):
    """Two peers with no protocol version in common."""

    code = "version_mismatch"


class StaleFence(Retryable):
    """The request was resolved against an older state of its namespace than the node has: resolve it anew."""

    code = "stale_fence"
