"""The default: recency, and a stay of proof for blocks that were reused before.

Role: keep chains that are likely to be reused for as long as their next use is likely to take. Invariants and
must-nots: see the package. One setting for every workload and pool: all that it goes by is measured, in ticks.

All blocks of one pool have the same bytes and stand for the same number of tokens, so tokens saved per byte come down
to the probability of a next use. A conversation that went on once goes on again with a higher probability than a new
one, but only within the usual pause between turns. Two things are therefore measured:

- *patience*: the age by which `_QUANTILE` of blocks have met their first reuse, tracked by a stochastic quantile
  estimator (Robbins-Monro, on the logarithm). Blocks that come back after they gave way count with their full age: what
  gives way too early is seen, and the estimate is not cut off at the age that the pool reaches;
- *residence*: the mean age at eviction.

A block seen at least twice gets the *stay* ``_MARGIN * patience - residence`` on top of its last use, at least nothing
and at most `_MOST_RESIDENCES` residences. A pool that holds blocks longer than their next use takes gives no stay, and
is an exact LRU; where all is evicted long before its next use, the bound keeps new chains a place to prove themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from math import exp
from typing import Final

import numpy as np

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.departed import Departed
from kvgrove_daemon.cache.eviction.policy import Evictable, Parts, Ticks, Wanted
from kvgrove_daemon.cache.eviction.queues import LeafQueues

_QUANTILE: Final = 0.8
_MARGIN: Final = 1.9
_MOST_RESIDENCES: Final = 2.0
_STEP: Final = 0.05
_LATER: Final = exp(_STEP * _QUANTILE)
_SOONER: Final = exp(-_STEP * (1 - _QUANTILE))
_MEAN_WEIGHT: Final = 0.001  # of one eviction


class CostAware:
    """O(log leaves) per eviction, O(stretches of a chain) per touch, O(blocks) per admission."""

    def __init__(self, capacity: int, ticks: Ticks | None = None) -> None:
        self.ticks = ticks if ticks is not None else Ticks()
        self._stamp = array("q", bytes(8 * capacity))  # of the last use; 0: never
        self._due = array("q", bytes(8 * capacity))
        self._reused = bytearray(capacity)
        # Ranges are quick through views of the same memory, single values through the arrays.
        self._stamps = np.frombuffer(self._stamp, dtype=np.int64)
        self._reuses = np.frombuffer(self._reused, dtype=np.bool_)
        self._leaves = LeafQueues(self._due)
        self._departed = Departed(capacity)
        self.patience = 1.0
        """Ticks."""
        self.residence = 0.0
        """Ticks; 0 before the first eviction."""

    @property
    def stay(self) -> int:
        """Ticks that a block seen at least twice is granted now."""
        return int(min(max(_MARGIN * self.patience - self.residence, 0.0), _MOST_RESIDENCES * self.residence))

    def touch(self, tail: int, chain: Parts = ()) -> None:
        self.ticks.now += 1
        if not self._reused[tail] and self._stamp[tail]:
            self._observe(self.ticks.now - self._stamp[tail])
        for part in chain or (slice(tail, tail + 1),):
            self._reuses[part] = True
            self._stamps[part] = self.ticks.now
        if tail in self._leaves:  # the queues rely on it that it is never due sooner than it was
            self._due[tail] = max(self._due[tail], self._due_now(tail))

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        self.ticks.now += 1
        returned, last_use = -1, 0
        for at, (block, key) in enumerate(zip(blocks, keys, strict=True)):
            self._stamp[block] = self.ticks.now
            if found := self._departed.take(key):
                returned, last_use = at, found
        if returned >= 0:
            for block in blocks[: returned + 1]:
                self._reused[block] = True
            self._observe(self.ticks.now - last_use)

    def offer(self, block: int, group: Group) -> None:
        if block in self._leaves:
            return
        if not self._stamp[block]:  # never used: as if used now
            self.ticks.now += 1
            self._stamp[block] = self.ticks.now
        self._due[block] = self._due_now(block)
        self._leaves.add(block, group)

    def removed(self, block: int, parent: int, group: Group, key: bytes | None = None) -> None:
        self._leaves.discard(block, group)
        stamp = self._stamp[block]
        if key is not None:
            age = self.ticks.now - stamp
            self.residence += (age - self.residence) * (_MEAN_WEIGHT if self.residence else 1.0)
            self._departed.note(key, stamp)
        if parent >= 0:
            self._stamp[parent] = max(self._stamp[parent], stamp)
            self._reused[parent] |= self._reused[block]
        self._stamp[block] = self._reused[block] = 0

    def next_due(self, evictable: Evictable, wanted: Wanted | None = None) -> int | None:
        return self._leaves.next_due(evictable, wanted)

    def victims(self, evictable: Evictable, wanted: Wanted | None = None) -> Iterator[int]:
        return self._leaves.victims(evictable, wanted)

    def forget(self) -> None:
        self._departed.clear()

    def knows(self, block: int, group: Group) -> bool:
        return self._leaves.holds(block, group)

    def _due_now(self, block: int) -> int:
        """By the present stay. What is queued already keeps the one that it has: estimates that move later on change
        the place of those to come, and nothing is reordered."""
        return self._stamp[block] + (self.stay if self._reused[block] else 0)

    def _observe(self, age: int) -> None:
        self.patience = max(1.0, self.patience * (_LATER if age > self.patience else _SOONER))
