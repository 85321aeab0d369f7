"""What a store tells of itself: copies of its gauges and counters.

Role: gather figures from the parts that keep them, each in one place. Invariants: a copy is of one moment and never
changes; counters only grow; numbers alone, no key, token or name but the namespace's UID (I12). Must not know: how
blocks come and go, who looks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvgrove_daemon.cache.build import BuildScope
from kvgrove_daemon.cache.chains import KnownChains
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.resident import ResidentBlocks
from kvgrove_protocol.reasons import BypassReason


@dataclass(frozen=True, slots=True)
class Usage:
    """What one namespace holds, blocks that only wait for their last reader included."""

    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A copy of gauges and counters. Counters only grow."""

    slots: int
    free: int
    ready: int
    retiring: int
    private: int
    quarantined: int
    """Erased, and not known to be wiped. ``free + ready + retiring + private + quarantined = slots``."""
    leases: int
    builds: int
    matches: int
    no_room: int
    evicted_for_requests: int
    """Blocks evicted on the request path, since relief had made too little room."""
    collisions: int
    double_releases: int
    stored: int
    duplicates: int
    hashed_blocks: int
    recalled_blocks: int
    known_chain_bytes: int
    removed: Mapping[RemovalCause, int]
    bypassed: Mapping[BypassReason, int]
    ended: Mapping[str, int]


def usage_of(index: BlockIndex, block_bytes: int) -> dict[str, Usage]:
    """By namespace UID; only those that hold anything."""
    return {namespace: Usage(blocks, blocks * block_bytes) for namespace, blocks in index.per_namespace.items()}


def stats_of(resident: ResidentBlocks, chains: KnownChains, scope: BuildScope, *, matches: int) -> StoreStats:
    """Of the store that these are the parts of."""
    pool, index, counters = resident.pool, resident.index, scope.counters
    return StoreStats(
        slots=pool.num_slots,
        free=pool.free_count,
        ready=len(index),
        retiring=index.held - len(index),
        private=pool.used_count - index.held - len(resident.quarantine),
        quarantined=len(resident.quarantine),
        leases=resident.leases.active,
        builds=len(scope.live),
        matches=matches,
        no_room=resident.no_room,
        evicted_for_requests=resident.evicted_for_requests,
        collisions=resident.collisions,
        double_releases=resident.leases.double_releases,
        stored=counters.stored,
        duplicates=counters.duplicates,
        hashed_blocks=chains.hashed_blocks,
        recalled_blocks=chains.recalled_blocks,
        known_chain_bytes=chains.bytes,
        removed=Counter(resident.removed),
        bypassed=Counter(counters.bypassed),
        ended=Counter(counters.ended),
    )
