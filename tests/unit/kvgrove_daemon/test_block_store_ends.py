"""However a build ends, what is not READY leaves nothing behind (I3, I4, I7)."""

from collections.abc import Callable

import pytest
from block_store_rig import BLOCK, ROOT, Events, always, begin, chain_of, make_store, reuse, run_of, serve

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.store import Build, Chain, NoRoom
from kvgrove_protocol.reasons import BypassReason

ENDS: list[Callable[[Build], None]] = [Build.finish, Build.fail, Build.cancel]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("committed", [0, 1, 3])
def test_i4_only_what_was_committed_can_be_found(end: Callable[[Build], None], committed: int) -> None:
    events = Events()
    store = make_store(16, sink=events)
    chain = chain_of(store, run_of(0, 18))
    build = begin(store, chain)
    assert reuse(store, chain) == 0
    build.commit(committed, always)
    check(store)
    end(build)
    end(build)  # ending twice is a no-op
    assert reuse(store, chain) == 4 * committed
    assert events.stored == [*chain.keys[:committed]]
    stats = store.stats()
    assert (stats.free, stats.ready, stats.private, stats.leases, stats.builds) == (16 - committed, committed, 0, 0, 0)
    assert stats.double_releases == 0
    assert sum(stats.ended.values()) == 1
    check(store)


def test_i4_an_error_in_the_scope_fails_the_build() -> None:
    store = make_store(16)
    with pytest.raises(KeyError), begin(store, chain_of(store, run_of(0, 18))):
        raise KeyError
    assert store.stats().ended == {"failed": 1}
    assert store.stats().free == 16
    check(store)


def test_con_10_a_child_without_its_parent_is_never_stored() -> None:
    store = make_store(16)
    fence = iter([True, False, True])
    build = begin(store, chain_of(store, run_of(0, 18)))
    assert len(build.commit(1, lambda: next(fence))) == 1
    assert build.commit(2, lambda: next(fence)) == []
    assert build.commit(4, lambda: next(fence)) == []
    build.finish()
    assert store.stats().bypassed == {BypassReason.FENCE_MOVED: 3}
    assert reuse(store, chain_of(store, run_of(0, 18))) == 4
    check(store)


def test_i3_the_fence_is_asked_again_at_each_commit() -> None:
    store = make_store(16)
    asked: list[int] = []

    def fence() -> bool:
        asked.append(1)
        return True

    build = begin(store, chain_of(store, run_of(0, 18)))
    build.commit(1, fence)
    build.commit(1, fence)  # nothing new, nothing to ask
    build.commit(3, fence)
    assert len(asked) == 2
    build.finish()


def test_i7_a_request_that_stores_nothing_still_computes() -> None:
    store = make_store(16)
    chain = chain_of(store, run_of(0, 18))
    build = store.begin(store.skip(chain), bypass=BypassReason.COLD)
    assert not isinstance(build, NoRoom)
    assert len(build.slots) == 5
    assert build.commit(4, always) == []
    build.add_tokens(range(8))
    assert build.extend() != []
    assert build.commit(6, always) == []
    build.finish()
    assert (store.stats().bypassed, store.stats().ready, store.stats().free) == ({BypassReason.COLD: 6}, 0, 16)
    check(store)


def test_a_cold_chain_needs_no_keys() -> None:
    store = make_store(16)
    chain = Chain("ns", b"throwaway" * 3, run_of(0, 18), [], BLOCK)
    build = store.begin(store.skip(chain), bypass=BypassReason.COLD)
    assert not isinstance(build, NoRoom)
    assert (len(build.slots), build.commit(4, always)) == (5, [])
    build.finish()
    assert (store.stats().bypassed, store.stats().hashed_blocks) == ({BypassReason.COLD: 4}, 0)
    check(store)


def test_a_block_without_a_slot_cannot_be_committed() -> None:
    store = make_store(16)
    build = begin(store, chain_of(store, run_of(0, 8)))
    build.add_tokens(range(8))
    with pytest.raises(ValueError, match="no slot"):
        build.commit(3, always)
    build.finish()
    with pytest.raises(ValueError, match="ended"):
        build.commit(1, always)


# -- drops


def test_i3_a_dropped_block_is_unreadable_at_once_and_its_slot_returns_after_its_reader() -> None:
    events = Events()
    store = make_store(16, sink=events)
    chain = chain_of(store, run_of(0, 17))
    serve(store, chain)
    reader = store.match(chain)
    dropped = store.drop(cause=RemovalCause.VERSION, root=ROOT)
    assert (dropped.blocks, dropped.held) == (4, 4)
    assert events.ready == set()
    assert reuse(store, chain) == 0
    assert (store.stats().retiring, store.stats().free) == (4, 12)
    check(store)
    assert serve(store, chain) == 0  # the same keys, stored anew beside those that are still read
    check(store)
    reader.release()
    assert (store.stats().retiring, store.stats().free, store.stats().ready) == (0, 12, 4)
    assert store.stats().removed == {RemovalCause.VERSION: 4}
    check(store)


def test_i3_a_build_of_what_is_dropped_stores_nothing_more() -> None:
    store = make_store(16)
    chain = chain_of(store, run_of(0, 17))
    build = begin(store, chain)
    build.commit(2, always)
    store.drop(cause=RemovalCause.ERASE, namespace="ns")
    assert build.commit(4, always) == []
    check(store)
    build.finish()
    assert (store.stats().free, store.stats().ready, store.stats().retiring) == (16, 0, 0)
    assert store.stats().known_chain_bytes == 0
    check(store)


def test_i3_a_build_that_stored_nothing_before_the_drop_stores_nothing_after_it() -> None:
    store = make_store(16)
    builds = [
        begin(store, chain_of(store, run_of(0, 17), folds={1: b"x"}, documents={1: ("handbook",)})) for _ in range(2)
    ]
    other = begin(store, chain_of(store, run_of(50, 17)))
    store.drop(cause=RemovalCause.VERSION, namespace="ns", document="handbook")
    check(store)
    assert [build.commit(4, always) for build in builds] == [[], []]
    assert len(other.commit(4, always)) == 4
    assert store.stats().bypassed == {BypassReason.FENCE_MOVED: 8}


def test_dropping_a_document_takes_it_and_what_follows_it_and_nothing_else() -> None:
    store = make_store(64)
    folds = {2: b"doc-v1", 5: b"private"}
    with_document = chain_of(store, run_of(0, 33), folds=folds, documents={2: ("handbook",)})
    without = chain_of(store, run_of(0, 33), folds={5: b"private"})
    other = chain_of(store, run_of(0, 33), folds={2: b"x"}, documents={2: ("manual",)})
    for chain in (with_document, without, other):
        serve(store, chain)
    assert store.stats().ready == 2 + 6 + 6 + 6
    dropped = store.drop(cause=RemovalCause.VERSION, namespace="ns", document="handbook")
    assert (dropped.blocks, dropped.held) == (6, 0)
    assert [reuse(store, chain) for chain in (with_document, without, other)] == [8, 32, 32]
    check(store)
    assert store.drop(cause=RemovalCause.VERSION, namespace="elsewhere", document="manual").blocks == 0


def test_dropping_one_namespace_leaves_the_others() -> None:
    store = make_store(64)
    mine = chain_of(store, run_of(0, 9), namespace="a", root=b"a" * 32)
    theirs = chain_of(store, run_of(0, 9), namespace="b", root=b"b" * 32)
    serve(store, mine)
    serve(store, theirs)
    assert {name: usage.blocks for name, usage in store.usage().items()} == {"a": 2, "b": 2}
    store.drop(cause=RemovalCause.ERASE, namespace="a")
    assert {name: usage.bytes for name, usage in store.usage().items()} == {"b": 200}
    assert (reuse(store, mine), reuse(store, theirs)) == (0, 8)
    with pytest.raises(ValueError, match="name a namespace"):
        store.drop(cause=RemovalCause.ERASE)
    assert store.clear().blocks == 2
    assert (store.stats().free, store.usage()) == (64, {})
    check(store)
