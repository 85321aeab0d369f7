"""What is reused, and what never is (I1, COR-13, COR-14, ISO-01)."""

from collections.abc import Mapping

import numpy as np
import pytest
from block_store_rig import BLOCK, ROOT, Events, always, begin, chain_of, make_store, reuse, run_of, serve, tokens

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.store import NoRoom
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.reasons import BypassReason, MissReason


@pytest.mark.parametrize(
    ("count", "reused"), [(0, 0), (1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (16, 12), (17, 16)]
)
def test_i1_the_last_token_is_always_computed(count: int, reused: int) -> None:
    store = make_store(16)
    chain = chain_of(store, run_of(0, count))
    serve(store, chain)
    assert serve(store, chain) == reused
    check(store)


def test_a_limit_is_rounded_down_to_blocks() -> None:
    store = make_store(16)
    chain = chain_of(store, run_of(0, 30))
    assert store.ready_blocks(chain) == 0
    serve(store, chain)
    assert store.ready_blocks(chain_of(store, run_of(0, 12))) == 3  # residency, not what a request may reuse of it
    assert store.ready_blocks(chain) == 7
    with store.match(chain, limit_tokens=11) as match:
        assert match.reused_tokens == 8


def test_i1_reuse_ends_at_the_first_block_that_differs() -> None:
    store = make_store(32)
    serve(store, chain_of(store, run_of(0, 33)))
    changed = np.arange(33, dtype="<u4")
    changed[17] = 999
    assert reuse(store, chain_of(store, changed.tobytes())) == 16


@pytest.mark.parametrize("other", [{"root": b"q" * 32}, {"folds": {0: b"bob"}}, {"folds": {2: b"bob"}}, {"folds": {}}])
def test_i2_equal_tokens_under_another_root_or_fold_meet_only_what_comes_before_it(other: Mapping[str, object]) -> None:
    store = make_store(32)
    serve(store, chain_of(store, run_of(0, 33), folds={2: b"alice"}))
    common = {"root": 0, "folds": min(other.get("folds", {}) or {2: b""}, default=0) * BLOCK}[next(iter(other))]  # type: ignore[call-overload]
    assert reuse(store, chain_of(store, run_of(0, 33), **other)) == common  # type: ignore[arg-type]


def collide_after(first_equal: int) -> object:
    """A key function whose keys from block ``first_equal`` on depend on the position alone."""

    def keys(
        parent: bytes,
        raw: bytes | memoryview,
        block_folds: Mapping[int, bytes] = {},
        *,
        block_size: int = BLOCK,
        first_block: int = 0,
    ) -> list[bytes]:
        real = block_keys(parent, raw, block_folds, block_size=block_size, first_block=first_block)
        return [key if n < first_equal else n.to_bytes(32, "big") for n, key in enumerate(real, first_block)]

    return keys


@pytest.mark.parametrize("first_equal", [0, 2])
def test_iso_01_colliding_keys_are_caught_by_comparing_tokens(first_equal: int) -> None:
    store = make_store(64, key_function=collide_after(first_equal))  # type: ignore[arg-type]
    serve(store, chain_of(store, run_of(0, 33)))
    crafted = tokens([*range(first_equal * BLOCK), *range(5000, 5033 - first_equal * BLOCK)])
    chain = chain_of(store, crafted)
    assert chain.keys[first_equal:] == chain_of(store, run_of(0, 33)).keys[first_equal:]
    with store.match(chain) as match:
        assert match.reused_tokens == first_equal * BLOCK
    assert store.stats().collisions == 1
    assert reuse(store, chain_of(store, run_of(0, 33))) == 32
    check(store, rehash=False)


@pytest.mark.parametrize(("first_equal", "differs_from"), [(0, 0), (2, 2), (2, 1)])
def test_iso_01_a_colliding_block_is_neither_stored_nor_a_parent(first_equal: int, differs_from: int) -> None:
    store = make_store(64, key_function=collide_after(first_equal))  # type: ignore[arg-type]
    serve(store, chain_of(store, run_of(0, 33)))
    before = store.snapshot()
    honest, crafted = list(range(differs_from * BLOCK)), list(range(5000, 5041 - differs_from * BLOCK))
    build = begin(store, chain_of(store, tokens([*honest, *crafted])))
    assert build.commit(9, always) == []
    build.finish()
    assert store.snapshot() == before
    assert store.stats().bypassed == {BypassReason.COLD: 9 - differs_from}
    # Nor does the crafted ninth block follow the honest eight.
    assert reuse(store, chain_of(store, tokens([*range(32), *crafted[32 - len(honest) :]]))) == 32
    check(store, rehash=False)


def test_iso_01_equal_keys_within_one_prompt_are_not_stored() -> None:
    def constant(
        parent: bytes,
        raw: bytes | memoryview,
        block_folds: Mapping[int, bytes] = {},
        *,
        block_size: int = BLOCK,
        first_block: int = 0,
    ) -> list[bytes]:
        return [b"k" * 32] * (len(raw) // (4 * block_size))

    store = make_store(64, key_function=constant)
    chain = chain_of(store, run_of(0, 33))
    assert serve(store, chain) == 0
    assert (reuse(store, chain), store.stats().ready, store.stats().collisions) == (0, 0, 1)
    check(store, rehash=False)


@pytest.mark.parametrize("fold", [{}, {1: b"other"}])
def test_iso_01_equal_tokens_and_colliding_keys_under_another_fold_or_root(fold: dict[int, bytes]) -> None:
    store = make_store(64, key_function=collide_after(0))  # type: ignore[arg-type]
    serve(store, chain_of(store, run_of(0, 17), folds={1: b"mine"}))
    assert reuse(store, chain_of(store, run_of(0, 17), folds=fold)) == BLOCK
    assert reuse(store, chain_of(store, run_of(0, 17), folds={1: b"mine"}, root=b"x" * 32)) == 0
    assert reuse(store, chain_of(store, run_of(0, 17), folds={1: b"mine"})) == 16


def test_cor_14_an_evicted_block_is_not_found_when_its_slot_and_id_are_reused() -> None:
    store = make_store(4)
    old = chain_of(store, run_of(0, 17), folds={1: b"alice"})
    serve(store, chain_of(store, run_of(0, 16), folds={1: b"alice"}))
    new = chain_of(store, run_of(500, 16))
    assert serve(store, new) == 0
    assert reuse(store, old) == 0
    assert reuse(store, chain_of(store, run_of(500, 17))) == 16
    check(store)


def test_cor_13_two_continuations_of_one_entry_never_write_into_it() -> None:
    store = make_store(32)
    memory = np.zeros((32, BLOCK), dtype=np.uint32)
    prefix = run_of(0, 13)
    first = begin(store, chain_of(store, prefix))
    memory[first.slots] = np.arange(16).reshape(4, BLOCK)
    first.commit(3, always)
    first.finish()
    matches = [
        store.match(chain_of(store, tokens([*range(12), *tail]))) for tail in ([70, 71, 72], [80, 81, 82, 83, 84])
    ]
    entry = matches[0].slots
    digest = memory[entry].tobytes()
    builds = [store.begin(match) for match in matches]
    for step in range(3):
        for number, build in enumerate(builds):
            assert not isinstance(build, NoRoom)
            build.add_tokens([900 + step] * BLOCK)
            build.extend()
            own = build.slots[build.reused_blocks :]
            assert set(own).isdisjoint(entry)
            memory[own] = 7000 + 100 * number + step
            build.commit(4, always)
    assert memory[entry].tobytes() == digest
    one, other = builds
    assert not isinstance(one, NoRoom)
    assert not isinstance(other, NoRoom)
    assert one.slots[:3] == other.slots[:3] == entry
    assert set(one.slots[3:]).isdisjoint(other.slots[3:])
    check(store)
    one.finish()
    other.finish()
    check(store)


def test_a_decoded_answer_is_reused_in_the_next_turn() -> None:
    events = Events()
    store = make_store(64, sink=events)
    build = begin(store, chain_of(store, run_of(0, 10), folds={0: b"private"}))
    build.commit(2, always)
    build.add_tokens(range(10, 13))
    build.extend()
    assert len(build.commit(3, always)) == 1
    build.add_tokens(range(13, 21))
    build.extend(2)
    assert len(build.commit(5, always)) == 2
    build.finish()
    check(store)
    hashed = store.stats().hashed_blocks
    turn = chain_of(store, run_of(0, 30), folds={0: b"private"})
    assert reuse(store, turn) == 20
    assert store.stats().hashed_blocks - hashed == 2  # of the seven blocks, five were known
    assert events.stored == [*turn.keys[:5]]


def test_i1_a_chain_scattered_over_the_index_is_compared_as_closely() -> None:
    store = make_store(64)
    single = [chain_of(store, run_of(100 * n, 5), root=b"%032d" % n) for n in range(60)]
    for chain in single:
        serve(store, chain)
    for chain in single[::2]:
        reuse(store, chain)
    store.evict_to(34, limit=30)  # every second block
    chain = chain_of(store, run_of(0, 121), folds={17: b"x"})
    serve(store, chain)
    check(store)
    index = store._resident.index
    tail = index.find(chain.keys[29])
    assert tail is not None
    assert len(index.stretches(tail)) > 16
    assert reuse(store, chain) == 120
    for place in (0, 67, 119):
        changed = chain.array(0, 30).copy()
        assert index.proves(tail, 30, ROOT, changed.tobytes(), {17: b"x"})
        changed[place] += 1
        assert not index.proves(tail, 30, ROOT, changed.tobytes(), {17: b"x"})
    for folds in ({}, {17: b"y"}, {16: b"x"}, {17: b"x", 20: b"x"}):
        assert not index.proves(tail, 30, ROOT, chain.tokens, folds)
    assert not index.proves(tail, 30, b"q" * 32, chain.tokens, {17: b"x"})
    assert not index.proves(tail, 29, ROOT, chain.tokens, {17: b"x"})


def test_i2_an_answer_to_declared_text_alone_is_its_callers_own() -> None:
    store = make_store(64)
    build = begin(store, chain_of(store, run_of(0, 8), folds={2: b"alice"}))  # as `marks` gives it
    build.add_tokens(range(8, 17))
    build.extend(3)
    assert len(build.commit(4, always)) == 4
    build.finish()
    check(store)
    turns = {who: chain_of(store, run_of(0, 20), folds={2: who}) for who in (b"alice", b"bob")}
    assert {who: reuse(store, turn) for who, turn in turns.items()} == {b"alice": 16, b"bob": 8}


def test_blocks_that_another_request_stored_first_are_kept_once() -> None:
    store = make_store(32)
    chain = chain_of(store, run_of(0, 22))
    one, other = begin(store, chain), begin(store, chain)
    assert len(one.commit(3, always)) == 3
    assert len(other.commit(5, always)) == 2
    assert len(one.commit(5, always)) == 0
    assert store.stats().duplicates == 5
    check(store)
    one.finish()
    other.finish()
    assert (store.stats().ready, store.stats().free) == (5, 27)
    assert reuse(store, chain) == 20
    check(store)


def test_a_missing_block_says_whether_it_was_here() -> None:
    store = make_store(4)
    old = chain_of(store, run_of(0, 17))
    serve(store, chain_of(store, run_of(0, 16)))
    serve(store, chain_of(store, run_of(500, 9)))
    lost = old.keys[reuse(store, old) // BLOCK]
    assert store.gone(lost) is MissReason.EVICTED
    other = chain_of(store, run_of(0, 17), root=b"b" * 32)
    assert store.gone(other.keys[0]) is None  # another realm's history is nobody's business (ISO-03)
    store.clear()
    assert store.gone(lost) is None


def test_a_request_that_is_served_cold_finds_nothing() -> None:
    store = make_store(8)
    chain = chain_of(store, run_of(0, 9))
    serve(store, chain)
    with store.skip(chain) as match:
        assert (match.blocks, match.slots) == (0, [])


def test_tokens_that_are_no_uint32_are_refused() -> None:
    with pytest.raises(Malformed, match="multiple of 4"):
        make_store(4).keys(ROOT, b"abcde", namespace="ns")


def test_i12_no_token_shows_in_a_representation() -> None:
    store = make_store(8)
    chain = chain_of(store, tokens([0x41424344] * 5))
    match = store.match(chain)
    for thing in (chain, match, store.begin(match)):
        assert "DCBA" not in repr(thing)
        assert repr(chain.keys[0]) not in repr(thing)


def test_a_match_is_used_once() -> None:
    store = make_store(8)
    match = store.match(chain_of(store, run_of(0, 5)))
    build = store.begin(match)
    assert not isinstance(build, NoRoom)
    with pytest.raises(ValueError, match="match again"):
        store.begin(match)
    match.release()
    build.finish()
    assert store.stats().double_releases == 0
    check(store)
