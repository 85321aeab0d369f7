"""The disk as a place for blocks.

Role: the `Medium` over one directory; see the package for its use. Invariants: what `write_many` answered for is whole
and durable, and what it did not answer for is not found (I4); `read` answers only what the seals prove to be the bytes
that were written for these facts (ISO-12); what is to be erased is never read again, whether or not the disk obeys.
Must not know: indexes, plans, leases, who calls when.

Calls for several slots may overlap; those for one slot may not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvgrove_daemon.cache.tiers.disk import adoption
from kvgrove_daemon.cache.tiers.disk.adoption import Survivor
from kvgrove_daemon.cache.tiers.disk.causes import Cause, DirectoryUnusable, problem
from kvgrove_daemon.cache.tiers.disk.erasing import Eraser
from kvgrove_daemon.cache.tiers.disk.files import ExtentFiles
from kvgrove_daemon.cache.tiers.disk.filesystem import Filesystem
from kvgrove_daemon.cache.tiers.disk.keyring import Keyring, Secrets
from kvgrove_daemon.cache.tiers.disk.reading import Reader, Rewrapped, rewrap_slots
from kvgrove_daemon.cache.tiers.disk.sealing import Entropy, Secret
from kvgrove_daemon.cache.tiers.disk.set_aside import SetAside
from kvgrove_daemon.cache.tiers.disk.shelf import BlockShape, Shelf
from kvgrove_daemon.cache.tiers.disk.start import take_stock
from kvgrove_daemon.cache.tiers.disk.table import ExtentTable
from kvgrove_daemon.cache.tiers.disk.writing import Writer
from kvgrove_daemon.cache.tiers.medium import Entry, Facts
from kvgrove_protocol.events import DISK

_ADOPTABLE_LATER: Final = frozenset({Cause.LAYOUT, Cause.SECRET, Cause.ROOT, Cause.DUPLICATE, Cause.ORPHAN})
"""What keeps a good file from being adopted now. Any other cause is one of the file itself."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """A copy of gauges and counters. Counters only grow."""

    slots: int
    held: int
    waiting: int
    """Found at the start and neither adopted nor discarded yet."""
    to_erase: int
    """Never read again, but not proven gone."""
    set_aside: int
    set_aside_bytes: int
    set_aside_removed: int
    reason: str
    """Why the last write did not work (``tier_full``, ``tier_failed``); empty once one works again."""
    files: Mapping[Cause, int]
    """Files that were not used as data, by cause."""


class DiskMedium:
    """See the module. Make it with `open`; all calls but `adopt`, `state` and the secrets' block on files."""

    name = DISK

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._reader = Reader(shelf)
        self._writer = Writer(shelf)
        self._eraser = Eraser(shelf)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        layout: bytes,
        block_size: int,
        block_bytes: int,
        capacity_bytes: int,
        filesystem: Filesystem | None = None,
        entropy: Entropy = os.urandom,
        wall_clock: Callable[[], float] = time.time,
    ) -> DiskMedium:
        """Own ``directory``, made if need be, and take stock of it: one header is read for each file there.

        ``layout``: `LayoutFingerprint.digest`. ``block_size`` in tokens. ``capacity_bytes`` covers whole files; beyond,
        what is there already gives way. Raises `DirectoryBusy` or `DirectoryUnusable`.
        """
        shape = BlockShape(layout, block_size, block_bytes)
        files = ExtentFiles(filesystem if filesystem is not None else Filesystem(), directory)
        try:
            set_aside = SetAside(files)
            table = ExtentTable(capacity_bytes // shape.file_bytes)
            take_stock(files, set_aside, table)
        except OSError as error:
            files.close()
            message = f"{directory}: {problem(error)} while looking at it; see to the disk, or name another directory"
            raise DirectoryUnusable(message, field="directory") from error
        return cls(Shelf(files, set_aside, table, Keyring(), shape, entropy, wall_clock))

    @property
    def num_slots(self) -> int:
        return self._shelf.table.num_slots

    @property
    def directory(self) -> Path:
        return self._shelf.files.directory

    @property
    def file_bytes(self) -> int:
        """What one block takes on disk."""
        return self._shelf.shape.file_bytes

    def close(self) -> None:
        """Forget all secrets and let go of the directory. Calling it again does nothing."""
        self._shelf.keyring.clear()
        self._shelf.files.close()

    # -- secrets -------------------------------------------------------------------------------------------------------

    def set_secret(self, namespace: str, secret: bytes, former: bytes = b"") -> None:
        """From now on blocks of ``namespace`` are wrapped by ``secret``; those under ``former`` can be read too.

        Raises Malformed for a secret under 32 bytes.
        """
        self._shelf.keyring.set(namespace, Secrets(Secret.of(secret), Secret.of(former) if former else None))

    def forget_secret(self, namespace: str) -> None:
        """Its lease has ended: nothing of it can be read or written until the secret is given again."""
        self._shelf.keyring.forget(namespace)

    def rewrap(self, namespace: str, old: bytes, new: bytes) -> Rewrapped:
        """Put what is in slots under ``new`` and forget ``old``: erase first what is not to survive.

        Extents that wait are discarded: nobody knows what they hold. Crash-safe; once it has answered nothing of the
        namespace opens under ``old``. Raises `RewrapIncomplete`: call again, also after a restart.
        """
        before, after = Secret.of(old), Secret.of(new)
        self._shelf.keyring.set(namespace, Secrets(after, before))
        discarded = self.discard(namespace)
        counts = rewrap_slots(self._shelf, namespace, before, after, discarded)
        self._shelf.keyring.set(namespace, Secrets(after))
        return counts

    # -- what was there before the start -------------------------------------------------------------------------------

    def survey(self, namespace: str, roots: Collection[bytes]) -> list[Survivor]:
        """What of the namespace may be adopted under ``roots`` (its shared realms that are in force), parents first.

        All else of it keeps waiting, counted by cause, to be discarded. Raises `SecretUnknown`.
        """
        found = adoption.survey(self._shelf, namespace, roots)
        for extent, cause in found.others:
            self._shelf.table.pass_over(extent, cause)
            if cause not in _ADOPTABLE_LATER and self._shelf.table.stop_waiting(extent):
                self._shelf.set_aside.put(self._shelf.files.path(extent.header.extent), cause)
        return found.survivors

    def adopt(self, slot: int, survivor: Survivor) -> bool:
        """Let ``slot`` hold it, without touching a file. False: it had to give way, so skip what follows it."""
        return self._shelf.table.adopt(slot, survivor.extent, survivor.facts.root, survivor.facts.key)

    def discard(self, namespace: str) -> int:
        """Unlink what of the namespace was not adopted; answers how many. Raises `MediumFailed`."""
        return self._eraser.discard(namespace)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def write(self, slot: int, facts: Facts, body: bytes | memoryview) -> None:
        """`write_many` of one."""
        self.write_many([(slot, facts, body)])

    def write_many(self, blocks: Sequence[Entry]) -> None:
        """Store these into empty slots: durable on return, all or, where it raises, none.

        Raises `MediumFull`, `MediumFailed` or `SecretUnknown`; ValueError for a slot in use or a body of another size.
        """
        self._writer.write_many(blocks)

    def read(self, slot: int, facts: Facts) -> bytes:
        """The body that was written for ``facts``.

        Raises `MediumCorrupt` or `MediumFailed`: the file was set aside and the slot is empty. `SecretUnknown`: it
        still holds what it held.
        """
        return self._reader.read(slot, facts)

    def release(self, slots: Sequence[int]) -> None:
        """Forget these without overwriting them: for blocks that gave way to others.

        Raises `MediumFailed`: what could not be removed is never read again, and its slot is to be erased.
        """
        self._eraser.release(slots)

    def erase(self, slots: Sequence[int]) -> int:
        """Overwrite, read back, unlink; answers how many slots are proven empty, those that were included.

        Raises `EraseIncomplete`, having done the others. What overwriting is worth: see `ExtentFiles.overwrite`.
        """
        self._eraser.erase(slots)
        return len(slots)

    def erase_namespace(self, namespace: str) -> int:
        """Erase all of it, adopted or not, without any secret, forgetting the one that is known; how many files.

        Its slots are empty then. Files whose owner cannot be told any more go with it. Raises `EraseIncomplete`.
        """
        return self._eraser.erase_namespace(namespace)

    # -- looking -------------------------------------------------------------------------------------------------------

    def namespaces(self) -> set[str]:
        """UIDs of which any byte may be left here, as far as headers tell."""
        return self._shelf.table.namespaces() | self._shelf.set_aside.namespaces()

    def state(self) -> DiskState:
        table = self._shelf.table
        with table.lock:
            return DiskState(
                slots=table.num_slots,
                held=len(table.held),
                waiting=len(table.waiting),
                to_erase=sum(extent.dead for extent in table.held.values()),
                set_aside=len(self._shelf.set_aside),
                set_aside_bytes=self._shelf.set_aside.bytes,
                set_aside_removed=self._shelf.set_aside.removed,
                reason=self._writer.reason,
                files=MappingProxyType(+table.counts),
            )
