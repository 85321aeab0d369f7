"""Residency events of this boot, in order (DESIGN section 5, point 3).

The cache reports each block that becomes READY or goes; `EventLog` merges neighbouring reports of one kind and numbers
the batches. A snapshot is consistent with the numbering because both are made in the cache's own thread.
Must not know: sockets, subscribers.
"""

from collections.abc import Iterable, Sequence

from kvgrove_protocol.events import (
    HOST,
    SNAPSHOT_CHUNK_KEYS,
    Event,
    EventBatch,
    NodeLoad,
    Removed,
    SnapshotChunk,
    Stored,
)

MAX_KEYS_PER_EVENT = 16_384
"""Keeps a batch's frame far below the protocol's limit."""


class EventLog:
    """Collects changes between flushes. Not thread-safe: it belongs to the cache's thread."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._next_seq = 0
        self._pending: list[tuple[type[Stored] | type[Removed], list[bytes]]] = []

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def stored(self, keys: Sequence[bytes]) -> None:
        self._append(Stored, keys)

    def removed(self, keys: Sequence[bytes]) -> None:
        self._append(Removed, keys)

    def _append(self, kind: type[Stored] | type[Removed], keys: Sequence[bytes]) -> None:
        if not keys:
            return
        if self._pending and self._pending[-1][0] is kind and len(self._pending[-1][1]) < MAX_KEYS_PER_EVENT:
            self._pending[-1][1].extend(keys)
        else:
            self._pending.append((kind, list(keys)))

    def flush(self, load: NodeLoad, *, heartbeat: bool = False) -> EventBatch | None:
        """The changes since the last flush as the next batch; None if there are none and no ``heartbeat`` is due."""
        if not self._pending and not heartbeat:
            return None
        events: list[Event] = [kind(keys=b"".join(keys), tier=HOST) for kind, keys in self._pending]
        self._pending.clear()
        batch = EventBatch(boot=self._boot, seq=self._next_seq, events=events, load=load)
        self._next_seq += 1
        return batch

    def snapshot(self, keys: Iterable[bytes]) -> list[SnapshotChunk]:
        """``keys``: all READY blocks now. True up to batch ``next_seq - 1``, which must have been flushed before.

        Raises RuntimeError if changes are pending: they would be applied twice or lost.
        """
        if self._pending:
            raise RuntimeError("flush before taking a snapshot")
        every = list(keys)
        chunks = [
            every[start : start + SNAPSHOT_CHUNK_KEYS] for start in range(0, len(every), SNAPSHOT_CHUNK_KEYS)
        ] or [[]]
        return [
            SnapshotChunk(
                boot=self._boot,
                seq=self._next_seq - 1,
                index=index,
                last=index == len(chunks) - 1,
                keys=b"".join(chunk),
            )
            for index, chunk in enumerate(chunks)
        ]
