"""S3-FIFO, leaf first: a small queue on probation, a main queue for what was used again.

Role: the policy of Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), over leaves of a tree.
Invariants and must-nots: see the package.

A leaf waits in the small queue, and is moved to the main one when its turn comes and it was used meanwhile; there it
goes round once more for each use, up to `_MOST_USES`. What comes back shortly after it gave way enters the main queue.
A parent whose last child gave way takes the child's place in the order, so that a dead chain goes as one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.departed import Departed
from kvgrove_daemon.cache.eviction.policy import Evictable, Parts, Ticks, Wanted
from kvgrove_daemon.cache.eviction.queues import LeafQueues

_SMALL_SHARE: Final = 0.1
_MOST_USES: Final = 3


class S3Fifo:
    """O(log leaves) per eviction, amortised over the uses that send leaves round; O(1) per touch."""

    def __init__(self, capacity: int, ticks: Ticks | None = None) -> None:
        self.ticks = ticks if ticks is not None else Ticks()
        self._due = array("q", bytes(8 * capacity))  # the place in the order; 0: none yet
        self._uses = bytearray(capacity)
        self._proven = bytearray(capacity)  # belongs to the main queue
        self._small, self._main = LeafQueues(self._due), LeafQueues(self._due)
        self._departed = Departed(capacity)
        self._groups: dict[int, Group] = {}

    def touch(self, tail: int, chain: Parts = ()) -> None:
        del chain
        self._uses[tail] = min(self._uses[tail] + 1, _MOST_USES)

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        for block, key in zip(blocks, keys, strict=True):
            if self._departed.take(key):
                self._proven[block] = True

    def offer(self, block: int, group: Group) -> None:
        if block in self._small or block in self._main:
            return
        if not self._due[block]:
            self._due[block] = self._tick()
        self._groups[block] = group
        (self._main if self._proven[block] else self._small).add(block, group)

    def removed(self, block: int, parent: int, group: Group, key: bytes | None = None) -> None:
        self._small.discard(block, group)
        self._main.discard(block, group)
        self._groups.pop(block, None)
        if key is not None:
            self._departed.note(key, 1)
        if parent >= 0:
            self._due[parent] = max(self._due[parent], self._due[block])
            self._uses[parent] = max(self._uses[parent], self._uses[block])
            self._proven[parent] |= self._proven[block]
        self._due[block] = self._uses[block] = self._proven[block] = 0

    def next_due(self, evictable: Evictable, wanted: Wanted | None = None) -> int | None:
        dues = [queue.next_due(evictable, wanted) for queue in (self._small, self._main)]
        return min((due for due in dues if due is not None), default=None)

    def victims(self, evictable: Evictable, wanted: Wanted | None = None) -> Iterator[int]:
        while (block := self._next(evictable, wanted)) is not None:
            yield block

    def forget(self) -> None:
        self._departed.clear()

    def knows(self, block: int, group: Group) -> bool:
        return self._small.holds(block, group) or self._main.holds(block, group)

    def _next(self, evictable: Evictable, wanted: Wanted | None) -> int | None:
        while self._small.count or self._main.count:
            small = self._small.count > _SMALL_SHARE * (self._small.count + self._main.count)
            first, second = (self._small, self._main) if small else (self._main, self._small)
            block = next(first.victims(evictable, wanted), None)
            if block is None:
                block = next(second.victims(evictable, wanted), None)
            if block is None or not self._uses[block]:
                return block
            if self._proven[block]:
                self._uses[block] -= 1
            else:
                self._proven[block], self._uses[block] = True, 0
            self._due[block] = self._tick()
            self._main.add(block, self._groups[block])
        return None

    def _tick(self) -> int:
        self.ticks.now += 1
        return self.ticks.now
