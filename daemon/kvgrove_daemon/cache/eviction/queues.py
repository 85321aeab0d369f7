"""Leaves by the tick at which they are due, one queue for each group.

Role: the machinery that policies share. Invariants: O(log leaves) per entry that is added or taken, O(1) per change of
a due time; at most twice as many entries as live ones, and some slack (I11).
Must not know: what makes a block due, which events move it.

Each queue is a heap of ``due << 32 | block``. A due time may only grow while a block is queued: its entry is moved when
it comes up, so a change costs at most one move later. Entries of blocks that are gone are dropped when they come up,
and swept when they outnumber the live ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.policy import Evictable, Wanted

_BLOCK_BITS = 32
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1
_SLACK = 64  # stale entries a queue may hold beyond as many as it has live ones


class LeafQueues:
    """Mutable, single-threaded. ``due`` is the owner's: one positive tick for each block that it queues."""

    def __init__(self, due: array[int]) -> None:
        self._due = due
        self._queued = array("q", bytes(8 * len(due)))  # the tick its entry carries; 0: no entry
        self._queues: dict[Group, list[int]] = {}
        self._live: dict[Group, int] = {}
        self._grown: set[Group] = set()  # groups that got a block since the last victim was taken
        self.count = 0
        """Blocks queued, in all groups."""

    def __contains__(self, block: int) -> bool:
        return self._queued[block] != 0

    def add(self, block: int, group: Group) -> None:
        """Queue ``block``; changes nothing when it is queued."""
        if self._queued[block]:
            return
        queue = self._queues.setdefault(group, [])
        due = self._due[block]
        self._queued[block] = due
        self._grown.add(group)
        self._live[group] = self._live.get(group, 0) + 1
        self.count += 1
        heappush(queue, due << _BLOCK_BITS | block)
        if len(queue) > 2 * self._live[group] + _SLACK:
            self._sweep(queue)

    def discard(self, block: int, group: Group) -> None:
        if self._queued[block]:
            self._unqueue(block, group)

    def next_due(self, evictable: Evictable, wanted: Wanted | None) -> int | None:
        """The tick at which the first of `victims` is due, or None."""
        heads = (self._head(name, evictable) for name in list(self._queues) if wanted is None or wanted(name))
        return min((entry >> _BLOCK_BITS for entry in heads if entry is not None), default=None)

    def victims(self, evictable: Evictable, wanted: Wanted | None) -> Iterator[int]:
        """Evictable blocks by due time, each taken out of its queue.

        What the caller offers on the way, a parent of another group for one, comes up in its turn.
        """
        heads: list[tuple[int, Group]] = []
        first: dict[Group, int] = {}  # the entry of each group that counts in `heads`; its others are stale

        def look(name: Group) -> None:
            entry = self._head(name, evictable) if wanted is None or wanted(name) else None
            if entry is None:
                first.pop(name, None)
            elif first.get(name) != entry:
                first[name] = entry
                heappush(heads, (entry, name))

        for name in list(self._queues):
            look(name)
        while heads:
            entry, name = heappop(heads)
            if first.get(name) != entry:
                continue
            if (wanted is not None and not wanted(name)) or self._head(name, evictable) != entry:
                look(name)
                continue
            block = entry & _BLOCK_MASK
            heappop(self._queues[name])
            self._unqueue(block, name)
            self._grown.clear()
            yield block
            for grown in {name, *self._grown}:
                look(grown)

    def holds(self, block: int, group: Group) -> bool:
        """For checks: whether the entry of ``block`` is really there."""
        return self._queued[block] != 0 and self._queued[block] << _BLOCK_BITS | block in self._queues.get(group, [])

    def _head(self, group: Group, evictable: Evictable) -> int | None:
        """The first entry that stands: live, evictable and as late as the block is due."""
        queue = self._queues.get(group)
        if queue is None:
            return None
        while queue:
            entry = queue[0]
            block, due = entry & _BLOCK_MASK, entry >> _BLOCK_BITS
            if self._queued[block] != due:
                heappop(queue)
            elif not evictable(block):
                heappop(queue)
                self._unqueue(block, group)
            elif self._due[block] != due:
                self._queued[block] = self._due[block]
                heapreplace(queue, self._due[block] << _BLOCK_BITS | block)
            else:
                return entry
        del self._queues[group]
        self._live.pop(group, None)
        return None

    def _unqueue(self, block: int, group: Group) -> None:
        self._queued[block] = 0
        self._live[group] -= 1
        self.count -= 1

    def _sweep(self, queue: list[int]) -> None:
        queue[:] = [entry for entry in queue if self._queued[entry & _BLOCK_MASK] == entry >> _BLOCK_BITS]
        heapify(queue)
