"""How far an erasure is in one lower tier (I8).

Role: a tier overwrites and reads back whatever was dropped from it (`ClearedSlots`), so an erasure needs no path of its
own there; this watches it to its end. Invariants: EMPTY is said only after all copies that were under way at the drop
have ended, every late reader has gone, and each slot that was still to be cleared after that has been. Slots that come
to be cleared later are not waited for.
Belongs to the core thread. Must not know: media, plans, receipts.
"""

from __future__ import annotations

from kvgrove_daemon.cache.resident import Dropped
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.slots import ClearedSlots
from kvgrove_daemon.cache.tiers.workers import Workers


class TierErasure:
    """Made right after the drop that ``dropped`` counts."""

    def __init__(self, tier: LowerTier, dropped: Dropped, workers: Workers) -> None:
        self.place = tier.name
        self.blocks = dropped.blocks
        self._tier = tier
        self._erasure = dropped.erasure
        self._copies_ended = False
        self._left: set[int] | None = None
        # One thread writes, in order, and conclusions come in the order of ends: when this one comes, every copy that
        # was under way at the drop has been concluded.
        workers.submit("write", _nothing, self._after_copies)

    def _after_copies(self, _: None) -> None:
        self._copies_ended = True

    @property
    def pending(self) -> int:
        """Slots and readers that are still waited for, copies under way counted as one; 0: empty."""
        readers = self._tier.resident.quarantine.owing(self._erasure)
        if not self._copies_ended or readers:
            return max(1, readers)
        uncleared = set(_slots(self._tier).uncleared_slots())
        self._left = uncleared if self._left is None else self._left & uncleared
        return len(self._left)

    @property
    def failed(self) -> bool:
        """Whether the medium refuses, for now: it is tried again without being asked."""
        return bool(self._left) and self._tier.health.reason == "tier_failed"


def _nothing() -> None:
    return None


def _slots(tier: LowerTier) -> ClearedSlots:
    pool = tier.resident.pool
    if not isinstance(pool, ClearedSlots):
        raise TypeError(f"{tier.name}: a lower tier has ClearedSlots, not {type(pool).__name__}")
    return pool
