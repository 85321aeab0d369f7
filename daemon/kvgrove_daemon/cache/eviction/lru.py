"""Least recently used leaf first.

Role: the plain policy, and the yardstick of the others. Invariants and must-nots: see the package.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

from kvgrove_daemon.cache.eviction.policy import Stretches
from kvgrove_daemon.cache.eviction.queues import LeafQueues


class LeafLRU:
    """O(log leaves) per eviction, O(1) per touch. A block is due at its last use."""

    def __init__(self, capacity: int) -> None:
        self._clock = 0
        self._stamp = array("q", bytes(8 * capacity))  # of the last use; 0: never
        self._leaves = LeafQueues(self._stamp)

    def touch(self, tail: int, chain: Stretches = ()) -> None:
        del chain
        self._clock += 1
        self._stamp[tail] = self._clock

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        del keys
        self.touch(blocks[-1])

    def offer(self, block: int, group: str) -> None:
        if not self._stamp[block]:  # never used: as if used now
            self.touch(block)
        self._leaves.add(block, group)

    def removed(self, block: int, parent: int, group: str, key: bytes | None = None) -> None:
        del key
        self._leaves.discard(block, group)
        if parent >= 0 and self._stamp[block] > self._stamp[parent]:
            self._stamp[parent] = self._stamp[block]
        self._stamp[block] = 0

    def victims(self, evictable: Callable[[int], bool], group: str | None = None) -> Iterator[int]:
        return self._leaves.victims(evictable, group)

    def forget(self) -> None:
        """It never keeps any."""

    def knows(self, block: int, group: str) -> bool:
        return self._leaves.holds(block, group)
