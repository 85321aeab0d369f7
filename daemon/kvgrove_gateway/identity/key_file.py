"""The API keys file: digests of keys and whom each key speaks for.

It holds SHA-256 digests, never keys. A key is 256 random bits (`kvgrove keys create`), which no guessing turns back.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from kvgrove_gateway.identity.caller import MAX_NAME_CHARS, MAX_SCOPES, Identity
from kvgrove_gateway.identity.files import BrokenFile, parse_closed
from kvgrove_protocol.identity import Caller

Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]


def _moment(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise PydanticCustomError("moment", "Input should be a time such as 2027-01-31T00:00:00Z") from None


class KeyEntry(BaseModel):
    """One key of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Name
    """Names the key in the audit log; not secret."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    tenant: Name
    user: Name | None = None
    scopes: list[Name] = Field(default_factory=list, max_length=MAX_SCOPES)
    namespaces: list[Name] | None = None
    """``<k8s namespace>/<name>`` of the namespaces the key may use; absent: all that admit its tenant."""
    explain: bool = False
    """An operator's key: told how its requests are routed, where the gateway tells at all (see `route`)."""
    operator: bool = False
    """May use ``/admin`` and read ``/metrics``."""
    monitor: bool = False
    """May read ``/metrics``: for whoever scrapes."""
    expires: Annotated[AwareDatetime | None, BeforeValidator(_moment)] = None
    """With a time zone, for example ``2027-01-31T00:00:00Z``: refused from then on. How a rotated key goes."""


class KeyList(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    keys: list[KeyEntry] = Field(max_length=100_000)


def parse_keys(text: bytes) -> list[KeyEntry]:
    """The entries; raises BrokenFile naming the field, also where an id or a digest occurs twice."""
    entries = parse_closed(text, KeyList).keys
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        if entry.id in seen or entry.sha256 in seen:
            raise BrokenFile(f"keys.{position}: its id or sha256 occurs twice", field=f"keys.{position}")
        seen |= {entry.id, entry.sha256}
    return entries


def identities(entries: list[KeyEntry]) -> Iterator[tuple[bytes, Identity, float | None]]:
    """Digest of the key, whom it speaks for, and when that ends (seconds since 1970; None: never)."""
    for entry in entries:
        yield (
            bytes.fromhex(entry.sha256),
            Identity(
                key_id=entry.id,
                caller=Caller(tenant=entry.tenant, user=entry.user, scopes=tuple(sorted(set(entry.scopes)))),
                namespaces=None if entry.namespaces is None else frozenset(entry.namespaces),
                explain=entry.explain,
                operator=entry.operator,
                monitor=entry.monitor or entry.operator,
            ),
            None if entry.expires is None else entry.expires.timestamp(),
        )
