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

from kvgrove_daemon.cache.contributors import Group
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


REMEMBERED: Final[Mapping[RemovalCause, MissReason]] = MappingProxyType(
    {
        RemovalCause.PRESSURE: MissReason.EVICTED,
        RemovalCause.QUOTA: MissReason.EVICTED,
        RemovalCause.BRANCHES: MissReason.EVICTED,
        RemovalCause.TTL: MissReason.EXPIRED,
    }
)
"""What a later miss of such a block is told as."""
# Nothing is kept of the other causes: keys of an older version are never asked for again, an erase leaves no trace.


class Ghosts:
    """Key -> reason of the last ``capacity`` blocks that gave way. Mutable, single-threaded.

    Each group has a memory of its own. Where there is no room for more, a group that has more than an equal share
    forgets its oldest: whoever floods a pool must not make those forgotten whose blocks gave way to it, or their misses
    would read ``new``.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._found: dict[bytes, tuple[Group, MissReason]] = {}
        self._order: dict[Group, OrderedDict[bytes, None]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def record(self, keys: Iterable[bytes], cause: RemovalCause, groups: Iterable[Group]) -> None:
        """``groups``: whose each of ``keys`` was; not asked for where ``cause`` is not in `REMEMBERED`."""
        reason = REMEMBERED.get(cause)
        if reason is None:
            return
        shown: dict[Group, tuple[Group, MissReason]] = {}  # one object for all keys of a group
        for key, group in zip(keys, groups, strict=True):
            self._discard(key)
            self._found[key] = shown.setdefault(group, (group, reason))
            self._order.setdefault(group, OrderedDict())[key] = None
            if len(self._found) > self._capacity:
                self._discard(next(iter(self._order[self._largest(group)])))

    def discard(self, keys: Iterable[bytes]) -> None:
        """These are stored again: their history ends."""
        if self._found:
            for key in keys:
                self._discard(key)

    def reason(self, key: bytes) -> MissReason | None:
        found = self._found.get(key)
        return found[1] if found is not None else None

    def clear(self) -> None:
        self._found.clear()
        self._order.clear()

    def _discard(self, key: bytes) -> None:
        found = self._found.pop(key, None)
        if found is not None:
            order = self._order[found[0]]
            del order[key]
            if not order:
                del self._order[found[0]]

    def _largest(self, likely: Group) -> Group:
        """A group with more than an equal share; ``likely`` if it is one, so that a flood costs no search."""
        if len(self._order[likely]) * len(self._order) > self._capacity:
            return likely
        return max(self._order, key=lambda group: len(self._order[group]))
