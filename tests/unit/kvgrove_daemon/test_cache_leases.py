"""Leases: who reads, counted once and given back once (I5, CON-02, CON-06)."""

import pytest
from block_store_rig import always, begin, chain_of, make_store, reuse, run_of, serve

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.leases import NO_BLOCK, LeaseTable
from kvgrove_daemon.cache.store import NoRoom


def test_con_06_releasing_twice_is_a_counted_no_op() -> None:
    idle: list[int] = []
    table = LeaseTable(idle.append)
    first, second = table.take(7), table.take(7)
    assert first.release()
    assert not first.release()
    assert not first.release()
    assert (table.count(7), table.active, table.double_releases, idle) == (1, 1, 2, [])
    assert second.release()
    assert (table.count(7), table.active, idle) == (0, 0, [7])


def test_con_06_two_scopes_that_end_the_same_lease() -> None:
    store = make_store(8)
    chain = chain_of(store, run_of(0, 9))
    serve(store, chain)
    lease = store.match(chain).take_lease()
    with lease:
        lease.release()
    lease.release()
    assert (store.stats().leases, store.stats().double_releases) == (0, 1)
    check(store)


def test_i5_a_lease_ends_with_its_scope_also_by_an_error() -> None:
    table = LeaseTable(lambda _block: None)
    with pytest.raises(KeyError), table.take(3):
        raise KeyError
    assert (table.active, len(table)) == (0, 0)


def test_a_moved_lease_covers_the_new_tail_before_it_leaves_the_old_one() -> None:
    seen: list[int] = []
    table = LeaseTable(lambda _block: seen.append(table.count(9)))
    lease = table.take(3)
    lease.move(9)
    assert (seen, table.count(3), table.count(9)) == ([1], 0, 1)
    lease.release()
    with pytest.raises(ValueError, match="released"):
        lease.move(4)


def test_a_lease_on_nothing_counts_as_active_and_covers_nothing() -> None:
    table = LeaseTable(lambda _block: None)
    with table.take(NO_BLOCK):
        assert (table.active, len(table)) == (1, 0)
    assert table.active == 0


def test_con_02_a_leased_leaf_and_its_ancestors_survive_full_pressure() -> None:
    store = make_store(8)
    held = chain_of(store, run_of(0, 13))
    serve(store, held)
    match = store.match(held)
    others = [chain_of(store, run_of(1000 * n, 9)) for n in range(1, 20)]
    for other in others:
        serve(store, other)
        assert match.reused_tokens == reuse(store, held) == 12
        check(store)
    assert store.evict_to(8, limit=100) == 4
    assert reuse(store, held) == 12
    match.release()
    gone = [reuse(store, held)]
    while store.evict_to(store.stats().free + 1, limit=1):
        gone.append(reuse(store, held))
    assert gone == [12, 8, 4, 0]


def test_con_07_of_32_victims_the_one_that_is_read_goes_later() -> None:
    store = make_store(40)
    chains = [chain_of(store, run_of(100 * n, 5)) for n in range(32)]
    for chain in chains:
        serve(store, chain)
    reader = store.match(chains[17])
    assert store.evict_to(40, limit=32) == 31
    assert reader.slots
    assert reuse(store, chains[17]) == 4
    check(store)
    reader.release()
    assert store.evict_to(40, limit=32) == 1
    assert store.stats().free == 40


def test_con_05_what_a_match_found_stays_until_it_is_used() -> None:
    store = make_store(24)
    chain = chain_of(store, run_of(0, 81))
    serve(store, chain)
    match = store.match(chain)
    assert match.blocks == 20
    assert store.evict_to(24, limit=100) == 0
    build = store.begin(match)
    assert not isinstance(build, NoRoom)
    assert build.slots[:20] == match.slots
    build.finish()
    check(store)


def test_i5_a_build_holds_what_it_reuses_and_what_it_stored() -> None:
    store = make_store(10)
    serve(store, chain_of(store, run_of(0, 8)))
    chain = chain_of(store, run_of(0, 21))
    build = begin(store, chain)
    build.commit(4, always)
    assert store.evict_to(10, limit=100) == 0
    check(store)
    build.finish()
    assert store.evict_to(10, limit=100) == 4
