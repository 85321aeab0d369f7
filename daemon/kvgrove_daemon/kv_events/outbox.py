"""Between the core thread and the publisher: bounded, and never a wait on the core's side (I11)."""

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvgrove_daemon.kv_events.blocks import Note, blocks_of

MAX_ITEMS = 4096
MAX_BLOCKS = 262_144
"""Queued at once, about 50 MiB: a complete listing alone may be longer, and is then taken when nothing else waits."""


@dataclass(frozen=True, slots=True)
class Item:
    """``answer``: what listing requests are answered with; it is not published."""

    notes: Sequence[Note]
    answer: bool = False


class Outbox:
    """`put`, `empty` and `listing_wanted` are for the core, the rest for the publisher."""

    def __init__(self) -> None:
        self._items: deque[tuple[Item, int]] = deque()
        self._blocks = 0
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while there is something to take, or to stop for."""

    def put(self, item: Item) -> bool:
        """False if there is no room; the item is lost then."""
        blocks = sum(blocks_of(note) for note in item.notes)
        with self._lock:
            if self._items and (len(self._items) >= MAX_ITEMS or self._blocks + blocks > MAX_BLOCKS):
                return False
            self._items.append((item, blocks))
            self._blocks += blocks
        self.ring()
        return True

    @property
    def empty(self) -> bool:
        return not self._items

    def listing_wanted(self) -> bool:
        """Whether somebody waits for a listing; asked once per request."""
        if not self._wanted.is_set():
            return False
        self._wanted.clear()
        return True

    def want_listing(self) -> None:
        self._wanted.set()

    def take(self) -> Item | None:
        with self._lock:
            if not self._items:
                return None
            item, blocks = self._items.popleft()
            self._blocks -= blocks
            return item

    def ring(self) -> None:
        os.eventfd_write(self.wake, 1)

    def hush(self) -> None:
        """Call before taking, so that what is put meanwhile rings again."""
        try:
            os.eventfd_read(self.wake)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.wake)
