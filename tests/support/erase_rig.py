"""A node's cache as erasures see it: a pool in shared memory, a real disk tier below, and what outlives a boot.

Workers run when a test says so; a boot ends as a crash would end it, at whatever point a test likes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np
from tier_rig import ManualWorkers

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.earlier_boots import EarlierSegments
from kvgrove_daemon.cache.eviction import LeafLRU
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.segments import SHM, remove_dead_segments, segment_name
from kvgrove_daemon.cache.store import BlockStore, Build
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.adopting import Adoption, Terms
from kvgrove_daemon.cache.tiers.disk import DiskMedium
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.stack import TierSink, TierStack, TopTier
from kvgrove_daemon.cache.wiping import PoolWiper, residue_in
from kvgrove_daemon.earlier_disks import EarlierDisks
from kvgrove_daemon.erase_orders import WHOLE, EraseOrder
from kvgrove_daemon.eraser import Eraser
from kvgrove_daemon.erasing_pools import ErasingPool
from kvgrove_daemon.memory_file import MemoryFile
from kvgrove_protocol.identity import Contributor
from kvgrove_protocol.receipts import Place, Receipt

BLOCK = 4
LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=4, dtype="float32", block_size=BLOCK)
FINGERPRINT = b"layout" * 5 + b"xx"
SLOTS = 32
ROOT = b"r" * 32
SECRETS = tuple(bytes([number]) * 32 for number in range(8))
JANE, JOE = Contributor(b"acme", b"jane"), Contributor(b"acme", b"joe")
UID = "ns"

_numbers = count()


def order(subject: Subject, erasure: str = "e1", *, secret: int = 1, former: int | None = 0) -> EraseOrder:
    """Survivors go from ``SECRETS[former]`` to ``SECRETS[secret]``."""
    return EraseOrder(UID, erasure, subject, SECRETS[secret], b"" if former is None else SECRETS[former])


def erase_user(who: Contributor, erasure: str = "e1", **secrets: int) -> EraseOrder:
    return order(Subject(UID, contributor=who), erasure, **secrets)


class Boot:
    """One life of a node with the state directory ``root``. ``loaded``: whether its model is there from the start."""

    def __init__(self, root: Path, *, loaded: bool = True, member: str = "") -> None:
        self.root = root
        self.member = member or f"erase-{os.getpid()}"
        self.id = f"{next(_numbers):x}"
        self.now = 0.0
        self.workers = ManualWorkers()
        self.memory = MemoryFile.load(root / "memory.json")
        earlier = EarlierSegments(self.member, self.id, self.memory.begin(self.id))
        self.pools: list[ErasingPool] = []
        self.eraser = Eraser(
            self.member,
            self.id,
            lambda: self.pools,
            self.memory,
            boots=earlier,
            files=EarlierDisks(root / "disk", lambda: ["layout"] if self.pools else [], self.workers),
            clock=self.clock,
        )
        if loaded:
            self.load()

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def load(self) -> None:
        """The model arrives: its pool is made and its directory opened."""
        self.arena = SharedMemoryArena(LAYOUT, SLOTS, segment_name(self.member, self.id, 0))
        self.disk = DiskMedium.open(
            self.root / "disk" / "layout",
            layout=FINGERPRINT,
            block_size=BLOCK,
            block_bytes=LAYOUT.block_bytes,
            capacity_bytes=64 << 20,
        )
        sinks = [TierSink(), TierSink()]
        self.store = BlockStore(
            RunAllocator(SLOTS),
            block_size=BLOCK,
            block_bytes=LAYOUT.block_bytes,
            sink=sinks[0],
            policy=LeafLRU(SLOTS),
            clock=self.clock,
        )
        self.tier = LowerTier(
            self.disk,
            block_size=BLOCK,
            body_bytes=LAYOUT.block_bytes,
            block_bytes=self.disk.file_bytes,
            policy=LeafLRU(self.disk.num_slots),
            sink=sinks[1],
            workers=self.workers,
            clock=self.clock,
        )
        self.stack = TierStack(
            TopTier(self.store.resident, self.arena),
            [self.tier],
            sinks,
            workers=self.workers,
            fresh=lambda _namespace, _root: True,
        )
        self.adoption = Adoption(self.tier, self.disk, self.workers, clock=self.clock, wall_clock=lambda: 0.0)
        self.pools.append(
            ErasingPool(
                PoolWiper(self.store, residue_in(self.arena), block_bytes=LAYOUT.block_bytes),
                Place.HOST,
                stack=self.stack,
                disk=self.disk,
                adoption=self.adoption,
                workers=self.workers,
            )
        )

    def grant(self, secret: int = 0, former: int | None = None) -> None:
        """A lease: secrets are known and what an earlier boot left is adopted."""
        known = b"" if former is None else SECRETS[former]
        self.adoption.keep({UID: Terms(SECRETS[secret], known, frozenset({ROOT}), frozenset({"manual@1"}), 1e9)})
        self.settle()

    # -- requests ------------------------------------------------------------------------------------------------------

    def chain(self, values: Sequence[int], who: Contributor = JANE, *, document: int | None = None) -> Chain:
        """One block for each value, filled with it; with ``document`` the block that holds one."""
        raw = np.repeat(np.asarray(values, dtype="<u4"), BLOCK).tobytes()
        folds = {} if document is None else {document: b"f" * 32}
        documents = {} if document is None else {document: ("manual@1",)}
        return self.store.keys(ROOT, raw, folds, namespace=UID, documents=documents, writer=Writer(who, 0))

    def begin(self, chain: Chain) -> Build:
        """Computed, not committed: each block's bytes are a canary that says which it is."""
        build = self.store.begin(self.store.match(chain))
        assert isinstance(build, Build)
        for at in range(build.reused_blocks, len(build.slots)):
            self.arena.write_block(build.slots[at], canary(int(chain.array(at, at + 1)[0])))
        return build

    def serve(self, chain: Chain) -> int:
        """Answers the blocks that were reused."""
        build = self.begin(chain)
        build.commit(len(chain.keys), lambda: True)
        build.finish()
        return build.reused_blocks

    def keep_on_disk(self, chain: Chain) -> None:
        """Serve it twice, so that it is worth a copy, and let it be copied."""
        self.serve(chain)
        tail = self.store.resident.index.find(chain.keys[-1])
        assert tail is not None
        self.stack.writes[0].soon(tail)
        self.settle()
        assert self.tier.held(chain.keys)[0] == len(chain.keys)

    def hits(self, chain: Chain) -> tuple[int, int]:
        """Blocks that would be found in the pool, and on disk."""
        return self.store.ready_blocks(chain), self.tier.find(chain, len(chain.keys))[0]

    def read_back(self, chain: Chain) -> bool:
        """Whether each of its blocks on disk opens, and is what was written."""
        _, tail = self.tier.find(chain, len(chain.keys))
        from kvgrove_daemon.cache.tiers.facts import facts_of

        index = self.tier.index
        blocks = index.chain_ids(tail).tolist()
        bodies = [bytes(self.disk.read(index.slot[block], facts_of(index, block))) for block in blocks]
        return bodies == [canary(int(chain.array(at, at + 1)[0])) for at in range(len(chain.keys))]

    # -- time ----------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One round of the core thread, without the workers."""
        self.workers.poll()
        if self.pools:
            self.stack.tend()
            self.adoption.tend()
        self.eraser.turn()

    def settle(self) -> None:
        """Until nothing is left to be done."""
        for _ in range(8):
            self.turn()
            self.workers.settle()
            self.now += 0.5

    def receipt(self, erasure: str = "e1") -> Receipt:
        return next(each for each in self.eraser.receipts() if each.erasure == erasure)

    # -- looking at bytes ----------------------------------------------------------------------------------------------

    def in_memory(self, value: int) -> bool:
        """Whether the canary of ``value`` is anywhere in the pool's segment."""
        assert self.arena.shared_name is not None
        return canary(value) in (SHM / self.arena.shared_name).read_bytes()

    def files(self) -> int:
        return sum(1 for path in (self.root / "disk" / "layout").rglob("*") if path.is_file() and path.name != "lock")

    # -- the end -------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Nothing is concluded any more; memory stays behind where the kernel keeps it, as after SIGKILL."""
        if self.pools:
            name = self.arena.shared_name
            assert name is not None
            content = (SHM / name).read_bytes()
            self.disk.close()
            self.arena.close()
            (SHM / name).write_bytes(content)

    def close(self) -> None:
        if self.pools:
            self.disk.close()
            self.arena.close()
        remove_dead_segments(self.member, "0")


def canary(value: int) -> bytes:
    """What a block of ``value`` holds."""
    pattern = np.asarray([0x0BADCAFE, value, 0x5EED0000 + value, value], dtype="<u4")
    return np.resize(pattern, LAYOUT.block_bytes // 4).tobytes()


__all__ = ["JANE", "JOE", "UID", "WHOLE", "Boot", "canary", "erase_user", "order"]
