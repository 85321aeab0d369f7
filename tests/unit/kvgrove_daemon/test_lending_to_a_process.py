"""A loan to a real process that maps the pool, sleeps past its time under full pressure, and finds its bytes (I5)."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from block_store_rig import BLOCK, always, chain_of, reuse
from lending_rig import prompt

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.foreign_leases import LeaseEvent
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.lending import Lending, Loan, LoanRefusal, share_of
from kvgrove_daemon.cache.processes import Processes
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.store import BlockStore, NoRoom

SLOTS = 24
LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=8, dtype="float32", block_size=BLOCK)
HOUR = 3600.0

READER = """
import hashlib, json, mmap, os, sys
descriptor = os.open("/dev/shm/" + sys.argv[1], os.O_RDONLY)
memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, prot=mmap.PROT_READ)
for line in sys.stdin:
    digest = hashlib.sha256()
    for start, size in json.loads(line):
        digest.update(memory[start:start + size])
    print(digest.hexdigest(), flush=True)
"""


class Reader:
    """The other process: answers the digest of the ranges it is asked for, out of its own mapping."""

    def __init__(self, shared_name: str) -> None:
        command = [sys.executable, "-c", READER, shared_name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, slots: tuple[int, ...]) -> str:
        fragment = LAYOUT.block_bytes // (LAYOUT.num_layers * 2)
        planes = range(LAYOUT.num_layers * 2)
        ranges = [((plane * SLOTS + slot) * fragment, fragment) for slot in slots for plane in planes]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(ranges).encode() + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().decode().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Pool:
    """A store over real shared memory, whose requests really write."""

    def __init__(self, number: int) -> None:
        self.arena = SharedMemoryArena(LAYOUT, SLOTS, segment_name(f"lending-test-{os.getpid()}", "0", number))
        self.store = BlockStore(RunAllocator(SLOTS), block_size=BLOCK, block_bytes=LAYOUT.block_bytes)
        self.processes = Processes()
        ids = itertools.count()
        self.lending = Lending(self.store, share_of(SLOTS), self.processes, new_id=lambda: f"{next(ids)}")

    def serve(self, raw: bytes, namespace: str = "others") -> set[int]:
        """One request; answers the slots that it wrote, none where there was no room."""
        chain = chain_of(self.store, raw, root=namespace.encode().ljust(32), namespace=namespace)
        match = self.store.match(chain)
        build = self.store.begin(match)
        if isinstance(build, NoRoom):
            match.release()
            return set()
        with build:
            own = build.private_slots()
            for at, slot in enumerate(own):
                seed = hashlib.sha256(raw + bytes([at])).digest()
                self.arena.write_block(slot, (seed * (LAYOUT.block_bytes // 32 + 1))[: LAYOUT.block_bytes])
            build.commit(len(chain.keys), always)
        return set(own)

    def press(self) -> set[int]:
        """Requests of every size up to the pool's, several times over; answers the slots that they wrote."""
        sizes = range(1, SLOTS)
        return {slot for size in sizes for n in range(4) for slot in self.serve(prompt(100 * size + n, size, BLOCK))}


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(next(_numbers))
    yield pool
    pool.arena.close()


@pytest.fixture
def reader(pool: Pool) -> Iterator[Reader]:
    assert pool.arena.shared_name is not None
    reader = Reader(pool.arena.shared_name)
    yield reader
    reader.close()


_numbers = itertools.count()


@pytest.mark.parametrize("dropped", [False, True], ids=["readable", "dropped"])
@pytest.mark.parametrize("killed", [False, True], ids=["acknowledged", "killed"])
def test_i5_a_process_stopped_for_an_hour_past_its_loan_finds_its_bytes(
    pool: Pool, reader: Reader, dropped: bool, killed: bool
) -> None:
    store, lending, raw = pool.store, pool.lending, prompt(1, 4, BLOCK)
    pool.serve(raw, "lent")
    chain = chain_of(store, raw, root=b"lent".ljust(32), namespace="lent")
    with store.match(chain) as match:
        loan = lending.lend(match, pool.processes.see(reader.process.pid), 30.0, 0.0)
    assert isinstance(loan, Loan)
    assert len(loan.slots) == 4
    before = reader.read(loan.slots)

    reader.process.send_signal(signal.SIGSTOP)
    assert lending.tick(HOUR) == 0
    if dropped:
        store.drop(cause=RemovalCause.ERASE, namespace="lent")
        assert reuse(store, chain) == 0
    # Full pressure: every other slot is written over and over, none of the loan's.
    assert pool.press() == set(range(SLOTS)) - set(loan.slots)
    assert lending.stats().quarantined_slots == 4
    assert store.stats().retiring == (4 if dropped else 0)
    assert store.stats().leases == 1
    check(store)
    assert lending.tick(2 * HOUR) == 0

    reader.process.send_signal(signal.SIGCONT)
    assert reader.read(loan.slots) == before
    assert lending.renew(loan.id, 30.0, 2 * HOUR) is LoanRefusal.REVOKED

    if killed:
        reader.process.kill()
        reader.process.wait()
        assert lending.tick(2 * HOUR) == 1
    else:
        assert lending.give_back(loan.id)
    assert lending.stats().ended == {LeaseEvent.HOLDER_GONE if killed else LeaseEvent.GIVE_BACK: 1}
    assert (lending.stats().loans, lending.stats().lent_slots, lending.stats().quarantined_slots) == (0, 0, 0)
    assert (store.stats().leases, store.stats().retiring) == (0, 0)
    check(store)
    assert set(loan.slots) <= pool.press(), "they are anybody's again"
