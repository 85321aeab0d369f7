"""A pool with tiers below it, small enough to see through, whose workers run when a test says so."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import UNKNOWN_WRITER, Writer
from kvgrove_daemon.cache.eviction import LeafLRU
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, Build
from kvgrove_daemon.cache.tiers.host import HostMedium
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Entry, Facts, Medium
from kvgrove_daemon.cache.tiers.restore import Below, Load, begin_load
from kvgrove_daemon.cache.tiers.stack import TierSink, TierStack, TopTier
from kvgrove_daemon.cache.tiers.workers import Lane
from kvgrove_protocol.errors import KvgroveError

BLOCK = 4
LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=4, dtype="float32", block_size=BLOCK)
ROOT = b"r" * 32
FAST = 1.0
"""Tokens a second that the engine computes: so slow that every load is worth it."""


class ManualWorkers:
    """Work waits until a test lets it run, and its conclusion until it is polled."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.ended: deque[tuple[Any, Callable[[Any], None]]] = deque()

    def submit(self, lane: Lane, work: Callable[[], Any], conclude: Callable[[Any], None]) -> None:
        del lane
        self.waiting.append((work, conclude))

    def run_one(self, at: int = 0) -> None:
        work, conclude = self.waiting[at]
        del self.waiting[at]
        self.ended.append((work(), conclude))

    def poll(self) -> None:
        while self.ended:
            answer, conclude = self.ended.popleft()
            conclude(answer)

    def settle(self) -> None:
        """Run and conclude everything, also what follows from it."""
        while self.waiting or self.ended:
            while self.waiting:
                self.run_one()
            self.poll()


class SlowTier(HostMedium):
    """Memory that plays the part of a disk."""

    name = "disk"


class Faulty:
    """A medium that fails when it is told to."""

    def __init__(self, inner: Medium) -> None:
        self.inner = inner
        self.name, self.num_slots = inner.name, inner.num_slots
        self.fail_writes: KvgroveError | None = None
        self.fail_erase: KvgroveError | None = None
        self.fail_reads: dict[bytes, KvgroveError] = {}
        """By key of the block."""
        self.written: list[Facts] = []

    def write_many(self, blocks: Sequence[Entry]) -> None:
        if self.fail_writes is not None:
            raise self.fail_writes
        self.inner.write_many(blocks)
        self.written += [facts for _, facts, _ in blocks]

    def read(self, slot: int, facts: Facts) -> bytes | memoryview:
        if facts.key in self.fail_reads:
            raise self.fail_reads[facts.key]
        return self.inner.read(slot, facts)

    def release(self, slots: Sequence[int]) -> None:
        self.inner.release(slots)

    def erase(self, slots: Sequence[int]) -> int:
        if self.fail_erase is not None:
            raise self.fail_erase
        return self.inner.erase(slots)

    def close(self) -> None:
        self.inner.close()


def body_of(key: bytes) -> bytes:
    """The bytes that the block with this key has in these tests: nobody else's look like them."""
    seed = np.frombuffer(key, "<u4")
    return np.resize(seed, LAYOUT.block_bytes // 4).astype("<u4").tobytes()


class TierRig:
    """``sizes``: slots of the lower tiers, fastest first."""

    def __init__(self, slots: int, sizes: Sequence[int]) -> None:
        self.now = 0.0
        self.fresh = True
        self.workers = ManualWorkers()
        self.arena = _arena(slots)
        sinks = [TierSink() for _ in range(1 + len(sizes))]
        self.store = BlockStore(
            RunAllocator(slots),
            block_size=BLOCK,
            block_bytes=LAYOUT.block_bytes,
            sink=sinks[0],
            policy=LeafLRU(slots),
            clock=self.clock,
        )
        makers = [HostMedium, SlowTier] if len(sizes) > 1 else [SlowTier]
        self.media = [Faulty(make(_arena(size))) for make, size in zip(makers, sizes, strict=True)]
        lower = [
            LowerTier(
                medium,
                block_size=BLOCK,
                body_bytes=LAYOUT.block_bytes,
                block_bytes=LAYOUT.block_bytes,
                policy=LeafLRU(medium.num_slots),
                sink=sink,
                workers=self.workers,
                clock=self.clock,
            )
            for medium, sink in zip(self.media, sinks[1:], strict=True)
        ]
        self.stack = TierStack(
            TopTier(self.store.resident, self.arena),
            lower,
            sinks,
            workers=self.workers,
            fresh=lambda _namespace, _root: self.fresh,
        )

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def close(self) -> None:
        self.arena.close()
        for medium in self.media:
            medium.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def chain(
        self,
        values: Sequence[int],
        *,
        namespace: str = "ns",
        root: bytes = ROOT,
        writer: Writer = UNKNOWN_WRITER,
        folds: dict[int, bytes] | None = None,
        documents: dict[int, tuple[str, ...]] | None = None,
    ) -> Chain:
        """One block for each value, and one token more: so that all of them can be reused."""
        raw = np.asarray([value for value in values for _ in range(BLOCK)] + [0], dtype="<u4").tobytes()
        return self.store.keys(root, raw, folds or {}, namespace=namespace, writer=writer, documents=documents or {})

    def compute(self, build: Build, first: int, stop: int) -> None:
        for at in range(first, stop):
            self.arena.write_block(build.slots[at], body_of(build.keys[at]))

    def begin(self, chain: Chain, *, prefill_tokens_per_s: float = FAST) -> tuple[Build, Below | None]:
        match = self.store.match(chain)
        below = self.stack.find(chain, match.blocks, len(chain.keys), prefill_tokens_per_s=prefill_tokens_per_s)
        build = self.store.begin(match)
        assert isinstance(build, Build)
        return build, below

    def load(self, build: Build, below: Below, ended: Callable[[Load], None]) -> Load:
        slots = build.slots[below.first : below.upto]
        return begin_load(below, slots, workers=self.workers, clock=self.clock, ended=ended)

    def finish(self, build: Build, have: int) -> None:
        """Blocks below ``have`` are there, the rest is computed; all of it is checked, and stored."""
        self.compute(build, have, len(build.chain.keys))
        for at, key in enumerate(build.chain.keys):
            assert self.arena.read_block(build.slots[at]) == body_of(key)  # ISO-12: nobody else's bytes
        build.commit(len(build.chain.keys), lambda: self.fresh)
        build.finish()

    def serve(self, chain: Chain) -> dict[str, int]:
        """One request from match to finish; answers tier -> blocks reused."""
        build, below = self.begin(chain)
        reused = {"pool": build.reused_blocks} if build.reused_blocks else {}
        have = build.reused_blocks
        if below is not None and below.parts:
            loads: list[Load] = []
            self.load(build, below, loads.append)
            self.workers.settle()
            have += loads[0].loaded
            reused |= below.by_tier(loads[0].loaded)
        elif below is not None:
            below.release()
        self.finish(build, have)
        return reused

    def tend(self) -> None:
        """Until everything is copied and cleared that is to be."""
        for _ in range(8):
            self.stack.tend()
            self.workers.settle()

    def empty_pool(self) -> None:
        """Let everything in the pool give way."""
        self.store.evict_to(self.store.resident.pool.num_slots, limit=1 << 20)


_numbers = iter(range(1 << 30))


def _arena(slots: int) -> SharedMemoryArena:
    return SharedMemoryArena(LAYOUT, slots, f"kvgrove-tiers-{os.getpid():x}-{next(_numbers)}")
