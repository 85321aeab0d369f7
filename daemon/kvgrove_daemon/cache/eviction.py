"""Which blocks give way first.

Role: an order over *evictable leaves* (READY, childless, unleased). Invariants: leaves first (I6); only a block that
the caller confirms as evictable is handed out; no operation scans all blocks.
Must not know: keys, slots, how a block is removed.

A policy sees only the tail of each chain that is used. That is enough for an exact LRU over all blocks: a request
touches its blocks last to first, so a block's last use is the newest among its own and its descendants', and it only
matters once the descendants are gone. `LeafLRU` therefore passes a leaf's stamp up when the leaf goes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

_BLOCK_BITS = 32
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1
_SLACK = 64  # stale entries a queue may hold beyond as many as it has live ones


class EvictionPolicy(Protocol):
    """What the pool asks of a policy. ``group`` is who is charged for a block: its namespace."""

    def touch(self, tail: int) -> None:
        """A request used the chain that ends at ``tail``."""

    def offer(self, block: int, group: str) -> None:
        """``block`` has become evictable. Offering it again changes nothing."""

    def removed(self, block: int, parent: int, group: str) -> None:
        """``block`` is gone, for whatever reason; ``parent`` (negative: none) has one child less."""

    def victims(self, evictable: Callable[[int], bool], group: str | None = None) -> Iterator[int]:
        """Evictable blocks, the next to give way first, of one group or of all.

        The caller removes each block that it takes before it asks for the next one, and may stop at any time.
        """

    def knows(self, block: int, group: str) -> bool:
        """Whether ``block`` can still come up as a victim: for checks, may be slow."""


class LeafLRU:
    """Least recently used leaf first: O(log leaves) per eviction, O(1) per touch.

    Each queue is a heap of ``stamp << 32 | block``. A touch changes only the block's stamp; an entry with an old stamp
    is moved when it comes up, so a touch costs at most one move later. Entries of blocks that are gone are dropped when
    they come up, and swept when they outnumber the live ones.
    """

    def __init__(self, capacity: int) -> None:
        self._clock = 0
        self._stamp = array("q", bytes(8 * capacity))  # of the last use
        self._queued = array("q", bytes(8 * capacity))  # the stamp its entry carries; 0: no entry
        self._queues: dict[str, list[int]] = {}
        self._live: dict[str, int] = {}

    def touch(self, tail: int) -> None:
        self._clock += 1
        self._stamp[tail] = self._clock

    def offer(self, block: int, group: str) -> None:
        if self._queued[block]:
            return
        queue = self._queues.setdefault(group, [])
        if not self._stamp[block]:  # never used: as if used now, since 0 means "no entry"
            self.touch(block)
        stamp = self._stamp[block]
        self._queued[block] = stamp
        self._live[group] = self._live.get(group, 0) + 1
        heappush(queue, stamp << _BLOCK_BITS | block)
        if len(queue) > 2 * self._live[group] + _SLACK:
            self._sweep(queue)

    def removed(self, block: int, parent: int, group: str) -> None:
        if self._queued[block]:
            self._unqueue(block, group)
        if parent >= 0 and self._stamp[block] > self._stamp[parent]:
            self._stamp[parent] = self._stamp[block]
        self._stamp[block] = 0

    def victims(self, evictable: Callable[[int], bool], group: str | None = None) -> Iterator[int]:
        names = [group] if group is not None else list(self._queues)
        heads = [(entry, name) for name in names if (entry := self._head(name, evictable)) is not None]
        heapify(heads)
        while heads:
            entry, name = heads[0]
            block = entry & _BLOCK_MASK
            heappop(self._queues[name])
            self._unqueue(block, name)
            yield block
            if (successor := self._head(name, evictable)) is not None:
                heapreplace(heads, (successor, name))
            else:
                heappop(heads)

    def knows(self, block: int, group: str) -> bool:
        return self._queued[block] != 0 and self._queued[block] << _BLOCK_BITS | block in self._queues.get(group, [])

    def _head(self, group: str, evictable: Callable[[int], bool]) -> int | None:
        """The first entry that stands: live, evictable and of the block's last use."""
        queue = self._queues.get(group)
        if queue is None:
            return None
        while queue:
            entry = queue[0]
            block, stamp = entry & _BLOCK_MASK, entry >> _BLOCK_BITS
            if self._queued[block] != stamp:
                heappop(queue)
            elif not evictable(block):
                heappop(queue)
                self._unqueue(block, group)
            elif self._stamp[block] != stamp:
                self._queued[block] = self._stamp[block]
                heapreplace(queue, self._stamp[block] << _BLOCK_BITS | block)
            else:
                return entry
        del self._queues[group]
        self._live.pop(group, None)
        return None

    def _unqueue(self, block: int, group: str) -> None:
        self._queued[block] = 0
        self._live[group] -= 1

    def _sweep(self, queue: list[int]) -> None:
        queue[:] = [entry for entry in queue if self._queued[entry & _BLOCK_MASK] == entry >> _BLOCK_BITS]
        heapify(queue)
