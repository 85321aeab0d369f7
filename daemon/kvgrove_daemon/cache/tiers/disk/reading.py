"""How blocks are read from the disk, and how a namespace's secret is changed.

Role: open what lies in slots. Invariants: bytes are answered only where header, key, facts and body all prove to be
those that were written for these facts (ISO-12); a bad file is set aside at its first reading, and its slot is empty.
Must not know: writing, erasing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from kvgrove_daemon.cache.tiers.disk import sealing
from kvgrove_daemon.cache.tiers.disk.adoption import open_facts
from kvgrove_daemon.cache.tiers.disk.causes import (
    BadExtent,
    Cause,
    RewrapIncomplete,
    SecretUnknown,
    problem,
    refused,
)
from kvgrove_daemon.cache.tiers.disk.extent import PAGE, identity
from kvgrove_daemon.cache.tiers.disk.rewrap import rewrap
from kvgrove_daemon.cache.tiers.disk.sealing import Secret
from kvgrove_daemon.cache.tiers.disk.shelf import Shelf
from kvgrove_daemon.cache.tiers.medium import Facts, MediumCorrupt, MediumFailed


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """Counts of one rewrap."""

    done: int
    already: int
    """Under the new secret from an earlier call."""
    lost: int
    """Bad files: set aside."""
    discarded: int
    """Not adopted, so nobody knew whether they were to survive."""


class Reader:
    """Reads blocks, several at a time. What was read sealed stays in a buffer of each thread for its next read."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._local = threading.local()

    def read(self, slot: int, facts: Facts) -> bytes:
        """See `DiskMedium.read`."""
        shelf = self._shelf
        extent = shelf.table.held.get(slot)
        if extent is None or extent.dead:
            raise MediumFailed(f"disk: slot {slot} is empty", field="slot")
        header = extent.header
        openers = shelf.keyring.of(header.namespace).openers
        whole = self._buffer(header.file_bytes)
        try:
            with extent.lock:
                shelf.files.read(header, whole)
            head = bytes(whole[: header.body_at])
            data_key, _ = open_facts(head, openers)
            return sealing.open_body(data_key, whole[header.body_at :], head[:PAGE], identity(facts))
        except BadExtent as bad:
            if bad.cause is Cause.SECRET:
                raise SecretUnknown("disk: the block is under another secret than the one that is known") from None
            shelf.spoil(slot, extent, bad.cause)
            raise MediumCorrupt(f"disk: not what was written for this block ({bad.cause}); set aside") from None
        except OSError as error:
            shelf.spoil(slot, extent, Cause.UNREADABLE)
            raise refused("reading", error) from error

    def _buffer(self, size: int) -> memoryview:
        """Memory that is fresh has to be mapped page by page, which costs as much as reading into it."""
        found: bytearray | None = getattr(self._local, "buffer", None)
        if found is None or len(found) < size:
            found = self._local.buffer = bytearray(size)
        return memoryview(found)[:size]


def rewrap_slots(shelf: Shelf, namespace: str, old: Secret, new: Secret, discarded: int) -> Rewrapped:
    """Put all of the namespace that is in slots under ``new``. Raises RewrapIncomplete, having done what it could."""
    done = already = lost = remaining = 0
    trouble = ""
    for slot, extent in shelf.table.held_of(namespace):
        try:
            with extent.lock:
                if extent.dead:
                    continue
                changed = rewrap(shelf.files, extent.header, old, new, shelf.entropy)
            done, already = done + changed, already + (not changed)
        except BadExtent as bad:
            shelf.spoil(slot, extent, bad.cause)
            lost += 1
        except OSError as error:
            remaining, trouble = remaining + 1, problem(error)
    if remaining:
        raise RewrapIncomplete(done + already, remaining, trouble)
    return Rewrapped(done, already, lost, discarded)
