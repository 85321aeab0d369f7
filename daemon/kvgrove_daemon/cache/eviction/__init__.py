"""Which blocks give way first: the protocol, and the policies behind it.

Role: an order over *evictable leaves* (READY, childless, unleased). Invariants: leaves first (I6); only a block that
the caller confirms as evictable is handed out; no operation scans all blocks; time is logical, one tick per use of a
chain, so that a replayed trace and a node decide alike.
Must not know: slots, tokens, how a block is removed. Keys serve only to know a block again after it has gone.

A policy sees only the tail of each chain that is used. That is enough for an exact order over all blocks: a request
touches its blocks last to first, so a block's last use is the newest among its own and its descendants', and it only
matters once the descendants are gone. Every policy therefore passes what it knows of a leaf up when the leaf goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction.cost_aware import CostAware
from kvgrove_daemon.cache.eviction.lru import LeafLRU
from kvgrove_daemon.cache.eviction.policy import EvictionPolicy, Ticks
from kvgrove_daemon.cache.eviction.s3fifo import S3Fifo

__all__ = ["POLICIES", "CostAware", "EvictionPolicy", "Group", "LeafLRU", "S3Fifo", "Ticks"]


class PolicyMaker(Protocol):
    """A policy for blocks ``[0, capacity)``, with ``ticks`` that others may share."""

    def __call__(self, capacity: int, ticks: Ticks | None = ...) -> EvictionPolicy: ...


POLICIES: Final[Mapping[str, PolicyMaker]] = MappingProxyType(
    {"lru": LeafLRU, "s3fifo": S3Fifo, "cost-aware": CostAware}
)
"""Name -> the policy for a pool of so many blocks."""
