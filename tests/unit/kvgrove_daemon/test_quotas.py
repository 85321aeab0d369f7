"""Quotas that a pool can give, and what happens to those that it cannot (DESIGN section 7)."""

import pytest
from block_store_rig import chain_of, make_store, run_of, serve
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_daemon.cache.rooms import UNLIMITED
from kvgrove_daemon.quotas import EXCEEDS_POOL, FLOOR_ABOVE_CEILING, RoomPlan, TierQuotas, check_quota, settle
from kvgrove_protocol.control import EvictionPlan, QuotaPlan, TtlPlan

POOL = 4000
"""40 blocks of 100 bytes."""


def plan(floor: int = 0, ceiling: int = 0, *, generation: bytes = b"g", tier: str = "host") -> RoomPlan:
    return RoomPlan(generation, {tier: QuotaPlan(floor=floor, ceiling=ceiling)}, 100, TtlPlan(), EvictionPlan())


def quotas(**floors: int) -> dict[str, QuotaPlan]:
    return {uid: QuotaPlan(floor=floor) for uid, floor in floors.items()}


@pytest.mark.parametrize(
    ("quota", "others", "reason"),
    [
        (QuotaPlan(), POOL, ""),
        (QuotaPlan(floor=POOL), 0, ""),
        (QuotaPlan(floor=POOL), 1, EXCEEDS_POOL),
        (QuotaPlan(floor=20, ceiling=10), 0, FLOOR_ABOVE_CEILING),
        (QuotaPlan(floor=10, ceiling=10), 0, ""),
        (QuotaPlan(ceiling=2 * POOL), 0, ""),
    ],
)
def test_a_quota_is_checked_and_its_message_names_the_field(quota: QuotaPlan, others: int, reason: str) -> None:
    verdict = check_quota(quota, "host", POOL, others)
    assert (verdict.ok, verdict.reason) == (not reason, reason)
    assert verdict.message.startswith("spec.quota.host" if reason else "")


def test_one_impossible_floor_stays_on_the_last_good_one_and_touches_nobody_else() -> None:
    good = quotas(a=1000, b=1000)
    settled = settle(quotas(a=1500, b=3500), good, "host", POOL)
    assert settled.in_force == quotas(a=1500, b=1000)
    assert settled.problems.keys() == {"b"}


def test_what_one_namespace_gives_back_can_be_promised_to_another_by_the_same_plan() -> None:
    settled = settle(quotas(a=3000, b=500), quotas(a=1000, b=3000), "host", POOL)
    assert (settled.in_force, settled.problems) == (quotas(a=3000, b=500), {})


def test_a_newcomer_without_a_good_quota_has_no_floor() -> None:
    settled = settle(quotas(a=4000, b=100), quotas(a=4000), "host", POOL)
    assert settled.in_force == quotas(a=4000, b=0)


def test_a_last_good_quota_that_does_not_fit_any_more_keeps_its_ceiling_alone() -> None:
    good = {"a": QuotaPlan(floor=3000, ceiling=3500)}
    settled = settle(quotas(a=9000), good, "host", 2000)
    assert settled.in_force == {"a": QuotaPlan(ceiling=3500)}


uids = st.sampled_from("abcde")
floors = st.dictionaries(uids, st.builds(QuotaPlan, floor=st.integers(0, 3000), ceiling=st.sampled_from([0, 1500])))


@given(floors, floors)
def test_promised_floors_never_exceed_the_pool_whatever_is_asked(first: dict, second: dict) -> None:  # type: ignore[type-arg]
    good = settle(first, {}, "host", POOL).in_force
    settled = settle(second, good, "host", POOL)
    assert settled.in_force.keys() == second.keys()
    assert sum(quota.floor for quota in settled.in_force.values()) <= POOL
    assert all(settled.in_force[uid] == second[uid] for uid in second.keys() - settled.problems.keys())
    again = settle(second, settled.in_force, "host", POOL)
    assert again.in_force == settled.in_force  # applying one plan twice changes nothing


def test_plans_become_settings_in_blocks_and_gone_namespaces_have_none() -> None:
    store = make_store(40)
    tier = TierQuotas("host", store.resident, store.block_bytes)
    assert tier.apply({"a": plan(1050, 2050), "b": plan(tier="disk")}, {b"g"}) == {}
    room = store.room("a")
    assert (room.floor, room.ceiling, room.policy, room.ttl_s) == (10, 20, "cost-aware", 86400.0)
    assert (room.high_watermark, room.low_watermark, room.max_branches) == (90, 80, 1024)
    assert store.room("b").floor == 0
    tier.apply({"b": plan()}, {b"g"})
    assert store.room("a") == UNLIMITED


def test_quota_ok_is_false_for_the_one_and_the_rest_of_its_plan_applies() -> None:
    store = make_store(40)
    tier = TierQuotas("host", store.resident, store.block_bytes)
    tier.apply({"a": plan(1000), "b": plan(1000)}, {b"g"})
    longer = RoomPlan(b"g", {"host": QuotaPlan(floor=9000)}, 50, TtlPlan(seconds=5.0), EvictionPlan(policy="lru"))
    problems = tier.apply({"a": plan(1000), "b": longer}, {b"g"})
    assert {uid: problem.code for uid, problem in problems.items()} == {"b": EXCEEDS_POOL}
    room = store.room("b")
    assert (room.floor, room.ttl_s, room.tenant_share, room.policy) == (10, 5.0, 50, "lru")


def test_floors_are_promised_only_where_the_namespace_is_served() -> None:
    store = make_store(40)
    tier = TierQuotas("host", store.resident, store.block_bytes)
    assert tier.apply({"a": plan(3000), "b": plan(3000, 3500, generation=b"other")}, {b"g"}) == {}
    assert (store.room("a").floor, store.room("b").floor, store.room("b").ceiling) == (30, 0, 35)


def test_settings_may_change_while_blocks_are_there() -> None:
    store = make_store(40)
    tier = TierQuotas("host", store.resident, store.block_bytes)
    serve(store, chain_of(store, run_of(0, 81), namespace="a"))
    tier.apply({"a": plan(0, 500)}, {b"g"})
    while store.relieve():
        pass
    assert store.usage()["a"].blocks == 4  # 80 percent of five
