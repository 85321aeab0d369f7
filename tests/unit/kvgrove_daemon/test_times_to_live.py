"""Blocks that outlive their time: not matched from that moment, reclaimed under a cause of their own."""

from block_store_rig import Clock, chain_of, make_store, reuse, run_of, serve

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_protocol.reasons import MissReason


def living(clock: Clock, *, sliding: bool) -> BlockStore:
    store = make_store(60, clock=clock)
    store.set_room("ns", NamespaceRoom(ttl_s=100.0, sliding=sliding))
    return store


def test_a_sliding_time_begins_anew_with_each_use() -> None:
    clock = Clock()
    store = living(clock, sliding=True)
    chain = chain_of(store, run_of(0, 13))
    serve(store, chain)
    for _ in range(5):
        clock.now += 99
        assert reuse(store, chain) == 12
    clock.now += 100
    assert reuse(store, chain) == 0
    check(store)


def test_a_fixed_time_counts_from_the_computation() -> None:
    clock = Clock()
    store = living(clock, sliding=False)
    chain = chain_of(store, run_of(0, 13))
    serve(store, chain)
    clock.now += 99
    assert reuse(store, chain) == 12
    clock.now += 1
    assert reuse(store, chain) == 0


def test_what_was_not_used_of_a_chain_expires_before_what_was() -> None:
    clock = Clock()
    store = living(clock, sliding=True)
    serve(store, chain_of(store, run_of(0, 25)))
    clock.now += 60
    assert reuse(store, chain_of(store, run_of(0, 9))) == 8
    clock.now += 60
    assert reuse(store, chain_of(store, run_of(0, 25))) == 8


def test_expired_blocks_are_explained_and_reclaimed_under_their_own_cause() -> None:
    clock = Clock()
    store = living(clock, sliding=True)
    old, new = chain_of(store, run_of(0, 13)), chain_of(store, run_of(100, 13))
    serve(store, old)
    clock.now += 60
    serve(store, new)
    assert store.relieve() == 0
    clock.now += 60
    assert store.gone(old.keys[1]) is MissReason.EXPIRED
    assert [store.relieve(limit=2), store.relieve(limit=2)] == [2, 1]
    assert store.gone(old.keys[1]) is MissReason.EXPIRED
    assert store.stats().removed == {RemovalCause.TTL: 3}
    assert store.stats().ready == 3
    check(store)


def test_an_expired_parent_takes_its_younger_children_along() -> None:
    clock = Clock()
    store = living(clock, sliding=False)
    serve(store, chain_of(store, run_of(0, 9)))
    clock.now += 60
    serve(store, chain_of(store, run_of(0, 17)))
    clock.now += 60
    assert reuse(store, chain_of(store, run_of(0, 17))) == 0
    assert store.relieve() == 4
    check(store)


def test_what_is_computed_anew_before_relief_came_is_readable_again() -> None:
    clock = Clock()
    store = living(clock, sliding=False)
    chain = chain_of(store, run_of(0, 13))
    serve(store, chain)
    clock.now += 100
    assert serve(store, chain) == 0
    assert reuse(store, chain) == 12
    assert store.ready_blocks(chain) == 3
    check(store)


def test_an_expired_block_that_is_read_keeps_its_slot_until_the_reader_goes() -> None:
    clock = Clock()
    store = living(clock, sliding=False)
    serve(store, chain_of(store, run_of(0, 13)))
    match = store.match(chain_of(store, run_of(0, 13)))
    clock.now += 100
    assert store.relieve() == 3
    assert store.stats().retiring == 3
    match.release()
    assert store.stats().retiring == 0
    check(store)
