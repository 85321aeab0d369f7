"""Where bad files go: out of the way, for somebody to look at, and only a few of them.

Role: a folder beside the extents, bounded by count and bytes (I11); the oldest give way. Invariant: nothing in it is
ever read as data; it is looked at for the UID in its header alone, so that a namespace's erase finds it here too.
Must not know: why a file is bad.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause
from kvgrove_daemon.cache.tiers.disk.files import SET_ASIDE, ExtentFiles

MOST_FILES: Final = 16
MOST_BYTES: Final = 256 << 20
_NAME: Final = re.compile(r"(\d{1,16})\.[a-z_]+")


@dataclass(frozen=True, slots=True)
class Kept:
    """One bad file."""

    path: Path
    size: int
    namespace: str | None
    """UID, where its header could be read; None: it may be anybody's."""


class SetAside:
    """See the module."""

    def __init__(self, files: ExtentFiles) -> None:
        """Takes in what earlier starts put there. Raises OSError."""
        self._files = files
        self._lock = threading.Lock()
        self.directory = files.directory / SET_ASIDE
        self._kept: list[Kept] = []  # oldest first
        self.removed = 0
        """How many gave way, or could not be kept."""
        files.filesystem.make_directory(self.directory)
        names = sorted(files.filesystem.names(self.directory), key=_number)
        self._next = _number(names[-1]) + 1 if names else 0
        for name in names:
            path = self.directory / name
            with suppress(OSError):
                size = files.filesystem.regular_size(path)
                if size is not None:
                    self._kept.append(Kept(path, size, self._namespace(path)))
        self._trim()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        return sum(kept.size for kept in self._kept)

    def put(self, path: Path, cause: Cause) -> None:
        """Move ``path`` here. Where that fails it is removed instead: it must not be found again. Never raises."""
        filesystem = self._files.filesystem
        with self._lock:
            target = self.directory / f"{self._next:08d}.{cause.value}"
            self._next += 1
            try:
                size = filesystem.regular_size(path) or 0
                filesystem.rename(path, target)
            except OSError:
                self.removed += 1
                with suppress(OSError):
                    filesystem.unlink(path)
                return
            self._kept.append(Kept(target, size, self._namespace(target)))
            self._trim()

    def namespaces(self) -> set[str]:
        with self._lock:
            return {kept.namespace for kept in self._kept if kept.namespace is not None}

    def concerning(self, namespace: str) -> list[Path]:
        """Files that are of this namespace, or that cannot be told to be another's."""
        with self._lock:
            return [kept.path for kept in self._kept if kept.namespace in (None, namespace)]

    def forget(self, path: Path) -> None:
        """It has been erased."""
        with self._lock:
            self._kept = [kept for kept in self._kept if kept.path != path]

    def _trim(self) -> None:
        while len(self._kept) > MOST_FILES or self.bytes > MOST_BYTES:
            oldest = self._kept.pop(0)
            self.removed += 1
            with suppress(OSError):
                self._files.filesystem.unlink(oldest.path)

    def _namespace(self, path: Path) -> str | None:
        try:
            return self._files.header(path).namespace
        except (OSError, BadExtent):
            return None


def _number(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else -1
