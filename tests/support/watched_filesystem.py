"""File systems that fail, stop or forget at a chosen place, over real directories.

`WatchedFilesystem` calls back at every write boundary: before each call that changes something, and in the middle of
each write. The callback may raise OSError (a full or broken disk), block (a slow one) or kill the process.
`ForgetfulFilesystem` can also undo what was never made durable, as a loss of power may.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from kvgrove_daemon.cache.tiers.disk.filesystem import Buffer, Filesystem

Boundary = Callable[[str], None]
"""Called with the name of what is about to happen."""


class WatchedFilesystem(Filesystem):
    """See the module."""

    def __init__(self, at: Boundary) -> None:
        self.at = at

    def make_directory(self, path: Path) -> None:
        self.at("make_directory")
        super().make_directory(path)

    def create(self, path: Path) -> int:
        self.at("create")
        return super().create(path)

    def write_at(self, descriptor: int, offset: int, parts: Sequence[Buffer]) -> None:
        self.at("write")
        whole = b"".join(bytes(part) for part in parts)
        half = len(whole) // 2
        super().write_at(descriptor, offset, [whole[:half]])
        self.at("half of a write")
        super().write_at(descriptor, offset + half, [whole[half:]])

    def sync(self, descriptor: int) -> None:
        self.at("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.at("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.at("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self.at("sync_directory")
        super().sync_directory(path)


class Countdown:
    """A boundary that does ``then`` at the ``stop``-th call, counted from 0, and nothing before or after."""

    def __init__(self, stop: int, then: Callable[[], None]) -> None:
        self.calls = 0
        self._stop, self._then = stop, then

    def __call__(self, _what: str) -> None:
        self.calls += 1
        if self.calls - 1 == self._stop:
            self._then()


class ForgetfulFilesystem(WatchedFilesystem):
    """See the module. ``attic``: a folder beside the watched ones, where unlinked files stay reachable."""

    def __init__(self, at: Boundary, attic: Path) -> None:
        super().__init__(at)
        attic.mkdir(parents=True, exist_ok=True)
        self._attic = attic
        self._bytes: dict[int, list[Callable[[], None]]] = defaultdict(list)  # inode -> undo
        self._names: dict[Path, list[Callable[[], None]]] = defaultdict(list)  # directory -> undo

    def lose_power(self, loss: str) -> None:
        """Undo what was not made durable: ``bytes``, ``names``, ``all``, ``none``, or ``oldest``.

        The last one is for devices that write in another order: of each file the first write alone is undone.
        """
        for undos in self._bytes.values():
            for undo in reversed(undos[:1] if loss == "oldest" else undos if loss in ("bytes", "all") else []):
                undo()
        for undos in self._names.values():
            for undo in reversed(undos if loss in ("names", "all") else []):
                undo()

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._names[path.parent].append(lambda: path.unlink(missing_ok=True))
        return descriptor

    def write_at(self, descriptor: int, offset: int, parts: Sequence[Buffer]) -> None:
        found = os.fstat(descriptor)
        length = sum(len(part) for part in parts)
        former = os.pread(descriptor, length, offset)
        kept = os.dup(descriptor)

        def undo() -> None:
            size = os.fstat(kept).st_size
            os.pwrite(kept, former.ljust(length, b"\0"), offset)
            os.ftruncate(kept, size if offset + length < size else found.st_size)

        self._bytes[found.st_ino].append(undo)
        super().write_at(descriptor, offset, parts)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self._bytes[os.fstat(descriptor).st_ino].clear()

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._names[target.parent].append(lambda: target.rename(source))

    def unlink(self, path: Path) -> None:
        if not path.exists():
            super().unlink(path)
            return
        copy = self._attic / f"{len(list(self._attic.iterdir()))}"
        copy.hardlink_to(path)
        super().unlink(path)
        self._names[path.parent].append(lambda: copy.rename(path))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._names[path].clear()
