"""Least recently used leaf first.

Role: the plain policy, and the yardstick of the others. Invariants and must-nots: see the package.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.policy import Evictable, Parts, Ticks, Wanted
from kvgrove_daemon.cache.eviction.queues import LeafQueues


class LeafLRU:
    """O(log leaves) per eviction, O(1) per touch. A block is due at its last use."""

    def __init__(self, capacity: int, ticks: Ticks | None = None) -> None:
        self.ticks = ticks if ticks is not None else Ticks()
        self._stamp = array("q", bytes(8 * capacity))  # of the last use; 0: never
        self._leaves = LeafQueues(self._stamp)

    def touch(self, tail: int, chain: Parts = ()) -> None:
        del chain
        self.ticks.now += 1
        self._stamp[tail] = self.ticks.now

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        del keys
        self.touch(blocks[-1])

    def offer(self, block: int, group: Group) -> None:
        if not self._stamp[block]:  # never used: as if used now
            self.touch(block)
        self._leaves.add(block, group)

    def removed(self, block: int, parent: int, group: Group, key: bytes | None = None) -> None:
        del key
        self._leaves.discard(block, group)
        if parent >= 0 and self._stamp[block] > self._stamp[parent]:
            self._stamp[parent] = self._stamp[block]
        self._stamp[block] = 0

    def next_due(self, evictable: Evictable, wanted: Wanted | None = None) -> int | None:
        return self._leaves.next_due(evictable, wanted)

    def victims(self, evictable: Evictable, wanted: Wanted | None = None) -> Iterator[int]:
        return self._leaves.victims(evictable, wanted)

    def forget(self) -> None:
        """It never keeps any."""

    def knows(self, block: int, group: Group) -> bool:
        return self._leaves.holds(block, group)
