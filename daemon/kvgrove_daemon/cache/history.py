"""Why blocks went, and a short memory of which.

Role: tell ``evicted`` from ``new`` when a key misses. Invariants: bounded, oldest forgotten first (I11). A key holds
its realm, so what is found here is the asker's own history and nobody else's (ISO-03).
Must not know: blocks, slots, tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_protocol.reasons import MissReason


class RemovalCause(StrEnum):
    """Why a READY block was retired: counted apart, since each asks for another cure."""

    PRESSURE = "pressure"
    """The pool was short of room."""
    QUOTA = "quota"
    """Its namespace was over its ceiling, or its tenant over its share."""
    BRANCHES = "branches"
    """Its contributor had more continuations of one block than are kept."""
    TTL = "ttl"
    VERSION = "version"
    """A document, generation, policy or purge epoch moved on."""
    ERASE = "erase"
    UNREADABLE = "unreadable"
    """Its medium could not read it, or gave other bytes than were written."""
    CLEAR = "clear"


_REMEMBERED: Final[Mapping[RemovalCause, MissReason]] = MappingProxyType(
    {
        RemovalCause.PRESSURE: MissReason.EVICTED,
        RemovalCause.QUOTA: MissReason.EVICTED,
        RemovalCause.BRANCHES: MissReason.EVICTED,
        RemovalCause.TTL: MissReason.EXPIRED,
    }
)
# Nothing is kept of the other causes: keys of an older version are never asked for again, an erase leaves no trace.


class Ghosts:
    """Key -> reason of the last ``capacity`` blocks that gave way. Mutable, single-threaded."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._reasons: OrderedDict[bytes, MissReason] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reasons)

    def record(self, keys: Iterable[bytes], cause: RemovalCause) -> None:
        reason = _REMEMBERED.get(cause)
        if reason is None:
            return
        reasons = self._reasons
        for key in keys:
            reasons[key] = reason
        while len(reasons) > self._capacity:
            reasons.popitem(last=False)

    def discard(self, keys: Iterable[bytes]) -> None:
        """These are stored again: their history ends."""
        if self._reasons:
            for key in keys:
                self._reasons.pop(key, None)

    def reason(self, key: bytes) -> MissReason | None:
        return self._reasons.get(key)

    def clear(self) -> None:
        self._reasons.clear()
