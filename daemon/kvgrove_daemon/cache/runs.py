"""Which slots are free, kept as maximal runs.

Role: hand out slots so that a sequence lies in as few contiguous runs as possible, because attention reads one
view per run. Invariants: free runs never overlap, never touch (neighbours are merged), and together with what was
handed out cover every slot exactly once; freeing a slot twice is refused. Must not know: what a slot holds.

Each operation costs O(log r) comparisons for r free runs (plus the list's memmove), never a scan of the slots,
except that an allocation that must be split visits the runs it takes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """``length`` consecutive slots from ``start``."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length

    def slots(self) -> range:
        return range(self.start, self.stop)


def coalesce(slots: Iterable[int]) -> list[Run]:
    """The runs of ``slots`` in the order given: two slots share a run when the second directly follows the first."""
    runs: list[Run] = []
    for slot in slots:
        if runs and runs[-1].stop == slot:
            runs[-1] = Run(runs[-1].start, runs[-1].length + 1)
        else:
            runs.append(Run(slot, 1))
    return runs


class RunAllocator:
    """Free slots of one arena. Mutable, single-threaded."""

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        self.num_slots = num_slots
        self._starts = [0]  # of the free runs, ascending
        self._lengths = {0: num_slots}  # start -> length
        self._by_length = [(num_slots, 0)]  # (length, start), ascending
        self._free = num_slots

    @property
    def free_count(self) -> int:
        return self._free

    @property
    def used_count(self) -> int:
        return self.num_slots - self._free

    @property
    def largest_run(self) -> int:
        return self._by_length[-1][0] if self._by_length else 0

    def free_runs(self) -> Iterator[Run]:
        """The free runs by ascending start."""
        return (Run(start, self._lengths[start]) for start in self._starts)

    def allocate(self, count: int, *, spare: int = 0) -> list[Run] | None:
        """Take ``count`` slots, in the fewest runs possible; None (and no change) when fewer are free.

        ``spare`` asks, without reserving anything, for a place with that many free slots behind it, so that the
        sequence can later grow in place by ``extend``.
        """
        if count < 1 or spare < 0:
            raise ValueError(f"count must be at least 1 and spare at least 0, not {count} and {spare}")
        if count > self._free:
            return None
        for wanted in (count + spare, count):
            at = bisect_left(self._by_length, (wanted, -1))
            if at < len(self._by_length):
                return [self._take(self._by_length[at][1], count)]
        # No run holds it all: whole runs from the longest down, then the tightest fit for the rest.
        taken: list[Run] = []
        rest = count
        while rest:
            at = bisect_left(self._by_length, (rest, -1))
            length, start = self._by_length[min(at, len(self._by_length) - 1)]
            taken.append(self._take(start, min(rest, length)))
            rest -= taken[-1].length
        return taken

    def extend(self, last: Run, count: int) -> Run | None:
        """Take the ``count`` slots directly behind ``last``; None (and no change) when they are not all free."""
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        if self._lengths.get(last.stop, 0) < count:
            return None
        return self._take(last.stop, count)

    def free(self, slots: Iterable[int]) -> None:
        """Give slots back. Raises ValueError, having changed nothing, if one is out of range, free or named twice."""
        for run in self._used_runs_of(slots):
            self._give(run)

    def _used_runs_of(self, slots: Iterable[int]) -> list[Run]:
        """The runs of slots that are all handed out; raises ValueError otherwise."""
        runs = coalesce(sorted(slots))
        for before, run in zip([None, *runs], runs, strict=False):
            if run.start < 0 or run.stop > self.num_slots:
                raise ValueError(f"slots {run.start}..{run.stop - 1} are outside 0..{self.num_slots - 1}")
            if before is not None and before.stop > run.start:
                raise ValueError(f"slot {run.start} is named twice")
            if self._overlaps_free(run):
                raise ValueError(f"a slot of {run.start}..{run.stop - 1} is already free")
        return runs

    def _overlaps_free(self, run: Run) -> bool:
        at = bisect_right(self._starts, run.start)
        if at and self._starts[at - 1] + self._lengths[self._starts[at - 1]] > run.start:
            return True
        return at < len(self._starts) and self._starts[at] < run.stop

    def _take(self, start: int, count: int) -> Run:
        length = self._remove(start)
        if length > count:
            self._insert(start + count, length - count)
        self._free -= count
        return Run(start, count)

    def _give(self, run: Run) -> None:
        start, length = run.start, run.length
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == run.stop:
            length += self._remove(run.stop)
        if at and self._starts[at - 1] + self._lengths[self._starts[at - 1]] == start:
            start = self._starts[at - 1]
            length += self._remove(start)
        self._insert(start, length)
        self._free += run.length

    def _insert(self, start: int, length: int) -> None:
        insort(self._starts, start)
        insort(self._by_length, (length, start))
        self._lengths[start] = length

    def _remove(self, start: int) -> int:
        length = self._lengths.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_length[bisect_left(self._by_length, (length, start))]
        return length
