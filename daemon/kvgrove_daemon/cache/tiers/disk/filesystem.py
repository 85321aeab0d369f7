"""Every call that the disk tier makes of the operating system.

Role: the seam at which tests inject faults (a full disk, a broken one, a kill between any two calls) and at which the
order of writes can be watched. Nothing else in this package touches a file. Invariants: files are made for their owner
alone and never through a symbolic link; `write_at` writes everything or raises.
Must not know: what the bytes mean, what an error means.

All methods raise OSError.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

Buffer = bytes | bytearray | memoryview

_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Filesystem:
    """The real one. Paths name files; descriptors are plain ints that `close` must see exactly once."""

    def make_directory(self, path: Path) -> None:
        """An owner-only directory, with those above it. One that is there is tightened to its owner."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)

    def names(self, directory: Path) -> Iterator[str]:
        """Of everything in it, in no order."""
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name

    def regular_size(self, path: Path) -> int | None:
        """Bytes of a regular file; None for anything else, a symbolic link included."""
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def create(self, path: Path) -> int:
        """A new file, which must not be there yet, open for reading and writing."""
        return os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)

    def open(self, path: Path) -> int:
        """One that is there, open for reading and writing."""
        return os.open(path, _OPEN)

    def lock(self, path: Path) -> int:
        """Make and lock a file until its descriptor is closed. BlockingIOError: somebody else holds it."""
        descriptor = os.open(path, _OPEN | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def write_at(self, descriptor: int, offset: int, parts: Sequence[Buffer]) -> None:
        """All of ``parts``, one after the other, from ``offset`` on."""
        pending = [memoryview(part).cast("B") for part in parts if len(part)]
        while pending:
            written = os.pwritev(descriptor, pending, offset)
            offset += written
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]

    def read_at(self, descriptor: int, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` on; fewer only where the file ends."""
        whole = os.pread(descriptor, length, offset)
        if len(whole) == length or not whole:
            return whole
        parts = [whole]
        got = len(whole)
        while got < length and (part := os.pread(descriptor, length - got, offset + got)):
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def read_into(self, descriptor: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from the file's beginning; answers how many bytes there were."""
        got = 0
        while got < len(buffer) and (more := os.preadv(descriptor, [buffer[got:]], got)):
            got += more
        return got

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def drop_cached(self, descriptor: int) -> None:
        """Ask that the next read of this file comes from the device. Advice: the kernel may keep pages."""
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Nothing happens if it has gone already."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """Until then, names made, moved or removed in it may come back after a loss of power."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
