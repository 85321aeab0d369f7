"""Which extents there are: in slots, waiting to be adopted, and being written.

Role: the medium's memory of its directory. Invariants: an extent is in one of the three at most; together they are
never more than ``num_slots``; what waits gives way to what is written, deepest first, so that what is left is rooted.
All methods that change several facts do so under one lock. Must not know: files, secrets.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvgrove_daemon.cache.tiers.disk.causes import Cause
from kvgrove_daemon.cache.tiers.disk.extent import Header


@dataclass(slots=True, eq=False)
class Extent:
    """One file."""

    header: Header
    root: bytes = b""
    """Empty while it waits: it is sealed."""
    key: bytes = b""
    passed_over: Cause | None = None
    """Why it was not adopted."""
    dead: bool = False
    """To be erased: never read again, and not proven gone yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while its bytes are read or its key is rewrapped."""


class ExtentTable:
    """See the module."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.lock = threading.RLock()
        self.held: dict[int, Extent] = {}
        self.waiting: dict[bytes, Extent] = {}
        """By extent id, shallow ones first."""
        self.writing: dict[int, Extent] = {}
        self.counts: Counter[Cause] = Counter()

    def count(self, cause: Cause, by: int = 1) -> None:
        with self.lock:
            self.counts[cause] += by

    def begin_waiting(self, found: Iterable[Extent]) -> list[Extent]:
        """Take in what the directory held at the start; answers those for which there is no room."""
        ordered = sorted(found, key=lambda extent: extent.header.depth)
        with self.lock:
            self.waiting = {extent.header.extent: extent for extent in ordered[: self.num_slots]}
        return ordered[self.num_slots :]

    def reserve(self, extents: Sequence[tuple[int, Extent]]) -> list[Extent]:
        """Begin to write into these slots; answers what must give way. Raises ValueError, having changed nothing."""
        with self.lock:
            for slot, _ in extents:
                self._check_free(slot)
            if len({slot for slot, _ in extents}) < len(extents):
                raise ValueError("slots: one is named twice")
            self.writing.update(extents)
            over = len(self.held) + len(self.waiting) + len(self.writing) - self.num_slots
            return [self.waiting.popitem()[1] for _ in range(over)]

    def place(self, slots: Sequence[int]) -> None:
        """What was being written into these is there now."""
        with self.lock:
            for slot in slots:
                self.held[slot] = self.writing.pop(slot)

    def withdraw(self, slots: Sequence[int]) -> None:
        """Nothing came of writing into these."""
        with self.lock:
            for slot in slots:
                self.writing.pop(slot, None)
                self.held.pop(slot, None)

    def adopt(self, slot: int, extent: Extent, root: bytes, key: bytes) -> bool:
        """Move it from waiting into ``slot``; False if it waits no longer. Raises ValueError if the slot is taken."""
        with self.lock:
            self._check_free(slot)
            if self.waiting.pop(extent.header.extent, None) is None:
                return False
            extent.root, extent.key = root, key
            self.held[slot] = extent
            return True

    def pass_over(self, extent: Extent, cause: Cause) -> None:
        """It was not adopted: counted once, however often it is looked at."""
        with self.lock:
            self.counts[cause] += cause is not extent.passed_over
            extent.passed_over = cause

    def stop_waiting(self, extent: Extent) -> bool:
        """False: it did not wait any more."""
        with self.lock:
            return self.waiting.pop(extent.header.extent, None) is not None

    def wait_again(self, extents: Sequence[Extent]) -> None:
        """They could not be removed."""
        with self.lock:
            self.waiting.update((extent.header.extent, extent) for extent in extents)

    def drop(self, slot: int, extent: Extent) -> None:
        """Empty ``slot`` if it still holds ``extent``."""
        with self.lock:
            if self.held.get(slot) is extent:
                del self.held[slot]

    def held_of(self, namespace: str) -> list[tuple[int, Extent]]:
        with self.lock:
            return [(slot, extent) for slot, extent in self.held.items() if extent.header.namespace == namespace]

    def waiting_of(self, namespace: str) -> list[Extent]:
        with self.lock:
            return [extent for extent in self.waiting.values() if extent.header.namespace == namespace]

    def take_waiting(self, namespace: str) -> list[Extent]:
        """Those of ``namespace``, which wait no longer."""
        with self.lock:
            taken = self.waiting_of(namespace)
            for extent in taken:
                del self.waiting[extent.header.extent]
        return taken

    def is_being_written(self, namespace: str) -> bool:
        with self.lock:
            return any(extent.header.namespace == namespace for extent in self.writing.values())

    def namespaces(self) -> set[str]:
        with self.lock:
            every = (*self.held.values(), *self.waiting.values(), *self.writing.values())
            return {extent.header.namespace for extent in every}

    def known_ids(self) -> set[bytes]:
        with self.lock:
            every = (*self.held.values(), *self.waiting.values(), *self.writing.values())
            return {extent.header.extent for extent in every}

    def _check_free(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise ValueError(f"slot must be within 0..{self.num_slots - 1}, not {slot}")
        if slot in self.held or slot in self.writing:
            raise ValueError(f"slot {slot} is in use: release or erase it first")
