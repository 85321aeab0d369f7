"""What the plan says of room, and how much of it a pool can give (DESIGN section 7).

Role: check quotas against pools, and turn the plan's words into the store's settings. Invariants: a quota that cannot
be met leaves that namespace, and nobody else, on its last good one; everything else of the same plan applies anyway.
Where the last good one does not fit any more either, its floor is given up: a promise that cannot be kept is none.
Must not know: blocks, threads, who reports the problems.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvgrove_daemon.cache.resident import ResidentBlocks
from kvgrove_daemon.cache.rooms import UNLIMITED, NamespaceRoom
from kvgrove_daemon.namespaces import PlanProblem
from kvgrove_protocol.control import EvictionPlan, QuotaPlan, TtlPlan

EXCEEDS_POOL: Final = "QuotaExceedsPool"
FLOOR_ABOVE_CEILING: Final = "QuotaFloorAboveCeiling"
_POLICIES: Final[Mapping[str, str]] = {"lru": "lru", "s3fifo": "s3fifo", "costAware": "cost-aware"}
_NO_QUOTA: Final = QuotaPlan()


@dataclass(frozen=True)
class RoomPlan:
    """What the plan says of one namespace's room."""

    generation: bytes
    """That it is served by; empty: none yet."""
    quota: Mapping[str, QuotaPlan]
    """By tier; a tier without one has no floor, and the pool for its ceiling."""
    tenant_share: int
    ttl: TtlPlan
    eviction: EvictionPlan

    def room(self, quota: QuotaPlan, block_bytes: int) -> NamespaceRoom:
        """Settings for a store of blocks of ``block_bytes``, under ``quota`` of its tier."""
        return NamespaceRoom(
            floor=quota.floor // block_bytes,
            ceiling=quota.ceiling // block_bytes if quota.ceiling else None,
            tenant_share=self.tenant_share,
            ttl_s=self.ttl.seconds,
            sliding=self.ttl.sliding,
            policy=_POLICIES.get(self.eviction.policy),
            high_watermark=self.eviction.high_watermark,
            low_watermark=self.eviction.low_watermark,
            max_branches=self.eviction.max_branches,
        )


class QuotaVerdict(NamedTuple):
    """``reason`` and ``message`` say what is wrong and the cure; empty where it is right."""

    ok: bool
    reason: str = ""
    message: str = ""


def check_quota(quota: QuotaPlan, tier: str, pool_bytes: int, floors_of_others: int) -> QuotaVerdict:
    """Whether a tier of ``pool_bytes`` can promise ``quota`` beside the floors that it has promised to others. Pure."""
    if quota.ceiling and quota.floor > quota.ceiling:
        return QuotaVerdict(
            False,
            FLOOR_ABOVE_CEILING,
            f"spec.quota.{tier}: the floor of {quota.floor} bytes is above the ceiling of {quota.ceiling}; "
            "lower the floor or raise the ceiling",
        )
    if quota.floor and quota.floor + floors_of_others > pool_bytes:
        return QuotaVerdict(
            False,
            EXCEEDS_POOL,
            f"spec.quota.{tier}.floor: {quota.floor} bytes beside floors of {floors_of_others} bytes of others exceed "
            f"the pool of {pool_bytes}; lower a floor or enlarge the pool",
        )
    return QuotaVerdict(True)


class Settled(NamedTuple):
    in_force: dict[str, QuotaPlan]
    problems: dict[str, PlanProblem]


def settle(wanted: Mapping[str, QuotaPlan], good: Mapping[str, QuotaPlan], tier: str, pool_bytes: int) -> Settled:
    """Quotas of one pool, by namespace: the wanted one where it can be met, else the last ``good`` one. Pure.

    Floors that fall are settled first, so that what they give back can be promised anew by the same plan; then by UID,
    so that the outcome does not hang on any order.
    """

    def rise(uid: str) -> tuple[int, str]:
        return wanted[uid].floor - good.get(uid, _NO_QUOTA).floor, uid

    promised = {uid: good.get(uid, _NO_QUOTA).floor for uid in wanted}
    settled = Settled({}, {})
    for uid in sorted(wanted, key=rise):
        others = sum(promised.values()) - promised[uid]
        verdict = check_quota(wanted[uid], tier, pool_bytes, others)
        quota = wanted[uid]
        if not verdict.ok:
            settled.problems[uid] = PlanProblem(verdict.reason, verdict.message)
            quota = good.get(uid, _NO_QUOTA)
            if not check_quota(quota, tier, pool_bytes, others).ok:
                quota = QuotaPlan(ceiling=quota.ceiling)
        settled.in_force[uid] = quota
        promised[uid] = quota.floor
    return settled


class TierQuotas:
    """The quotas in force among the blocks of one layout in one tier."""

    def __init__(self, tier: str, resident: ResidentBlocks, block_bytes: int) -> None:
        self._tier = tier
        self._resident = resident
        self._block_bytes = block_bytes
        self._good: dict[str, QuotaPlan] = {}

    def apply(self, rooms: Mapping[str, RoomPlan], generations: Set[bytes]) -> dict[str, PlanProblem]:
        """Put ``rooms`` into force; namespace UID -> why its quota was not.

        ``generations``: those whose blocks lie here. Floors are promised only to namespaces that they serve: what a
        namespace left behind under another layout stays on nobody's promise.
        """
        quotas = {uid: room.quota.get(self._tier, _NO_QUOTA) for uid, room in rooms.items()}
        at_home = {uid: quota for uid, quota in quotas.items() if rooms[uid].generation in generations}
        settled = settle(at_home, self._good, self._tier, self._resident.pool.num_slots * self._block_bytes)
        self._good = settled.in_force
        for gone in self._resident.rooms.all().keys() - rooms.keys():
            self._resident.set_room(gone, UNLIMITED)
        for uid, room in rooms.items():
            quota = settled.in_force.get(uid, QuotaPlan(ceiling=quotas[uid].ceiling))
            self._resident.set_room(uid, room.room(quota, self._block_bytes))
        return settled.problems
