"""When blocks were computed and last used, and which have outlived their time.

Role: two columns of seconds by block id. Invariant: a use of a chain is a use of all its blocks, so along a chain the
last uses only fall, and what has expired by them is a suffix; by the time of computing a parent may expire before its
children, and takes them along.
Must not know: the clock's origin (it is injected), leases, eviction order (policies keep logical time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.eviction.policy import Parts
from kvgrove_daemon.cache.rooms import NamespaceRoom

Clock = Callable[[], float]
"""Seconds that go on while the machine sleeps."""


class Ages:
    """Mutable, single-threaded. 16 bytes for each block."""

    def __init__(self, capacity: int, clock: Clock) -> None:
        self._clock = clock
        self._born = np.zeros(capacity, dtype=np.float64)
        self._used = np.zeros(capacity, dtype=np.float64)

    def computed(self, blocks: npt.NDArray[np.int32], at: float | None = None) -> None:
        """Just now, or for blocks that come from another tier then."""
        self._born[blocks] = self._used[blocks] = self._clock() if at is None else at

    def touch(self, chain: Parts) -> None:
        """This chain is used now."""
        now = self._clock()
        for part in chain:
            self._used[part] = now

    def born(self, block: int) -> float:
        return float(self._born[block])

    def coldest(self, blocks: Sequence[int]) -> int:
        """The one whose chain was used longest ago; of several the first."""
        return blocks[int(self._used[blocks].argmin())]

    def fresh(self, chain: Parts, room: NamespaceRoom) -> int | None:
        """How many blocks lie before the first one that has expired; None: none has."""
        if room.ttl_s is None:
            return None
        column, earliest = self._used if room.sliding else self._born, self._clock() - room.ttl_s
        before = 0
        for part in chain:
            stale = column[part] <= earliest
            if stale.any():
                return before + int(stale.argmax())
            before += len(stale)
        return None

    def expired(self, roots: npt.NDArray[np.int32], rooms: Mapping[int, NamespaceRoom]) -> npt.NDArray[np.bool_]:
        """By block: has it outlived its time? ``roots``: root id by block, ``rooms``: by root id. O(capacity)."""
        now, size = self._clock(), int(roots.max(initial=0)) + 1
        used, born = np.full(size, -np.inf), np.full(size, -np.inf)
        for root, room in rooms.items():
            if room.ttl_s is not None and root < size:
                (used if room.sliding else born)[root] = now - room.ttl_s
        stale: npt.NDArray[np.bool_] = (self._used <= used[roots]) | (self._born <= born[roots])
        return stale
