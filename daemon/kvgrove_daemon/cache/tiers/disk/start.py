"""What an earlier life of this node left in the directory.

Role: look at every file once, at the start, and sort it: an extent that may be adopted later, or something that goes
out of the way, counted by its cause. Invariants: reads headers alone; whatever is not an extent of the right size under
its own name never becomes one; a write that never ended is removed, an erase that never ended is ended.
Must not know: slots, secrets.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, Cause
from kvgrove_daemon.cache.tiers.disk.extent import Header
from kvgrove_daemon.cache.tiers.disk.files import LOCK, SET_ASIDE, ExtentFiles, extent_of
from kvgrove_daemon.cache.tiers.disk.set_aside import SetAside
from kvgrove_daemon.cache.tiers.disk.table import Extent, ExtentTable


def take_stock(files: ExtentFiles, set_aside: SetAside, table: ExtentTable) -> None:
    """Fill ``table.waiting``. Raises OSError where the directory itself fails; bad files are only counted."""
    surplus = table.begin_waiting(Extent(header) for header in _extents(files, set_aside, table))
    for extent in surplus:
        files.discard(extent.header.extent)
    table.count(Cause.SURPLUS, len(surplus))
    files.sync()


def _extents(files: ExtentFiles, set_aside: SetAside, table: ExtentTable) -> Iterator[Header]:
    for name in sorted(files.filesystem.names(files.directory)):
        if name in (LOCK, SET_ASIDE):
            continue
        try:
            yield _extent(files, name)
        except BadExtent as bad:
            table.count(bad.cause)
            _put_away(files, set_aside, name, bad.cause)
        except OSError:
            table.count(Cause.UNREADABLE)
            set_aside.put(files.directory / name, Cause.UNREADABLE)


def _extent(files: ExtentFiles, name: str) -> Header:
    """Raises BadExtent or OSError."""
    path, named = files.directory / name, extent_of(name)
    size = files.filesystem.regular_size(path)
    if size is None or named is None:
        raise BadExtent(Cause.FOREIGN)
    if not named[1]:
        raise BadExtent(Cause.UNFINISHED)
    header = files.header(path)
    if size != header.file_bytes:
        raise BadExtent(Cause.TRUNCATED)
    if header.extent != named[0]:
        raise BadExtent(Cause.CORRUPT)
    return header


def _put_away(files: ExtentFiles, set_aside: SetAside, name: str, cause: Cause) -> None:
    path, named = files.directory / name, extent_of(name)
    if cause is Cause.UNFINISHED and named is not None:
        files.discard(named[0])
    elif cause is Cause.HALF_ERASED and files.overwrite(path):
        files.filesystem.unlink(path)
    elif files.filesystem.regular_size(path) is not None:
        set_aside.put(path, cause)
