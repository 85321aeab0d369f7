"""Residency events of this boot, in order (DESIGN section 5, point 3).

The cache reports each block that becomes READY or goes; `EventLog` merges neighbouring reports of one kind, numbers the
batches and keeps the last ones for followers with a gap. Beacons of builds ride along. A snapshot is consistent with
the numbering because both are made in the cache's own thread.
Must not know: sockets, subscribers.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from kvgrove_daemon.beacons import BuildBeacons
from kvgrove_protocol.events import (
    HOST,
    NOTHING_LISTED,
    SNAPSHOT_CHUNK_KEYS,
    Event,
    EventBatch,
    Listing,
    NodeLoad,
    Removed,
    SnapshotChunk,
    Stored,
    count_keys,
    fingerprint,
)

log = logging.getLogger(__name__)

MAX_KEYS_PER_EVENT = 16_384
"""Keeps a batch's frame far below the protocol's limit."""
MAX_KEPT_BATCHES = 1024
MAX_KEPT_KEYS = 262_144
"""Bounds of what is kept for followers with a gap: 8 MiB of keys. Whoever missed more gets a snapshot."""

_Kind = type[Stored] | type[Removed]


class EventLog:
    """Collects changes between flushes. Not thread-safe: it belongs to the cache's thread."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.beacons = BuildBeacons()
        self.corrected = 0
        """Snapshots that found more or less READY than the events had said: a defect, healed by the snapshot."""
        self._next_seq = 0
        self._pending: list[tuple[_Kind, str, list[bytes]]] = []
        self._listing = NOTHING_LISTED
        self._kept: deque[tuple[int, EventBatch]] = deque()
        self._kept_keys = 0

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def stored(self, keys: Sequence[bytes], tier: str = HOST) -> None:
        self._append(Stored, keys, tier)

    def removed(self, keys: Sequence[bytes], tier: str = HOST) -> None:
        self._append(Removed, keys, tier)

    def _append(self, kind: _Kind, keys: Sequence[bytes], tier: str) -> None:
        if not keys:
            return
        if self._pending:
            last_kind, last_tier, last_keys = self._pending[-1]
            if last_kind is kind and last_tier == tier and len(last_keys) < MAX_KEYS_PER_EVENT:
                last_keys.extend(keys)
                return
        self._pending.append((kind, tier, list(keys)))

    def flush(self, load: NodeLoad, *, heartbeat: bool = False) -> EventBatch | None:
        """The changes since the last flush as the next batch; None if there are none and no ``heartbeat`` is due."""
        if not self._pending and not self.beacons.news and not heartbeat:
            return None
        events: list[Event] = []
        count, digest, total = self._listing.count, self._listing.digest, 0
        for kind, tier, keys in self._pending:
            joined = b"".join(keys)
            events.append(kind(keys=joined, tier=tier))
            count += len(keys) if kind is Stored else -len(keys)
            digest ^= fingerprint(joined, tier)
            total += len(keys)
        self._pending.clear()
        self._listing = Listing(count, digest)
        beacons = self.beacons.take()
        if beacons is not None:
            total += sum(count_keys(build.keys) for build in beacons.begun)
        batch = EventBatch(
            boot=self.boot, seq=self._next_seq, events=events, load=load, listing=self._listing, beacons=beacons
        )
        self._next_seq += 1
        self._keep(batch, total)
        return batch

    def _keep(self, batch: EventBatch, keys: int) -> None:
        self._kept.append((keys, batch))
        self._kept_keys += keys
        while len(self._kept) > MAX_KEPT_BATCHES or self._kept_keys > MAX_KEPT_KEYS:
            self._kept_keys -= self._kept.popleft()[0]

    def since(self, boot: str, after: int) -> list[EventBatch] | None:
        """The batches that follow ``after`` of ``boot``, none left out; None where they are no longer all here."""
        if boot != self.boot or not self._next_seq - len(self._kept) - 1 <= after < self._next_seq:
            return None
        return [batch for _, batch in self._kept if batch.seq > after]

    def snapshot(self, ready: Mapping[str, Iterable[bytes]]) -> list[SnapshotChunk]:
        """``ready``: tier -> all READY blocks there now. True up to batch ``next_seq - 1``, flushed before.

        Raises RuntimeError if changes are pending: they would be applied twice or lost.
        """
        if self._pending or self.beacons.news:
            raise RuntimeError("flush before taking a snapshot")
        parts: list[tuple[str, bytes]] = []
        count = digest = 0
        for tier, keys in ready.items():
            every = list(keys)
            count += len(every)
            for start in range(0, len(every), SNAPSHOT_CHUNK_KEYS):
                joined = b"".join(every[start : start + SNAPSHOT_CHUNK_KEYS])
                digest ^= fingerprint(joined, tier)
                parts.append((tier, joined))
        if Listing(count, digest) != self._listing:
            self.corrected += 1
            log.warning("events had said %d blocks, %d are READY: corrected", self._listing.count, count)
            self._listing = Listing(count, digest)
        parts = parts or [(HOST, b"")]
        return [
            SnapshotChunk(
                boot=self.boot,
                seq=self._next_seq - 1,
                index=index,
                last=index == len(parts) - 1,
                keys=joined,
                tier=tier,
                builds=[] if index else self.beacons.under_way(),
            )
            for index, (tier, joined) in enumerate(parts)
        ]
