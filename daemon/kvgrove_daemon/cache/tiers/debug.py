"""A proof, for tests and incident dumps, that a lower tier is whole at this moment: see `cache.debug`."""

from __future__ import annotations

from kvgrove_daemon.cache.debug import BrokenInvariant, check_resident, check_slots
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.slots import ClearedSlots


def check_tier(tier: LowerTier) -> None:
    """Raise `BrokenInvariant` unless ``tier`` is rooted and whole, and its slots and bytes add up."""
    check_resident(tier.resident)
    slots = tier.resident.pool
    if not isinstance(slots, ClearedSlots):
        raise BrokenInvariant(f"{tier.name}: slots are handed out without being cleared")
    private = check_slots(tier.resident, slots.uncleared_slots())
    stats = tier.stats()
    if len(private) != stats.private:
        raise BrokenInvariant(f"{tier.name}: {len(private)} slots are private, {stats.private} count as such")
    total = stats.free + stats.ready + stats.retiring + stats.private + stats.clearing
    if total != stats.slots:
        raise BrokenInvariant(f"{tier.name}: {total} slots are accounted for, of {stats.slots}")
    used = sum(usage.bytes for usage in tier.usage().values())
    if used != (stats.ready + stats.retiring) * tier.block_bytes:
        raise BrokenInvariant(f"{tier.name}: {used} bytes count as used by {stats.ready + stats.retiring} blocks")
