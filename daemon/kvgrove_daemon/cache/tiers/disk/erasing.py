"""How blocks leave the disk: released, discarded, or erased with evidence.

Role: what gave way to others is unlinked; what is to be erased is overwritten, read back, unlinked, and looked for.
Invariants: a file counts as erased only when zeros were read back from it, its name is gone from the directory, and the
directory was made durable; one that the system refuses is named and hinders no other; whatever is not proven gone stays
in its slot, unreadable, until it is. Must not know: why, who asked.

`ExtentFiles.overwrite` says what overwriting is worth on which devices. What proves an erase on all of them is that the
secret which wraps an extent's data key is destroyed; this module makes the bytes go as well, as far as a file system
lets anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvgrove_daemon.cache.tiers.disk.causes import BadExtent, EraseIncomplete, problem, refused
from kvgrove_daemon.cache.tiers.disk.files import LOCK, SET_ASIDE, ExtentFiles, extent_of
from kvgrove_daemon.cache.tiers.disk.shelf import Shelf
from kvgrove_daemon.cache.tiers.disk.table import Extent

_NOT_ZERO: Final = "what was read back is not what was written over it"


class Eraser:
    """See the module."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def release(self, slots: Sequence[int]) -> None:
        """See `DiskMedium.release`."""
        self._shelf.files.check_open()
        shelf = self._shelf
        trouble: OSError | None = None
        for slot, extent in shelf.condemn(slots):
            try:
                shelf.files.unlink(extent.header.extent)
                shelf.table.drop(slot, extent)
            except OSError as error:
                trouble = error
        if trouble is not None:
            raise refused("removing files", trouble)

    def discard(self, namespace: str) -> int:
        """See `DiskMedium.discard`."""
        self._shelf.files.check_open()
        shelf = self._shelf
        extents = shelf.table.take_waiting(namespace)
        for at, extent in enumerate(extents):
            try:
                shelf.files.unlink(extent.header.extent)
            except OSError as error:
                shelf.table.wait_again(extents[at:])
                raise refused("removing files", error) from error
        return len(extents)

    def erase(self, slots: Sequence[int]) -> None:
        """See `DiskMedium.erase`."""
        self._shelf.files.check_open()
        self._prove(self._shelf.condemn(slots), [], [*self._shelf.left])

    def erase_namespace(self, namespace: str) -> int:
        """See `DiskMedium.erase_namespace`."""
        self._shelf.files.check_open()
        shelf = self._shelf
        shelf.keyring.forget(namespace)
        held = shelf.condemn([slot for slot, _ in shelf.table.held_of(namespace)])
        waiting = shelf.table.take_waiting(namespace)
        try:
            others = list(self._unlisted(namespace, waiting))
        except OSError as error:
            shelf.table.wait_again(waiting)
            raise refused("looking for what is left of a namespace", error) from error
        self._prove(held, waiting, others)
        erased = len(held) + len(waiting) + len(others)
        if shelf.table.is_being_written(namespace):
            raise EraseIncomplete(erased, 1, "a write is under way")
        return erased

    def _unlisted(self, namespace: str, listed: Sequence[Extent]) -> Iterator[Path]:
        """Files of the namespace, or that may be of it, beside those in the table and ``listed``.

        They were set aside, or a failed write could not remove them. Raises OSError.
        """
        files = self._shelf.files
        known = self._shelf.table.known_ids() | {extent.header.extent for extent in listed}
        yield from self._shelf.set_aside.concerning(namespace)
        for name in files.filesystem.names(files.directory):
            named = extent_of(name)
            if name in (LOCK, SET_ASIDE) or named is None or named[0] in known:
                continue
            try:
                concerned = files.header(files.directory / name).namespace == namespace
            except (BadExtent, OSError):
                concerned = True
            if concerned:
                yield files.directory / name

    def _prove(self, held: Sequence[tuple[int, Extent]], waiting: Sequence[Extent], others: Sequence[Path]) -> None:
        """Raises EraseIncomplete."""
        shelf = self._shelf
        slots = {shelf.files.path(extent.header.extent): (slot, extent) for slot, extent in held}
        waited = {shelf.files.path(extent.header.extent): extent for extent in waiting}
        done = erase_files(shelf.files, [*slots, *waited, *others])
        for path in done.gone:
            if path in slots:
                shelf.table.drop(*slots[path])
            shelf.set_aside.forget(path)
        shelf.left.difference_update(done.gone)
        shelf.table.wait_again([extent for path, extent in waited.items() if path not in done.gone])
        remaining = len(slots) + len(waited) + len(others) - len(done.gone)
        if remaining:
            left = tuple(slot for path, (slot, _) in slots.items() if path not in done.gone)
            raise EraseIncomplete(len(done.gone), remaining, done.problem, left)


@dataclass(slots=True)
class Erased:
    """Files that are proven gone, and what went wrong with the last one that is not."""

    gone: set[Path] = field(default_factory=set)
    problem: str = ""


def erase_files(files: ExtentFiles, paths: Sequence[Path]) -> Erased:
    """Erase these, under one fsync of each directory. Never raises OSError."""
    done = Erased()
    unlinked: list[Path] = []
    for path in paths:
        try:
            if files.overwrite(path):
                files.filesystem.unlink(path)
                unlinked.append(path)
            else:
                done.problem = _NOT_ZERO
        except OSError as error:
            done.problem = problem(error)
    for directory in {path.parent for path in unlinked}:
        try:
            files.filesystem.sync_directory(directory)
        except OSError as error:
            done.problem = problem(error)
            continue
        done.gone.update(path for path in unlinked if path.parent == directory and not files.filesystem.exists(path))
    return done
