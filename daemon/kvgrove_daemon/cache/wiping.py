"""Wipes what erasures freed in one pool: overwritten, read back, and only then used again (I5, I8).

Role: the hand between `BlockStore.drop` and the kernels. Invariants: a slot leaves quarantine only after its bytes were
read back as zeros; an erasure is empty when every slot it freed was, and no reader or build keeps one; work per call is
bounded, so that an erase of a whole pool holds up no engine step for longer than one call. A slot that reads back
otherwise is kept out of the pool for good, and its erasure says so.
Must not know: plans, receipts, other tiers.

A free slot may still hold what lay in it before it gave way, so an erasure takes all of those along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvgrove_daemon.cache.arena import Arena
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_kernels import ops

WIPE_BYTES: Final = 64 << 20
"""At most so many bytes are wiped per call."""

Residue = Callable[[Sequence[int]], Sequence[int]]
"""Overwrites these slots; answers for each how many bytes were not zero when they were read back."""


def residue_in(arena: Arena) -> Residue:
    """By the kernels, wherever the arena's memory is."""

    def residue(slots: Sequence[int]) -> Sequence[int]:
        found = ops.wipe_blocks(arena.pool, slots, block_size=arena.layout.block_size)
        return [int(count) for count in (found if isinstance(found, np.ndarray) else found.get())]

    return residue


@dataclass(frozen=True, slots=True)
class Cut:
    number: int
    """Of the erasure, in this pool."""
    builds: int
    """Requests under way that hold text of the subject: they store nothing more."""


class PoolWiper:
    """Of one pool. Belongs to the core thread; from its making on erased slots stay in quarantine until wiped here."""

    def __init__(self, store: BlockStore, wipe: Residue, *, block_bytes: int) -> None:
        self._store = store
        self._wipe = wipe
        self._at_once = max(1, WIPE_BYTES // block_bytes)
        self._queue: deque[int] = deque()
        self._left: dict[int, set[int]] = {}  # erasure -> slots that are to be wiped for it
        self._wiped: dict[int, int] = {}
        self._stuck: set[int] = set()
        store.wipe_with(self._late)

    def cut(self, subject: Subject) -> Cut:
        """Drop what ``subject`` means. The answer's number is for the calls below."""
        dropped = self._store.drop(
            cause=RemovalCause.ERASE,
            namespace=subject.namespace,
            root=subject.root,
            document=subject.document,
            contributor=subject.contributor,
        )
        slots = [*dropped.slots, *self._store.take_dirty(self._store.stats().slots)]
        self._left[dropped.erasure] = set(slots)
        self._wiped[dropped.erasure] = 0
        self._queue.extend(slots)
        return Cut(dropped.erasure, dropped.builds)

    def _late(self, erasures: frozenset[int], slots: Sequence[int]) -> None:
        for erasure in erasures:
            if erasure in self._left:
                self._left[erasure].update(slots)
        self._queue.extend(slots)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be wiped."""
        return not self._queue

    def turn(self) -> None:
        """Wipe some of what waits."""
        chosen = [self._queue.popleft() for _ in range(min(len(self._queue), self._at_once))]
        if not chosen:
            return
        residue = dict(zip(chosen, self._wipe(chosen), strict=True))
        wiped = {slot for slot, count in residue.items() if count == 0}
        self._stuck |= residue.keys() - wiped
        self._store.release(wiped)
        for erasure, left in self._left.items():
            done = left & wiped
            left.difference_update(done)
            self._wiped[erasure] += len(done)

    def pending(self, erasure: int) -> int:
        """Slots that are not proven empty, and blocks and builds that still keep some."""
        return len(self._left[erasure]) + self._store.owing(erasure)

    def wiped(self, erasure: int) -> int:
        """Slots that were overwritten and read back for it."""
        return self._wiped[erasure]

    def failed(self, erasure: int) -> bool:
        """Whether some slot did not read back as zeros."""
        return not self._stuck.isdisjoint(self._left[erasure])

    def retry(self, erasure: int) -> None:
        """Try the slots again that did not read back as zeros."""
        again = sorted(self._stuck & self._left[erasure])
        self._stuck.difference_update(again)
        self._queue.extend(again)

    def forget(self, erasure: int) -> None:
        """Nobody asks about it any more; what of it waits is wiped all the same."""
        self._left.pop(erasure, None)
        self._wiped.pop(erasure, None)
