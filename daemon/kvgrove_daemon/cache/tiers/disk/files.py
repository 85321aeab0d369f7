"""Files of one directory that this process alone owns.

Role: how extents get into the directory, out of it, and are read, each in an order that a crash at any point leaves
whole. Invariants: a file has its final name only when its bytes are durable (temporary file, fsync, rename; the fsync
of the directory, which makes the name durable, is the caller's, so that one serves many); bytes that were overwritten
are read back from behind the page cache, as far as the kernel lets us. Must not know: slots, secrets.

All methods raise OSError, `BadExtent` where bytes are off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause, DirectoryBusy, DirectoryUnusable, problem
from kvgrove_daemon.cache.tiers.disk.extent import EXTENT_ID_BYTES, PAGE, Header, parse
from kvgrove_daemon.cache.tiers.disk.filesystem import Buffer, Filesystem
from kvgrove_daemon.cache.tiers.medium import MediumFailed

LOCK: Final = "lock"
SET_ASIDE: Final = "set-aside"
_FINAL: Final = ".extent"
_DRAFT: Final = ".draft"
_NAME: Final = re.compile(rf"([0-9a-f]{{{2 * EXTENT_ID_BYTES}}})({_FINAL}|{_DRAFT})".replace(".", r"\."))
_STRIDE: Final = 1 << 20
_ZEROS: Final = bytes(_STRIDE)


def extent_of(name: str) -> tuple[bytes, bool] | None:
    """The extent's id and whether the file has its final name; None for a name that is none of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else (bytes.fromhex(found[1]), found[2] == _FINAL)


class ExtentFiles:
    """See the module."""

    def __init__(self, filesystem: Filesystem, directory: Path) -> None:
        """Raises `DirectoryBusy` or `DirectoryUnusable`."""
        self.filesystem = filesystem
        self.directory = directory
        try:
            filesystem.make_directory(directory)
            self._lock = filesystem.lock(directory / LOCK)
        except BlockingIOError:
            cure = "give each daemon a directory of its own, or stop the other one"
            raise DirectoryBusy(f"{directory}: another process has locked it; {cure}", field="directory") from None
        except OSError as error:
            cure = "name a directory that this user owns and may write to"
            raise DirectoryUnusable(f"{directory}: {problem(error)}; {cure}", field="directory") from error

    def close(self) -> None:
        if self._lock >= 0:
            descriptor, self._lock = self._lock, -1
            self.filesystem.close(descriptor)

    def check_open(self) -> None:
        """Raises MediumFailed once this was closed: the directory may be another's by now."""
        if self._lock < 0:
            raise MediumFailed("disk: the directory was let go of", code="tier_closed")

    def path(self, extent: bytes) -> Path:
        return self.directory / f"{extent.hex()}{_FINAL}"

    def draft_path(self, extent: bytes) -> Path:
        return self.directory / f"{extent.hex()}{_DRAFT}"

    # -- writing -------------------------------------------------------------------------------------------------------

    def draft(self, header: Header, parts: Sequence[Buffer]) -> None:
        """A whole, durable file under its temporary name. Where this raises, `discard` what is there of it."""
        descriptor = self.filesystem.create(self.draft_path(header.extent))
        try:
            self.filesystem.write_at(descriptor, 0, parts)
            self.filesystem.sync(descriptor)
        finally:
            self.filesystem.close(descriptor)

    def publish(self, extent: bytes) -> None:
        self.filesystem.rename(self.draft_path(extent), self.path(extent))

    def discard(self, extent: bytes) -> list[Path]:
        """Remove what a failed write left, under either name; answers what the system kept. Never raises."""
        left: list[Path] = []
        for path in (self.draft_path(extent), self.path(extent)):
            try:
                self.filesystem.unlink(path)
            except OSError:
                left.append(path)
        return left

    def unlink(self, extent: bytes) -> None:
        self.filesystem.unlink(self.path(extent))

    def sync(self) -> None:
        self.filesystem.sync_directory(self.directory)

    # -- reading -------------------------------------------------------------------------------------------------------

    def header(self, path: Path) -> Header:
        """What the first page of a file says."""
        descriptor = self.filesystem.open(path)
        try:
            return parse(self.filesystem.read_at(descriptor, 0, PAGE))
        finally:
            self.filesystem.close(descriptor)

    def read(self, header: Header, buffer: memoryview) -> None:
        """Fill ``buffer`` with the beginning of the extent that has ``header``."""
        descriptor = self.filesystem.open(self.path(header.extent))
        try:
            found = self.filesystem.read_into(descriptor, buffer)
        finally:
            self.filesystem.close(descriptor)
        if found < len(buffer):
            raise BadExtent(Cause.TRUNCATED)
        if parse(bytes(buffer[:PAGE])) != header:
            raise BadExtent(Cause.CORRUPT)

    # -- erasing -------------------------------------------------------------------------------------------------------

    def overwrite(self, path: Path) -> bool:
        """Zeros over all of it, from the header on, durable and read back. False: they did not read back as zeros.

        A file that has gone counts as overwritten. What this means depends on the device: a disk that writes in place
        has lost the bytes; flash translation layers and file systems that copy on write may keep the old ones in places
        that no file names any more. The evidence that holds on all of them is that the secret is destroyed.
        """
        system = self.filesystem
        try:
            size = system.regular_size(path) or 0
            descriptor = system.open(path)
        except FileNotFoundError:
            return True
        try:
            for at in range(0, size, _STRIDE):
                system.write_at(descriptor, at, [_ZEROS[: min(_STRIDE, size - at)]])
            system.sync(descriptor)
            system.drop_cached(descriptor)
            return all(
                system.read_at(descriptor, at, _STRIDE) == _ZEROS[: min(_STRIDE, size - at)]
                for at in range(0, size, _STRIDE)
            )
        finally:
            system.close(descriptor)
