"""What a lower tier asks of the place that its bytes lie in.

Role: the protocol alone. A medium has ``num_slots`` slots of one block each. Which slot holds what, who may read it and
what gives way is decided above (one `ResidentBlocks` per tier), so that leases, rootedness, quotas and drops follow the
same rules in every tier.
Invariants: `write_many` is durable and whole on return, or has left nothing that `read` or a later start can find (I4);
`read` answers the bytes that were written for exactly these facts, or raises (ISO-12); after `erase` nothing of the
slot can be read, by anybody.
Must not know: indexes, policies, requests, threads. One call per slot at a time; calls for several slots may overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvgrove_protocol.errors import Retryable, Terminal
from kvgrove_protocol.identity import NOBODY, Contributor


@dataclass(frozen=True, slots=True)
class Facts:
    """What a block is, beside its KV: all that makes it findable, and that a match must prove."""

    namespace: str
    """UID."""
    root: bytes
    """The shared realm (32 bytes), which holds generation, purge epoch and policy version."""
    key: bytes
    parent: bytes
    """Key of the block before it; for the first one the root."""
    depth: int
    """Its place in the chain, from 0."""
    tokens: bytes
    """Little-endian uint32, one block."""
    fold: bytes = b""
    documents: tuple[str, ...] = ()
    contributors: tuple[Contributor, ...] = (NOBODY,)


class MediumFull(Retryable):
    """The place behind a tier has no room: the tier degrades, requests go on."""

    code = "tier_full"


class MediumFailed(Retryable):
    """Writing, reading or erasing went wrong; the slot holds nothing that may be used."""

    code = "tier_failed"


class MediumCorrupt(Terminal):
    """The bytes are not those that were written for these facts. They were set aside and are never read again."""

    code = "tier_corrupt"


Entry = tuple[int, Facts, bytes | memoryview]
"""A slot, and what goes into it."""


class Medium(Protocol):
    """See the module. All calls but `close` block: make them from a worker thread."""

    name: str
    """``host`` or ``disk``."""

    @property
    def num_slots(self) -> int: ...

    def write_many(self, blocks: Sequence[Entry]) -> None:
        """Store all of these or, where it raises, none.

        Raises `MediumFull` or `MediumFailed`, or another Retryable where it cannot be done just now.
        """

    def read(self, slot: int, facts: Facts) -> bytes | memoryview:
        """The body that was written for ``facts``.

        Raises `MediumCorrupt` or `MediumFailed` (the slot is empty now), or another Retryable where it cannot just now.
        """

    def release(self, slots: Sequence[int]) -> None:
        """Forget these, without overwriting them. Raises `MediumFailed`."""

    def erase(self, slots: Sequence[int]) -> int:
        """Overwrite, read back, give back; answers how many slots are proven empty. Raises `MediumFailed`."""

    def close(self) -> None:
        """Let go of everything. Calling it again does nothing."""
