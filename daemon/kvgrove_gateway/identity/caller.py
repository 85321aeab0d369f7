"""A verified caller, and what its credential is limited to."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from kvgrove_protocol.identity import Caller

API_KEY: Final = "api_key"
JWT: Final = "jwt"

MAX_NAME_CHARS = 256
"""Of a tenant, a user, a scope and a credential's id."""
MAX_SCOPES = 256


@dataclass(frozen=True)
class Identity:
    """Made from a credential that was verified, and never from anything else of a request."""

    key_id: str
    """Names the credential in the audit log: an API key's id, or issuer and subject. Not secret."""
    caller: Caller
    namespaces: frozenset[str] | None
    """``<k8s namespace>/<name>`` it may use; None: all that admit its tenant."""
    explain: bool = False
    """May be told how its requests are routed."""
    operator: bool = False
    """May use ``/admin`` and read ``/metrics``."""
    monitor: bool = False
    """May read ``/metrics``."""
    kind: Literal["api_key", "jwt"] = API_KEY

    def may_name(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


def holds_all_of(caller: Caller, wanted: Iterable[str]) -> bool:
    """Whether ``caller`` has every one of the scopes; true where none is wanted."""
    return frozenset(wanted) <= frozenset(caller.scopes)
