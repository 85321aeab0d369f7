"""Slots of a lower tier: what was given back is erased before it is handed out again.

Role: `RunAllocator` with one more state between used and free. Invariants: a slot is free, used, given back or being
erased, each exactly once; only a slot proven empty becomes free, so neither an evicted block nor an erased one can be
read from a medium later, whoever looks. Must not know: media, blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvgrove_daemon.cache.runs import RunAllocator


class ErasedSlots(RunAllocator):
    """Free slots of one medium. ``free_count`` counts empty ones; `given_back` and `erasing` count as used."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._given_back: set[int] = set()
        self._erasing: set[int] = set()

    @property
    def unerased(self) -> int:
        """Slots that nobody uses any more and that may still hold something."""
        return len(self._given_back) + len(self._erasing)

    def unerased_slots(self) -> Sequence[int]:
        """The same, one by one: for checks."""
        return sorted(self._given_back | self._erasing)

    def free(self, slots: Iterable[int]) -> None:
        """Give slots back, to be erased. Raises ValueError, having changed nothing, for one that is not in use."""
        given = [slot for run in self._used_runs_of(slots) for slot in run.slots()]
        if not (self._given_back.isdisjoint(given) and self._erasing.isdisjoint(given)):
            raise ValueError("a slot was given back already")
        self._given_back.update(given)

    def to_erase(self, limit: int) -> list[int]:
        """At most ``limit`` slots whose erasing begins now."""
        chosen = sorted(self._given_back)[:limit]
        self._given_back.difference_update(chosen)
        self._erasing.update(chosen)
        return chosen

    def erased(self, slots: Sequence[int]) -> None:
        """These are proven empty: they may be used again."""
        self._erasing.difference_update(slots)
        super().free(slots)

    def not_erased(self, slots: Sequence[int]) -> None:
        """It did not work: they stay unusable, and come up again."""
        self._erasing.difference_update(slots)
        self._given_back.update(slots)
