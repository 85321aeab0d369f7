"""The pools of a node without a GPU: host memory above, a disk below, each in a place of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvgrove_daemon.cache.arena import Arena, SharedMemoryArena
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.workers import TierWorkers
from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.node_pools import NodePools, Surface
from kvgrove_protocol.events import HOST

_numbers = itertools.count()


@contextmanager
def node_pools(folder: Path) -> Iterator[NodePools]:
    """Pools whose disk lies below ``folder``; closed at the end."""
    workers = TierWorkers(lambda: None)
    pools = NodePools(
        Surface(
            top=HOST,
            make_arena=_make_arena,
            disk_dir=folder / "disk",
            workers=workers,
            fresh=lambda _uid, _root: True,
            clock=lambda: 0.0,
            log=EventLog("0"),
        )
    )
    try:
        yield pools
    finally:
        workers.close()
        pools.close()


def _make_arena(_tier: str, layout: KVLayout, slots: int) -> Arena:
    return SharedMemoryArena(layout, slots, segment_name(f"pools-{os.getpid()}", "0", next(_numbers)))
