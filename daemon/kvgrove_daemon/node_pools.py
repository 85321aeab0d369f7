"""The pools of a node and the tiers below each, by what their blocks look like.

Role: turn the bytes that a plan gives each tier into memory and files. Models of equal layout share one pool, where
every block is exact, since the generation is in every key; below it lies a disk of one codec. On a node without a GPU
the engine's pool lies in host memory, and below it is the disk; with one: device, host, disk. Invariants: a tier of no
bytes does not exist; a pool that cannot be is an error that names the field and the cure; a disk that cannot be used is
a tier less, under a named reason (I7).
Must not know: requests, leases, models.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvgrove_daemon.cache.arena import Arena
from kvgrove_daemon.cache.eviction import CostAware
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, StoreLimits
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.adopting import Adoption
from kvgrove_daemon.cache.tiers.codec import CodecName, encoded_bytes
from kvgrove_daemon.cache.tiers.codec_medium import CodecMedium
from kvgrove_daemon.cache.tiers.disk import DirectoryBusy, DirectoryUnusable, DiskMedium
from kvgrove_daemon.cache.tiers.host import HostMedium
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Medium
from kvgrove_daemon.cache.tiers.stack import TierSink, TierStack, TopTier
from kvgrove_daemon.cache.tiers.workers import TierWorkers
from kvgrove_daemon.cache.tiers.write_back import Fresh
from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.quotas import TierQuotas
from kvgrove_daemon.residency import LoggedResidency
from kvgrove_protocol.errors import KvgroveError, Terminal
from kvgrove_protocol.events import DEVICE, DISK, HOST
from kvgrove_protocol.identity import LayoutFingerprint

log = logging.getLogger(__name__)

DEFAULT_POOL_BYTES = 1 << 30
LAYOUT_ABI = "kvgrove/layer-major/1"


class PoolTooSmall(Terminal):
    """A tier has fewer blocks than one prompt of the model may need."""

    code = "pool_too_small"


class PoolUnsupported(Terminal):
    """The plan wants a tier that this node cannot have."""

    code = "pool_unsupported"


@dataclass(frozen=True)
class NodePool:
    """Memory and cache of one layout, and what lies below."""

    tier: str
    """What the engine's pool is: ``device`` or ``host``."""
    arena: Arena
    store: BlockStore
    stack: TierStack
    quotas: Sequence[TierQuotas]
    """Of each tier, the engine's first."""
    disk: DiskMedium | None = None
    """What the lowest tier lies on, where that is a disk."""
    adoption: Adoption | None = None
    """Of the disk tier, where there is one."""
    missing: Mapping[str, KvgroveError] = field(default_factory=dict)
    """Tier -> why the node goes without it."""

    def drop(self, cause: RemovalCause, subject: Subject) -> None:
        """Make what ``subject`` means unreadable in every tier: see `BlockStore.drop`."""
        if self.adoption is not None and subject.namespace is not None:
            self.adoption.dropped(subject.namespace)
        self.store.drop(
            cause=cause,
            namespace=subject.namespace,
            root=subject.root,
            document=subject.document,
            contributor=subject.contributor,
        )
        self.stack.drop(cause, subject)

    def close(self) -> None:
        for tier in self.stack.lower:
            tier.medium.close()
        self.arena.close()


@dataclass(frozen=True)
class Surface:
    """Where pools lie, and what they report to."""

    top: str
    """``device`` or ``host``: where the engine computes."""
    make_arena: Callable[[str, KVLayout, int], Arena]
    """Tier, layout, slots -> its memory. Raises PoolNoRoom."""
    disk_dir: Path
    workers: TierWorkers
    fresh: Fresh
    clock: Callable[[], float]
    log: EventLog


class NodePools:
    """The pools of a node. Made by the threads that load models, used by the core thread."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self._pools: dict[tuple[KVLayout, CodecName], NodePool] = {}
        self._lock = threading.Lock()

    def of(self, layout: KVLayout, codec: CodecName, pool_bytes: Mapping[str, int]) -> NodePool:
        """The pool of ``layout``, made with ``pool_bytes`` (by tier) by the first model that asks.

        ``codec`` is for the disk: where there is one, another codec has another pool. Raises PoolNoRoom, PoolTooSmall
        or PoolUnsupported.
        """
        stored: CodecName = codec if pool_bytes.get(DISK, 0) else "none"
        with self._lock:
            if (layout, stored) not in self._pools:
                self._pools[layout, stored] = _make(self.surface, layout, stored, pool_bytes)
            return self._pools[layout, stored]

    def all(self) -> list[NodePool]:
        with self._lock:
            return list(self._pools.values())

    def directories(self) -> set[str]:
        """Names of the directories below ``disk_dir`` that pools have."""
        return {pool.disk.directory.name for pool in self.all() if pool.disk is not None}

    def of_store(self, store: BlockStore) -> NodePool:
        """The pool whose store this is."""
        return next(pool for pool in self.all() if pool.store is store)

    def close(self) -> None:
        for pool in self.all():
            pool.close()


def fingerprint_of(layout: KVLayout, codec: CodecName) -> bytes:
    """How this node lays the bytes of a block out (`LayoutFingerprint.digest`)."""
    return LayoutFingerprint(
        abi=LAYOUT_ABI,
        num_layers=layout.num_layers,
        num_kv_heads=layout.num_kv_heads,
        head_dim=layout.head_dim,
        dtype=layout.dtype,
        block_size=layout.block_size,
        kv_codec=codec,
    ).digest()


def _make(surface: Surface, layout: KVLayout, codec: CodecName, pool_bytes: Mapping[str, int]) -> NodePool:
    top_bytes = _top_bytes(surface.top, pool_bytes)
    slots = _slots(layout, top_bytes, surface.top)
    arena = surface.make_arena(surface.top, layout, slots)
    media: list[tuple[Medium, int]] = []
    missing: dict[str, KvgroveError] = {}
    disk: DiskMedium | None = None
    try:
        if surface.top == DEVICE and DEVICE in pool_bytes and (size := pool_bytes.get(HOST, 0)):
            media.append((HostMedium(surface.make_arena(HOST, layout, _slots(layout, size, HOST))), layout.block_bytes))
        if size := pool_bytes.get(DISK, 0):
            try:
                disk = _open_disk(surface.disk_dir, layout, codec, size)
            except (DirectoryBusy, DirectoryUnusable) as error:
                log.error("the node goes without its disk tier: %s", error)
                missing[DISK] = error
            else:
                media.append((disk if codec == "none" else CodecMedium(disk, layout, codec), disk.file_bytes))
    except KvgroveError:
        arena.close()
        for medium, _ in media:
            medium.close()
        raise
    return _assemble(surface, arena, media, missing, disk)


def _top_bytes(top: str, pool_bytes: Mapping[str, int]) -> int:
    if top == HOST and DEVICE in pool_bytes and HOST not in pool_bytes:
        raise PoolUnsupported("spec.pool: this node has no GPU to hold pool.device; set pool.host", field="spec.pool")
    return pool_bytes.get(top, 0) or pool_bytes.get(HOST, 0) or DEFAULT_POOL_BYTES


def _slots(layout: KVLayout, size: int, tier: str) -> int:
    slots = layout.slots_within(size)
    if slots < 2:
        raise PoolTooSmall(
            f"spec.pool.{tier}: {size} bytes hold {slots} blocks of {layout.block_bytes} bytes; "
            "give it room for the longest prompt at least",
            field=f"spec.pool.{tier}",
        )
    return slots


def _open_disk(directory: Path, layout: KVLayout, codec: CodecName, size: int) -> DiskMedium:
    fingerprint = fingerprint_of(layout, codec)
    block_bytes = layout.block_bytes if codec == "none" else encoded_bytes(layout, codec)
    disk = DiskMedium.open(
        directory / fingerprint.hex()[:16],
        layout=fingerprint,
        block_size=layout.block_size,
        block_bytes=block_bytes,
        capacity_bytes=size,
    )
    if disk.num_slots < 2:
        disk.close()
        raise PoolTooSmall(
            f"spec.pool.disk: {size} bytes hold {disk.num_slots} files of {disk.file_bytes} bytes; give it more",
            field="spec.pool.disk",
        )
    return disk


def _assemble(
    surface: Surface,
    arena: Arena,
    media: list[tuple[Medium, int]],
    missing: Mapping[str, KvgroveError],
    disk: DiskMedium | None,
) -> NodePool:
    """``media``: with the bytes that a block takes there, fastest first."""
    layout, slots = arena.layout, arena.num_slots
    sinks = [_sink(surface.log, name) for name in (surface.top, *(medium.name for medium, _ in media))]
    store = BlockStore(
        RunAllocator(slots),
        block_size=layout.block_size,
        block_bytes=layout.block_bytes,
        sink=sinks[0],
        policy=CostAware(slots),
        clock=surface.clock,
        limits=StoreLimits(low_free=slots // 20, high_free=slots // 10),
    )
    lower = [
        LowerTier(
            medium,
            block_size=layout.block_size,
            body_bytes=layout.block_bytes,
            block_bytes=block_bytes,
            policy=CostAware(medium.num_slots),
            sink=sink,
            workers=surface.workers,
            clock=surface.clock,
        )
        for (medium, block_bytes), sink in zip(media, sinks[1:], strict=True)
    ]
    stack = TierStack(TopTier(store.resident, arena), lower, sinks, workers=surface.workers, fresh=surface.fresh)
    adoption = None
    if disk is not None:
        adoption = Adoption(lower[-1], disk, surface.workers, clock=surface.clock, wall_clock=time.time)
    quotas = [TierQuotas(surface.top, store.resident, layout.block_bytes)]
    quotas += [TierQuotas(tier.name, tier.resident, tier.block_bytes) for tier in lower]
    return NodePool(surface.top, arena, store, stack, quotas, disk, adoption, missing)


def _sink(log: EventLog, tier: str) -> TierSink:
    logged, sink = LoggedResidency(log, tier), TierSink()
    sink.stored.append(logged.on_stored)
    sink.removed.append(logged.on_removed)
    return sink
