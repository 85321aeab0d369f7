"""Erasures in one pool: bytes overwritten, read back, and only then used again (I5, I8). Over real shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest
import torch
from block_store_rig import BLOCK, always, begin, chain_of, make_store, reuse, run_of

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import SHM, segment_name
from kvgrove_daemon.cache.store import BlockStore, Build
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.host import HostMedium
from kvgrove_daemon.cache.tiers.medium import Facts
from kvgrove_daemon.cache.wiping import PoolWiper, residue_in
from kvgrove_protocol.identity import Contributor

SLOTS = 24
LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32", block_size=BLOCK)
JANE, JOE = Contributor(b"acme", b"jane"), Contributor(b"acme", b"joe")


class Pool:
    """A store over real memory, in which each request leaves a canary of its own."""

    def __init__(self, number: int) -> None:
        self.arena = SharedMemoryArena(LAYOUT, SLOTS, segment_name(f"wiping-{os.getpid()}", "0a", number))
        self.store: BlockStore = make_store(SLOTS)
        self.wiper = PoolWiper(self.store, residue_in(self.arena), block_bytes=LAYOUT.block_bytes)

    def chain(self, start: int, blocks: int, who: Contributor, shared: int = 0) -> Chain:
        """``shared`` blocks that everybody of the tenant has, then ``blocks`` of one's own."""
        raw = run_of(0, shared * BLOCK) + run_of(start, blocks * BLOCK)
        return chain_of(self.store, raw, writer=Writer(who, 0))

    def fill(self, build: Build, canary: float, tokens: int | None = None) -> None:
        """Write ``canary`` into what is not reused, up to ``tokens``."""
        for at, slot in enumerate(build.slots[build.reused_blocks :], build.reused_blocks):
            room = BLOCK if tokens is None else max(0, min(BLOCK, tokens - at * BLOCK))
            self.arena.pool[:, :, slot * BLOCK : slot * BLOCK + room] = canary

    def serve(self, chain: Chain, canary: float) -> None:
        with begin(self.store, chain) as build:
            self.fill(build, canary)
            build.commit(len(chain.keys), always)

    def holds(self, canary: float) -> bool:
        """Whether the segment's own file holds the value anywhere, aligned or not."""
        needle = torch.tensor([canary], dtype=torch.float32).numpy().tobytes()
        assert self.arena.shared_name is not None
        return needle in (SHM / self.arena.shared_name).read_bytes()

    def finish(self) -> None:
        while not self.wiper.idle:
            self.wiper.turn()


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    pool = Pool(abs(hash(request.node.name)) % 1_000_000)
    yield pool
    pool.arena.close()


def test_i8_one_users_bytes_go_and_the_others_stay(pool: Pool) -> None:
    jane, joe = pool.chain(100, 3, JANE), pool.chain(200, 3, JOE)
    pool.serve(jane, 1.5)
    pool.serve(joe, 2.5)
    cut = pool.wiper.cut(Subject("ns", contributor=JANE))
    assert reuse(pool.store, jane) == 0  # at once
    assert pool.wiper.pending(cut.number) == 3
    pool.finish()
    assert (pool.wiper.pending(cut.number), pool.wiper.wiped(cut.number)) == (0, 3)
    assert not pool.holds(1.5)
    assert pool.holds(2.5)
    assert reuse(pool.store, joe) == 2 * BLOCK


def test_i5_a_slot_is_used_again_only_when_it_is_wiped(pool: Pool) -> None:
    pool.serve(pool.chain(100, SLOTS, JANE), 1.5)
    pool.wiper.cut(Subject("ns", contributor=JANE))
    assert pool.store.free_slots == 0
    pool.finish()
    assert pool.store.free_slots == SLOTS


def test_i8_a_running_reader_is_waited_for(pool: Pool) -> None:
    shared = pool.chain(100, 3, JANE)
    pool.serve(shared, 1.5)
    build = begin(pool.store, pool.chain(100, 4, JANE))  # the caller streams on
    pool.fill(build, 3.5)
    cut = pool.wiper.cut(Subject("ns", contributor=JANE))
    pool.finish()
    assert cut.builds == 1
    assert pool.wiper.pending(cut.number) == 4  # three blocks that are read, and the build
    assert pool.holds(1.5)
    build.add_tokens([7, 8])
    build.commit(4, always)  # refused: its text was erased
    build.finish()
    pool.finish()
    assert pool.wiper.pending(cut.number) == 0
    assert not pool.holds(1.5)
    assert not pool.holds(3.5)
    assert reuse(pool.store, pool.chain(100, 4, JANE)) == 0
    assert pool.store.free_slots == SLOTS


def test_i8_free_slots_may_hold_what_gave_way_earlier(pool: Pool) -> None:
    pool.serve(pool.chain(100, 3, JANE), 1.5)
    pool.store.evict_to(SLOTS, limit=SLOTS)
    assert pool.holds(1.5)
    cut = pool.wiper.cut(Subject("ns", contributor=JANE))
    pool.finish()
    assert pool.wiper.pending(cut.number) == 0
    assert not pool.holds(1.5)


def test_i8_the_unwritten_rest_of_somebody_elses_slot_is_wiped_when_it_ends(pool: Pool) -> None:
    pool.serve(pool.chain(100, SLOTS, JANE), 1.5)
    pool.store.evict_to(SLOTS, limit=SLOTS)
    joe = chain_of(pool.store, run_of(200, BLOCK + 1), writer=Writer(JOE, 0))
    build = begin(pool.store, joe)
    pool.fill(build, 2.5, tokens=BLOCK + 1)  # of its second slot it has written a part
    cut = pool.wiper.cut(Subject("ns", contributor=JANE))
    pool.finish()
    assert pool.holds(1.5)
    assert pool.wiper.pending(cut.number) == 1
    build.commit(1, always)
    build.finish()
    pool.finish()
    assert pool.wiper.pending(cut.number) == 0
    assert not pool.holds(1.5)
    assert reuse(pool.store, chain_of(pool.store, run_of(200, BLOCK + 1), writer=Writer(JOE, 0))) == BLOCK


def test_i8_a_document_goes_with_all_that_follows_it(pool: Pool) -> None:
    raw = run_of(0, 4 * BLOCK)
    manual = chain_of(pool.store, raw, folds={1: b"f"}, documents={1: ("manual@3",)}, writer=Writer(JOE, 3))
    pool.serve(manual, 4.5)
    cut = pool.wiper.cut(Subject("ns", document="manual"))
    pool.finish()
    assert pool.wiper.wiped(cut.number) == 3
    assert reuse(pool.store, manual) == BLOCK


def test_i8_what_does_not_read_back_as_zeros_is_a_fault_and_stays_out_of_the_pool(pool: Pool) -> None:
    stubborn: set[int] = set()
    real = residue_in(pool.arena)

    def wipe(slots: Sequence[int]) -> Sequence[int]:
        return [9 if slot in stubborn else count for slot, count in zip(slots, real(slots), strict=True)]

    wiper = PoolWiper(pool.store, wipe, block_bytes=LAYOUT.block_bytes)
    chain = pool.chain(100, 3, JANE)
    with begin(pool.store, chain) as build:
        stubborn.add(build.slots[1])
        build.commit(3, always)
    cut = wiper.cut(Subject("ns", contributor=JANE))
    wiper.turn()
    assert wiper.failed(cut.number)
    assert wiper.pending(cut.number) == 1
    assert pool.store.free_slots == SLOTS - 1
    stubborn.clear()
    wiper.retry(cut.number)
    wiper.turn()
    assert not wiper.failed(cut.number)
    assert wiper.pending(cut.number) == 0
    assert pool.store.free_slots == SLOTS


def test_i11_one_turn_wipes_a_bounded_part(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgrove_daemon.cache.wiping.WIPE_BYTES", 2 * LAYOUT.block_bytes)
    wiper = PoolWiper(pool.store, residue_in(pool.arena), block_bytes=LAYOUT.block_bytes)
    pool.serve(pool.chain(100, 5, JANE), 1.5)
    cut = wiper.cut(Subject("ns", contributor=JANE))
    left = []
    while not wiper.idle:
        wiper.turn()
        left.append(wiper.pending(cut.number))
    assert left == [3, 1, 0]


def test_i8_erasures_that_overlap_are_each_counted(pool: Pool) -> None:
    pool.serve(pool.chain(100, 2, JANE), 1.5)
    pool.serve(pool.chain(200, 2, JOE), 2.5)
    one = pool.wiper.cut(Subject("ns", contributor=JANE))
    tenant = pool.wiper.cut(Subject("ns", contributor=Contributor(b"acme")))
    pool.finish()
    assert (pool.wiper.wiped(one.number), pool.wiper.wiped(tenant.number)) == (2, 2)
    assert (pool.wiper.pending(one.number), pool.wiper.pending(tenant.number)) == (0, 0)
    pool.wiper.forget(one.number)
    assert pool.store.free_slots == SLOTS


def test_i8_what_gives_way_in_host_memory_below_a_device_leaves_no_bytes(pool: Pool) -> None:
    medium = HostMedium(pool.arena)
    facts = Facts("ns", b"r" * 32, b"k" * 32, b"r" * 32, 0, b"t" * 4 * BLOCK)
    body = torch.full((LAYOUT.block_bytes // 4,), 5.5).numpy().tobytes()
    medium.write_many([(3, facts, body)])
    assert pool.holds(5.5)
    medium.release([3])
    assert not pool.holds(5.5)
