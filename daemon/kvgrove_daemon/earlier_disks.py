"""Disk directories of pools that this boot does not have: what an erase must not overlook (I8).

Role: the disk tier belongs to a pool and is opened with it, when a model of its layout is loaded. Until then nobody
knows what its directory holds, and a directory whose layout is served no more is never opened again. Invariants: while
a model may still come, such a directory is waited for; after that everything of the namespace in it is erased, since
what is to survive cannot be told from the rest there. Nothing else in it is touched.
Belongs to the core thread; files are the workers'.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from kvgrove_daemon.cache.tiers.disk import DiskMedium
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger(__name__)

_ANY_SIZE = 1 << 62


class EarlierDisks:
    """``opened()``: names of the directories below ``root`` that pools have."""

    def __init__(self, root: Path, opened: Callable[[], Iterable[str]], workers: Workers) -> None:
        self._root = root
        self._opened = opened
        self._workers = workers
        self._under_way: set[str] = set()
        self._erased: set[tuple[str, str]] = set()

    def look(self, uid: str, *, settled: bool) -> int:
        """How many directories may still hold something of ``uid``. ``settled``: every model that is planned is loaded,
        or failed: the others are erased from now on."""
        strange = _directories(self._root) - set(self._opened())
        left = sorted(name for name in strange if (name, uid) not in self._erased)
        if settled:
            for name in left:
                if name not in self._under_way:
                    self._under_way.add(name)
                    self._erase(name, uid)
        return len(left)

    def _erase(self, name: str, uid: str) -> None:
        directory = self._root / name

        def work() -> bool:
            try:
                # Extents say themselves whose they are: the layout serves adoption only.
                disk = DiskMedium.open(directory, layout=b"", block_size=1, block_bytes=1, capacity_bytes=_ANY_SIZE)
                with closing(disk):
                    disk.erase_namespace(uid)
            except KvgroveError as error:
                log.warning("a directory that no model uses is not erased yet: %s", error)
                return False
            return True

        def conclude(erased: bool) -> None:
            self._under_way.discard(name)
            if erased:
                self._erased.add((name, uid))

        self._workers.submit("write", work, conclude)


def _directories(root: Path) -> set[str]:
    try:
        return {entry.name for entry in root.iterdir() if entry.is_dir()}
    except FileNotFoundError:
        return set()
