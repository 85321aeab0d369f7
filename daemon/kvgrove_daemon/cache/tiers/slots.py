"""Slots of a lower tier: what was given back is cleared on the medium before it is handed out again.

Role: `RunAllocator` with two more states between used and free. Invariants: a slot is free, used, to be cleared or
being cleared, each exactly once; only a slot that the medium has let go of becomes free again. What gave way to others
is *released* (the medium forgets it); all else, be it dropped, expired or never committed, is *erased* (overwritten
and read back), so that an erasure needs no path of its own. Must not know: media, blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kvgrove_daemon.cache.runs import RunAllocator


class Clearing(NamedTuple):
    """Slots whose clearing has begun."""

    release: list[int]
    erase: list[int]


class ClearedSlots(RunAllocator):
    """Free slots of one medium. ``free_count`` counts those that nobody uses, `empty_count` those to be had now."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._to_release: set[int] = set()
        self._to_erase: set[int] = set()
        self._under_way: set[int] = set()
        self._evicting = False

    @property
    def free_count(self) -> int:
        """Slots that nobody uses, those included that are still to be cleared: no more need to give way for them."""
        return self.empty_count + self.uncleared

    @property
    def empty_count(self) -> int:
        return super().free_count

    @property
    def uncleared(self) -> int:
        """Slots that nobody uses any more and that may still hold something."""
        return len(self._to_release) + len(self._to_erase) + len(self._under_way)

    def uncleared_slots(self) -> Sequence[int]:
        """The same, one by one: for checks."""
        return sorted(self._to_release | self._to_erase | self._under_way)

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """What is given back within gave way to others: it needs to be released only."""
        self._evicting = True
        try:
            yield
        finally:
            self._evicting = False

    def free(self, slots: Iterable[int]) -> None:
        """Give slots back. Raises ValueError, having changed nothing, for one that is not in use."""
        given = {slot for run in self._used_runs_of(slots) for slot in run.slots()}
        if given & (self._to_release | self._to_erase | self._under_way):
            raise ValueError("a slot was given back already")
        (self._to_release if self._evicting else self._to_erase).update(given)

    def begin_clearing(self, limit: int) -> Clearing:
        """At most ``limit`` slots of each kind, which are being cleared from now on."""
        chosen = Clearing(sorted(self._to_release)[:limit], sorted(self._to_erase)[:limit])
        self._to_release.difference_update(chosen.release)
        self._to_erase.difference_update(chosen.erase)
        self._under_way.update(chosen.release, chosen.erase)
        return chosen

    def cleared(self, slots: Sequence[int]) -> None:
        """The medium has let go of these: they may be used again."""
        self._under_way.difference_update(slots)
        super().free(slots)

    def not_erased(self, slots: Sequence[int]) -> None:
        """It did not work: they stay unusable, and come up again."""
        self._under_way.difference_update(slots)
        self._to_erase.update(slots)
