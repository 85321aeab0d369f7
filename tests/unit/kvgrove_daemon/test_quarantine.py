"""Slots of erased blocks: out of the pool until somebody says that their bytes are gone (I5, I8)."""

from collections.abc import Sequence

import pytest
from block_store_rig import begin, caller, chain_of, make_store, run_of, serve

from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.store import BlockStore, Chain, NoRoom

ALICE, BOB = caller(1, 1), caller(1, 2)


class Wiper:
    """Notes what it is told to wipe."""

    def __init__(self, store: BlockStore) -> None:
        self.late: list[tuple[frozenset[int], tuple[int, ...]]] = []
        store.wipe_with(self)

    def __call__(self, erasures: frozenset[int], slots: Sequence[int]) -> None:
        self.late.append((erasures, tuple(slots)))


def by_alice(store: BlockStore, start: int = 0, count: int = 13) -> Chain:
    return chain_of(store, run_of(start, count), writer=Writer(ALICE))


def test_freed_slots_of_an_erasure_are_named_and_nobody_gets_them_before_they_are_wiped() -> None:
    store = make_store(6)
    Wiper(store)
    serve(store, by_alice(store))
    dropped = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    assert (len(dropped.slots), store.stats().quarantined, store.free_slots) == (3, 3, 3)
    match = store.match(chain_of(store, run_of(500, 16)))
    assert store.begin(match) == NoRoom(wanted=4, free=3, evictable=0)
    check(store)
    store.release(dropped.slots)
    build = store.begin(match)
    assert not isinstance(build, NoRoom)
    build.finish()
    check(store)


def test_with_nobody_to_wipe_nothing_is_held_back() -> None:
    store = make_store(6)
    serve(store, by_alice(store))
    assert store.drop(cause=RemovalCause.ERASE, contributor=ALICE).slots == ()
    assert store.free_slots == 6


def test_slots_of_blocks_that_are_still_read_are_named_when_their_reader_goes() -> None:
    store = make_store(8)
    wiper = Wiper(store)
    serve(store, by_alice(store))
    reader = store.match(by_alice(store))
    slots = tuple(reader.slots)
    dropped = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    assert (dropped.held, dropped.slots, store.owing(dropped.erasure)) == (3, (), 3)
    assert wiper.late == []
    reader.release()
    assert sorted(slot for _, named in wiper.late for slot in named) == sorted(slots)
    assert {erasures for erasures, _ in wiper.late} == {frozenset({dropped.erasure})}
    assert (store.owing(dropped.erasure), store.stats().quarantined) == (0, 3)
    assert not store._resident.index._tokens.any()
    check(store)


def test_blocks_that_were_retired_before_and_are_read_until_now_belong_to_the_erasure_too() -> None:
    store = make_store(8)
    wiper = Wiper(store)
    serve(store, by_alice(store))
    reader = store.match(by_alice(store))
    assert store.drop(cause=RemovalCause.VERSION, namespace="ns").held == 3
    dropped = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    assert (dropped.blocks, store.owing(dropped.erasure)) == (0, 3)
    reader.release()
    assert len(wiper.late) == 3
    check(store)


def test_slots_of_a_build_under_way_are_named_when_it_ends_and_by_each_erasure_once() -> None:
    store = make_store(8)
    wiper = Wiper(store)
    build = begin(store, by_alice(store))
    slots = set(build.private_slots())
    one = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    two = store.drop(cause=RemovalCause.ERASE, namespace="ns")
    assert (one.builds, two.builds) == (1, 1)
    build.cancel()
    assert [(erasures, set(named)) for erasures, named in wiper.late] == [({one.erasure, two.erasure}, slots)]
    assert (store.owing(one.erasure), store.owing(two.erasure)) == (0, 0)
    check(store)


def test_a_build_of_a_chain_from_before_the_erasure_has_its_slots_wiped() -> None:
    store = make_store(8)
    wiper = Wiper(store)
    old = by_alice(store)
    dropped = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    serve(store, old)
    assert [erasures for erasures, _ in wiper.late] == [{dropped.erasure}]
    assert store.stats().ready == 0
    check(store)


def test_another_users_build_goes_on_and_only_what_it_leaves_unstored_is_wiped() -> None:
    store = make_store(8)
    wiper = Wiper(store)
    build = begin(store, chain_of(store, run_of(0, 13), writer=Writer(BOB)))
    store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    build.commit(3, lambda: True)
    left = tuple(build.private_slots())  # handed out before the erasure, and perhaps alice's before that
    build.finish()
    assert store.stats().ready == 3
    assert [named for _, named in wiper.late] == [left]


def test_free_slots_that_were_written_to_are_dirty_until_they_are_wiped() -> None:
    store = make_store(12)
    Wiper(store)
    serve(store, by_alice(store, 0, 9))
    serve(store, chain_of(store, run_of(300, 13), writer=Writer(BOB)))
    store.evict_to(12, limit=2)  # alice's two, by age: their bytes are still there
    assert store.take_dirty(0) == ()
    dirty = [*store.take_dirty(1), *store.take_dirty(100)]
    assert len(dirty) == 3  # with the slot of bob's last token
    assert store.take_dirty(100) == ()
    check(store)
    store.release(dirty)
    assert store.take_dirty(100) == ()
    assert store.free_slots == 9
    check(store)


def test_releasing_what_is_not_in_quarantine_changes_nothing() -> None:
    store = make_store(6)
    Wiper(store)
    serve(store, by_alice(store))
    dropped = store.drop(cause=RemovalCause.ERASE, contributor=ALICE)
    with pytest.raises(ValueError, match="not in quarantine"):
        store.release([*dropped.slots, 5])
    assert store.stats().quarantined == 3
    check(store)
