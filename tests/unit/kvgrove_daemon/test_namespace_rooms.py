"""Who gives way to whom: floors, ceilings, shares, watermarks, and policies that namespaces choose (I11, ISO-16)."""

import pytest
from block_store_rig import BLOCK, begin, caller, chain_of, make_store, reuse, run_of, serve

from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import UNLIMITED, NamespaceRoom
from kvgrove_daemon.cache.store import BlockStore, Chain, NoRoom, StoreLimits


def ask(store: BlockStore, namespace: str, start: int, count: int = 9) -> Chain:
    return chain_of(store, run_of(start, count), namespace=namespace, root=namespace[:1].encode() * 32)


def flood(store: BlockStore, policy_rounds: int) -> list[int]:
    """A sends 100 unique prompts for each one of B's four, which take turns; B's reused tokens, round by round."""
    hits = []
    for turn in range(policy_rounds):
        hits.append(serve(store, ask(store, "b", 10_000_000 + 100 * (turn % 4))))
        for n in range(100):
            serve(store, ask(store, "a", 1000 * turn + 10 * n))
    return hits


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_iso_16_a_flood_leaves_a_quiet_namespace_its_floor(policy: str) -> None:
    store = make_store(40, policy=policy)
    store.set_room("b", NamespaceRoom(floor=8))
    hits = flood(store, 20)
    assert hits[4:] == [8] * 16
    assert store.usage()["b"].blocks == 8
    check(store)


def test_iso_16_without_a_floor_the_same_flood_takes_everything() -> None:
    store = make_store(40)
    assert flood(store, 20) == [0] * 20


def test_iso_16_a_floor_is_no_more_than_was_promised() -> None:
    """With half of its working set for a floor, B keeps that many blocks and no more of them."""
    store = make_store(40, policy="lru")
    store.set_room("b", NamespaceRoom(floor=4))
    flood(store, 20)
    assert store.usage()["b"].blocks == 4


def test_iso_16_over_its_share_a_tenant_evicts_its_own_oldest_and_nobody_elses() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(ceiling=40, tenant_share=50))
    quiet = chain_of(store, run_of(5_000_000, 9), writer=Writer(caller(2)))
    serve(store, quiet)
    for n in range(50):
        serve(store, chain_of(store, run_of(100 * n, 9), writer=Writer(caller(1))))
        assert store._resident.index.per_group[("ns", caller(1).tenant)] <= 20  # type: ignore[index]
    assert reuse(store, quiet) == 8
    assert [reuse(store, chain_of(store, run_of(100 * n, 9))) for n in (39, 40, 49)] == [0, 8, 8]
    assert store.stats().removed == {RemovalCause.QUOTA: 80}
    check(store)


def test_declared_text_is_charged_to_no_tenant() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(tenant_share=4))
    serve(store, chain_of(store, run_of(0, 33), writer=Writer(caller(1), private_from=6)))
    assert store.stats().ready == 8
    serve(store, chain_of(store, run_of(0, 53), writer=Writer(caller(1), private_from=6)))
    assert store.stats().ready == 10
    assert store.stats().bypassed != {}


def test_beyond_a_share_what_does_not_fit_is_not_stored() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(tenant_share=4))
    serve(store, chain_of(store, run_of(0, 41), writer=Writer(caller(1))))
    assert store.stats().ready == 4
    check(store)


def test_a_namespace_below_its_floor_takes_from_others_before_it_takes_from_itself() -> None:
    store = make_store(12)
    store.set_room("b", NamespaceRoom(floor=6))
    for n in range(2):
        serve(store, ask(store, "b", 100 * n))
    for n in range(4):
        serve(store, ask(store, "a", 1000 + 100 * n))
    serve(store, ask(store, "b", 200))
    assert store.usage()["b"].blocks == 6
    assert reuse(store, ask(store, "b", 0)) == 8


def test_mem_02_floors_of_others_are_no_room_for_somebody_else() -> None:
    store = make_store(12)
    store.set_room("b", NamespaceRoom(floor=8))
    for n in range(4):
        serve(store, ask(store, "b", 100 * n))
    match = store.match(ask(store, "a", 1000, 21))
    assert store.begin(match) == NoRoom(wanted=6, free=4, evictable=0)
    assert store.usage()["b"].blocks == 8
    check(store)


def test_relief_goes_from_the_high_to_the_low_mark_of_the_namespace_and_begins_no_sooner() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(ceiling=40, high_watermark=90, low_watermark=50))
    serve(store, chain_of(store, run_of(0, 36 * BLOCK + 1)))
    assert store.relieve() == 0
    serve(store, chain_of(store, run_of(1000, BLOCK + 1)))
    assert [store.relieve(limit=10) for _ in range(3)] == [10, 7, 0]
    assert store.stats().ready == 20
    assert store.stats().removed == {RemovalCause.QUOTA: 17}


def test_relief_of_a_namespace_without_a_ceiling_counts_percents_of_the_pool() -> None:
    store = make_store(40)
    store.set_room("ns", NamespaceRoom(high_watermark=50, low_watermark=25))
    serve(store, chain_of(store, run_of(0, 21 * BLOCK + 1)))
    assert store.relieve() == 11
    assert store.stats().removed == {RemovalCause.PRESSURE: 11}


def test_relief_brings_tenants_below_a_lowered_share() -> None:
    store = make_store(100)
    serve(store, chain_of(store, run_of(0, 41), writer=Writer(caller(1))))
    serve(store, chain_of(store, run_of(500, 41), writer=Writer(caller(2))))
    store.set_room("ns", NamespaceRoom(tenant_share=8))
    assert store.relieve() == 4
    assert store.relieve() == 0


def test_what_requests_evict_themselves_is_counted_and_relief_spares_it() -> None:
    limits = StoreLimits(low_free=6, high_free=12)
    eager, lazy = make_store(40, limits=limits), make_store(40)
    for n in range(60):
        for store in (eager, lazy):
            serve(store, chain_of(store, run_of(100 * n, 9)))
        eager.relieve()
    assert eager.stats().evicted_for_requests == 0
    assert lazy.stats().evicted_for_requests == lazy.stats().removed[RemovalCause.PRESSURE] > 0


def test_namespaces_under_policies_of_their_own_give_way_in_the_order_of_one_clock() -> None:
    store = make_store(20, policy="lru")
    store.set_room("b", NamespaceRoom(policy="cost-aware"))
    for n in range(4):
        serve(store, ask(store, "a", 100 * n))
        serve(store, ask(store, "b", 5000 + 100 * n))
    assert store.evict_to(8, limit=4) == 4
    assert [reuse(store, ask(store, "a", 0)), reuse(store, ask(store, "b", 5000))] == [0, 0]
    assert [reuse(store, ask(store, "a", 100)), reuse(store, ask(store, "b", 5100))] == [8, 8]
    check(store)


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_a_change_of_policy_loses_no_leaf_and_keeps_their_order(kind: str) -> None:
    store = make_store(40, policy="lru")
    for n in range(5):
        serve(store, ask(store, "a", 100 * n))
    reuse(store, ask(store, "a", 0))
    held = begin(store, ask(store, "a", 100))
    store.set_room("a", NamespaceRoom(policy=kind))
    check(store)
    store.evict_to(store.free_slots + 2, limit=2)
    assert [reuse(store, ask(store, "a", start)) for start in (0, 100, 200, 300, 400)] == [8, 8, 0, 8, 8]
    held.finish()
    store.set_room("a", UNLIMITED)
    check(store)
    store.clear()
    check(store)


@pytest.mark.parametrize("kind", sorted(POLICIES))
def test_one_namespace_under_a_chosen_policy_fares_as_under_a_pool_of_that_policy(kind: str) -> None:
    chosen, own = make_store(30, policy="lru"), make_store(30, policy=kind)
    chosen.set_room("ns", NamespaceRoom(policy=kind))
    for n in range(300):
        start = 100 * (n * n % 37)
        assert serve(chosen, chain_of(chosen, run_of(start, 17))) == serve(own, chain_of(own, run_of(start, 17)))
    check(chosen)


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor": 5, "ceiling": 4},
        {"floor": -1},
        {"tenant_share": 0},
        {"low_watermark": 90, "high_watermark": 80},
        {"max_branches": 0},
    ],
)
def test_settings_that_contradict_themselves_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_", maxsplit=1)[0]):
        NamespaceRoom(**wrong)
