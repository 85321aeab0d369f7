"""Room: who gives way, when, and what happens when nobody can (I5, I6, I11; MEM cases)."""

import random
import tracemalloc

import numpy as np
from block_store_rig import BLOCK, Events, always, begin, chain_of, make_store, reuse, run_of, serve, tokens

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import NoRoom, StoreLimits
from kvgrove_protocol.reasons import BypassReason


def test_mem_02_no_room_is_an_answer_and_ends_with_one_lease() -> None:
    store = make_store(10)
    readers = []
    for n in range(5):
        serve(store, chain_of(store, run_of(100 * n, 8)))
        readers.append(store.match(chain_of(store, run_of(100 * n, 9))))
    wanted = store.match(chain_of(store, run_of(900, 8)))
    refused = store.begin(wanted)
    assert refused == NoRoom(wanted=2, free=0, evictable=0)
    assert all(reuse(store, chain_of(store, run_of(100 * n, 9))) == 8 for n in range(5))
    check(store)
    readers[2].release()
    build = store.begin(wanted)
    assert not isinstance(build, NoRoom)
    build.finish()
    assert store.stats().no_room == 1
    check(store)


def test_mem_02_a_hopeless_wish_evicts_nothing() -> None:
    store = make_store(10)
    kept = chain_of(store, run_of(0, 17))
    serve(store, kept)
    held = store.match(chain_of(store, run_of(0, 9)))
    match = store.match(chain_of(store, run_of(500, 4 * 9)))
    assert store.begin(match) == NoRoom(wanted=9, free=6, evictable=2)
    assert reuse(store, kept) == 16
    held.release()
    build = store.begin(match)
    assert not isinstance(build, NoRoom)
    check(store)


def test_mem_02_decoding_without_room_is_told_so_and_goes_on_later() -> None:
    store = make_store(4)
    one, other = begin(store, chain_of(store, run_of(0, 8))), begin(store, chain_of(store, run_of(50, 8)))
    assert one.extend() == NoRoom(wanted=1, free=0, evictable=0)
    assert one.capacity == 8
    other.cancel()
    assert one.extend() != []
    assert one.capacity == 12
    check(store)


def test_mem_05_odd_tails_evict_no_more_full_blocks_than_are_needed() -> None:
    rng = random.Random(5)
    store = make_store(64)
    needed = stored = 0
    for n in range(1000):
        length = rng.randrange(1, 40)
        blocks = -(-length // BLOCK)
        needed += max(0, blocks - store.stats().free)
        serve(store, chain_of(store, run_of(100 * n, length)))
        stored += length // BLOCK
        assert store.stats().private == 0
    assert store.stats().removed == {RemovalCause.PRESSURE: needed}
    assert store.stats().ready == stored - needed
    check(store)


def test_mem_06_nothing_is_evicted_without_pressure() -> None:
    store = make_store(2000)
    hits = [serve(store, chain_of(store, tokens([*range(8), 1000 + n]))) for n in range(200)]
    assert hits == [0] + [8] * 199
    assert store.stats().removed == {}


def test_mem_06_a_shared_prelude_outlives_one_shot_tails() -> None:
    store = make_store(20)
    hits = [serve(store, chain_of(store, tokens([*range(8), *range(1000 * n, 1000 * n + 40)]))) for n in range(1, 200)]
    assert hits == [0] + [8] * 198
    check(store)


def test_mem_07_finished_requests_leave_only_what_is_cached() -> None:
    store = make_store(50)
    for n in range(1000):
        serve(store, chain_of(store, run_of(n, 10 + n % 7)))
    stats = store.stats()
    assert stats.free + stats.ready == 50
    assert stats.removed[RemovalCause.PRESSURE] > 0
    assert (stats.leases, stats.builds, stats.no_room) == (0, 0, 0)
    check(store)


def test_mem_08_evictable_and_protected_add_up_after_every_step() -> None:
    rng = random.Random(8)
    store = make_store(60)
    open_matches = []
    for _ in range(400):
        length = rng.randrange(4, 60)
        chain = chain_of(store, tokens([rng.randrange(2), *([rng.randrange(2)] * (length - 1))]))
        match rng.randrange(4):
            case 0:
                open_matches.append(store.match(chain))
            case 1 if open_matches:
                open_matches.pop(rng.randrange(len(open_matches))).release()
            case 2:
                store.evict_to(store.stats().free + 3, limit=3)
            case _ if len(open_matches) < 6:
                serve(store, chain)
        check(store)  # counts the protected blocks one by one


def test_i6_eviction_takes_leaves_first_and_oldest_first() -> None:
    events = Events()
    store = make_store(12, sink=events)
    old, young = chain_of(store, run_of(0, 12)), chain_of(store, tokens([0, 1, 2, 3, *range(50, 58)]))
    serve(store, old)
    serve(store, young)
    for _ in range(5):
        assert store.evict_to(store.stats().free + 1, limit=1) == 1
        check(store)
    assert events.removed == [old.keys[2], old.keys[1], young.keys[2], young.keys[1], old.keys[0]]


def test_i6_a_parent_outlives_its_children_however_it_was_used() -> None:
    events = Events()
    store = make_store(30, sink=events)
    trunk = chain_of(store, run_of(0, 13))
    serve(store, chain_of(store, run_of(0, 24)))
    serve(store, chain_of(store, run_of(700, 12)))
    reuse(store, trunk)  # the trunk alone is used again: younger than the other chain, whose turn is thus first
    store.evict_to(30, limit=100)
    long, other = chain_of(store, run_of(0, 24)).keys, chain_of(store, run_of(700, 12)).keys
    assert events.removed == [*long[:2:-1], *other[::-1], *long[2::-1]]


def test_i6_a_chain_that_is_used_again_goes_last() -> None:
    store = make_store(30)
    first, second = chain_of(store, run_of(0, 12)), chain_of(store, run_of(700, 12))
    serve(store, first)
    serve(store, second)
    store.evict_to(store.stats().free + 1, limit=1)  # `second` is one shorter now than it could be, `first` two
    reuse(store, chain_of(store, run_of(0, 13)))
    store.evict_to(28, limit=100)
    assert (reuse(store, first), reuse(store, second)) == (8, 0)


def test_watermarks_make_room_ahead_of_need_in_bounded_steps() -> None:
    store = make_store(100, limits=StoreLimits(low_free=10, high_free=30))
    for n in range(9):
        serve(store, chain_of(store, run_of(1000 * n, 40)))
    assert (store.stats().free, store.relieve()) == (10, 0)
    serve(store, chain_of(store, run_of(9000, 4)))
    assert [store.relieve(limit=8) for _ in range(4)] == [8, 8, 5, 0]
    assert store.stats().free == 30


def test_watermarks_with_everything_read_do_not_spin() -> None:
    store = make_store(10, limits=StoreLimits(low_free=2, high_free=5))
    serve(store, chain_of(store, run_of(0, 36)))
    with store.match(chain_of(store, run_of(0, 37))):
        assert store.relieve() == 0
    assert store.relieve() == 4


def test_i11_over_its_ceiling_a_namespace_gives_up_its_own_oldest() -> None:
    store = make_store(100)
    quiet = chain_of(store, run_of(0, 41), namespace="quiet", root=b"q" * 32)
    serve(store, quiet)
    store.set_room("loud", NamespaceRoom(ceiling=10))
    for n in range(1, 30):
        serve(store, chain_of(store, run_of(1000 * n, 21), namespace="loud", root=b"l" * 32))
    assert {name: usage.blocks for name, usage in store.usage().items()} == {"quiet": 10, "loud": 10}
    assert reuse(store, quiet) == 40
    assert set(store.stats().removed) == {RemovalCause.QUOTA}
    check(store)


def test_i6_making_room_below_a_ceiling_never_takes_the_parent_of_what_is_stored() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(ceiling=4))
    chain = chain_of(store, run_of(0, 20))
    late = begin(store, chain)
    serve(store, chain_of(store, run_of(0, 12)))  # finished: its three blocks are nobody's but the cache's
    assert len(late.commit(5, always)) == 1
    check(store)
    assert reuse(store, chain) == 16
    late.finish()
    check(store)


def test_a_prompt_beyond_the_ceiling_is_stored_as_far_as_it_fits() -> None:
    store = make_store(100)
    store.set_room("ns", NamespaceRoom(ceiling=6))
    chain = chain_of(store, run_of(0, 41))
    build = begin(store, chain)
    assert len(build.commit(4, always)) == 4
    assert len(build.commit(10, always)) == 2
    build.finish()
    assert store.stats().bypassed == {BypassReason.QUOTA: 4}
    assert reuse(store, chain) == 24
    check(store)
    store.set_room("ns", NamespaceRoom(ceiling=1))
    assert store.relieve() == 5
    store.set_room("ns", NamespaceRoom())
    assert serve(store, chain) == 4
    assert reuse(store, chain) == 40


def test_i11_a_store_takes_less_than_400_bytes_a_block() -> None:
    block, chains, per_chain = 32, 250, 40
    raw = [
        np.random.default_rng(n).integers(0, 50_000, block * per_chain, dtype="<u4").tobytes() for n in range(chains)
    ]
    tracemalloc.start()
    try:
        store = make_store(chains * per_chain, block=block, limits=StoreLimits(known_chain_bytes=0))
        for prompt in raw:
            serve(store, chain_of(store, prompt))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.stats().ready == chains * per_chain
    assert used / store.stats().ready <= 400
