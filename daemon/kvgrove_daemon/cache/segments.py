"""POSIX shared-memory segments that belong to one boot of one node.

Role: make, map and remove the files under ``/dev/shm`` that pools lie in (``shm_overview(7)``: on Linux a POSIX
segment *is* such a file, so other processes open it by name with ``shm_open``). Invariants:

- Memory is reserved when the segment is made, so that a full ``/dev/shm`` is an error with a cure here and never a
  SIGBUS later.
- The maker holds a lock on the file while it lives. A segment of an earlier boot is removed only when that lock can
  be taken: evidence that its owner is gone, not an assumption. Its pages are given back first, so that whoever still
  maps it reads zeros, and that none is left is looked at (I8).

Not `multiprocessing.shared_memory`: its resource tracker unlinks segments behind the back of whoever attaches first.
Must not know: layouts, blocks, torch.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from pathlib import Path
from typing import Final

from kvgrove_protocol.errors import Terminal

SHM: Final = Path("/dev/shm")  # noqa: S108 - the kernel's place for POSIX shared memory, not a temporary directory


class PoolNoRoom(Terminal):
    """The memory for a pool is not there."""

    code = "pool_no_room"

    def __init__(self, needed: int, free: int, cure: str) -> None:
        self.needed, self.free = needed, free
        super().__init__(f"no room for the KV pool: needs {_mib(needed)}, {_mib(free)} free; {cure}", field="pool")


def segment_name(node: str, boot: str, number: int) -> str:
    """``kvgrove-<node>-<boot>-<n>``; ``boot`` is lower-case hex, so that the parts can be told apart again."""
    if re.fullmatch(r"[0-9a-f]{1,32}", boot) is None:
        raise ValueError(f"boot must be 1 to 32 lower-case hex digits, not {boot!r}")
    if re.fullmatch(r"[A-Za-z0-9.\-]{1,180}", node) is None:
        raise ValueError(f"node must be a DNS name, not {node!r}")
    return f"kvgrove-{node}-{boot}-{number}"


class Segment:
    """One mapped, locked segment of ``size`` zeroed bytes. Raises `PoolNoRoom`, leaving nothing behind."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        free = _free_bytes()
        if size > free:
            raise PoolNoRoom(size, free, _CURE)
        # Without a name until it is locked and whole: another starter of the same node must not take it for a dead one.
        self._fd = os.open(SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._fd, 0, size)
            # Populated at once: a page fault per 4 KiB would be paid by the first prompts instead.
            self.memory = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            _give_name(self._fd, SHM / name)
        except OSError as error:
            self.close()
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise PoolNoRoom(size, _free_bytes(), _CURE) from error
            raise

    def close(self) -> None:
        """Remove the name and the lock. The bytes go with the last mapping: views that are still held stay valid."""
        if self._fd < 0:
            return
        (SHM / self.name).unlink(missing_ok=True)
        os.close(self._fd)
        self._fd = -1


def _give_name(fd: int, path: Path) -> None:
    """``open(2)``, O_TMPFILE: a nameless file gets its name by a link to what /proc shows of it."""
    own_files = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(str(fd), path, src_dir_fd=own_files, follow_symlinks=True)
    finally:
        os.close(own_files)


def remove_dead_segments(node: str, live_boot: str) -> dict[str, int]:
    """Empty and remove the segments that earlier boots of ``node`` left; answers name -> bytes of those removed.

    A segment whose owner still holds its lock stays, and is simply not in the answer; so is one that is not empty
    after all.
    """
    pattern = re.compile(rf"kvgrove-{re.escape(node)}-([0-9a-f]+)-\d+")
    removed: dict[str, int] = {}
    for path in sorted(SHM.glob("kvgrove-*")):
        match = pattern.fullmatch(path.name)
        if match is None or match[1] == live_boot:
            continue
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its owner, or another starter, was quicker
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(fd).st_size
            if _emptied(fd, size):
                path.unlink(missing_ok=True)
                removed[path.name] = size
        except BlockingIOError:
            continue
        finally:
            os.close(fd)
    return removed


def boots_with_segments(node: str) -> set[str]:
    """The boots of ``node`` of which a segment is there, living ones too."""
    pattern = re.compile(rf"kvgrove-{re.escape(node)}-([0-9a-f]+)-\d+")
    return {match[1] for path in SHM.glob("kvgrove-*") if (match := pattern.fullmatch(path.name)) is not None}


def _emptied(fd: int, size: int) -> bool:
    """Give back every page of the file; whether none is left, by ``lseek(2)``'s SEEK_DATA."""
    if size:
        with mmap.mmap(fd, size) as memory:
            memory.madvise(mmap.MADV_REMOVE)
    try:
        os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return True
        raise
    return False


_CURE: Final = (
    "give the pool fewer bytes, or enlarge /dev/shm (containers: an emptyDir with medium Memory mounted there)"
)


def _free_bytes() -> int:
    stats = os.statvfs(SHM)
    return stats.f_bavail * stats.f_frsize


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
