"""Slots between the erasure of what they held and the proof that their bytes are gone.

Role: keep slots of erased blocks, and of builds whose text was erased while they computed, out of the pool until
whoever wipes memory has done so (I5, I8). Invariants: a slot in quarantine is handed to nobody; each slot is named once
for each time that it has to be wiped; with nobody to wipe (`wiper` is None) nothing is held back.
A free slot may still hold bytes of a block that gave way earlier, so an erasure has to wipe those too: `take_dirty`
names free slots that were written to since they were last wiped.
Must not know: how memory is wiped, whose text it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kvgrove_daemon.cache.runs import Run, RunAllocator

Wiper = Callable[[frozenset[int], Sequence[int]], None]
"""Called with the numbers of erasures, and slots that their late readers or builds have just left: they are in
quarantine now. Called from within the change: it must only note them down."""


class Quarantine:
    """Of one pool. Mutable, single-threaded."""

    def __init__(self, pool: RunAllocator) -> None:
        self._pool = pool
        self._held: set[int] = set()
        self._dirty = bytearray(pool.num_slots)
        self._owing: Counter[int] = Counter()
        self.wiper: Wiper | None = None

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, slot: int) -> bool:
        return slot in self._held

    def written(self, runs: Iterable[Run]) -> None:
        """These slots were handed out to be written to."""
        for run in runs:
            self._dirty[run.start : run.stop] = b"\1" * run.length

    def enter(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Instead of freeing them: hold ``slots`` back; answers those that are to be wiped, none without a wiper."""
        if self.wiper is None:
            if slots:
                self._pool.free(slots)
            return ()
        self._held.update(slots)
        return tuple(slots)

    def owe(self, erasure: int, readers: int) -> None:
        """So many blocks and builds of ``erasure`` keep slots that `leave` will name."""
        if readers:
            self._owing[erasure] += readers

    def owing(self, erasure: int) -> int:
        """How many blocks and builds of ``erasure`` still keep slots; 0: all its slots have been named."""
        return self._owing[erasure]

    def leave(self, erasures: frozenset[int], slots: Sequence[int]) -> None:
        """One late block or build has gone, and with it ``slots``: hold them back and tell the wiper."""
        for erasure in erasures:
            self._owing[erasure] -= 1
            if not self._owing[erasure]:
                del self._owing[erasure]
        held = self.enter(slots)
        if self.wiper is not None:
            self.wiper(erasures, held)

    def release(self, slots: Iterable[int]) -> None:
        """They are wiped: give them back. Raises ValueError, having changed nothing, for a slot that is not held."""
        wiped = set(slots)
        if not wiped <= self._held:
            raise ValueError(f"{len(wiped - self._held)} slots are not in quarantine")
        if wiped:
            self._pool.free(wiped)
            self._held -= wiped
            for slot in wiped:
                self._dirty[slot] = 0

    def take_dirty(self, limit: int) -> tuple[int, ...]:
        """Up to ``limit`` free slots that were written to since they were last wiped, in quarantine from now on."""
        taken: list[int] = []
        for run in list(self._pool.free_runs()):
            dirty = [slot for slot in run.slots() if self._dirty[slot]][: limit - len(taken)]
            if not dirty:
                continue
            self._pool.extend(Run(run.start - 1, 1), dirty[-1] + 1 - run.start)
            clean = set(range(run.start, dirty[-1] + 1)).difference(dirty)
            if clean:
                self._pool.free(clean)
            taken += dirty
            if len(taken) >= limit:
                break
        self._held.update(taken)
        return tuple(taken)
