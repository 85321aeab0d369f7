"""One node's residency stream: snapshot, then numbered batches. Pure.

=========  ==============  =====================================================  =========
state      input           effects                                                next
=========  ==============  =====================================================  =========
IDLE       begin           Clear, Resubscribe                                     SNAPSHOT
SNAPSHOT   chunk           Load                                                   SNAPSHOT
SNAPSHOT   last chunk      Load, then each kept batch that is newer: Apply        LIVE
SNAPSHOT   batch           (kept, bounded)                                        SNAPSHOT
SNAPSHOT   out of order    Clear, Resubscribe                                     SNAPSHOT
LIVE       next batch      Apply                                                  LIVE
LIVE       older batch     (dropped: a late one never brings a block back)        LIVE
LIVE       gap             Clear, Resubscribe                                     SNAPSHOT
any        other boot      Clear, Resubscribe                                     SNAPSHOT
=========  ==============  =====================================================  =========

A snapshot is true as of its ``seq``; batches with a higher one are applied on top. A node whose stream has a gap counts
as holding nothing until its snapshot is in: what is in doubt is not preferred.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from kvgrove_protocol.events import EventBatch, SnapshotChunk

MAX_KEPT_BATCHES = 1024


class FeedState(Enum):
    IDLE = "idle"
    SNAPSHOT = "snapshot"
    LIVE = "live"


@dataclass(frozen=True)
class Clear:
    """Forget what the node holds."""


@dataclass(frozen=True)
class Load:
    """Keys of the snapshot."""

    keys: bytes
    tier: str


@dataclass(frozen=True)
class Apply:
    batch: EventBatch


@dataclass(frozen=True)
class Resubscribe:
    """Ask the node for a snapshot. ``reason`` labels a counter."""

    reason: str


Effect = Clear | Load | Apply | Resubscribe


class Feed:
    """The stream's position. Each method returns the effects to carry out, in order."""

    def __init__(self) -> None:
        self.state = FeedState.IDLE
        self._boot = ""
        self._applied = -1
        self._next_chunk = 0
        self._snapshot_seq: int | None = None
        self._kept: deque[EventBatch] = deque()

    def begin(self, boot: str, reason: str = "start") -> list[Effect]:
        """A link to ``boot`` is up, or its snapshot is overdue."""
        self._boot = boot
        return self._restart(reason)

    def chunk(self, chunk: SnapshotChunk) -> list[Effect]:
        if chunk.boot != self._boot:
            return self._other_boot(chunk.boot)
        if self.state is not FeedState.SNAPSHOT:
            return []  # the tail of a snapshot that a newer one has overtaken
        if chunk.index == 0:
            effects: list[Effect] = [Clear()] if self._next_chunk else []
            self._next_chunk, self._snapshot_seq = 0, chunk.seq
        elif chunk.index != self._next_chunk or chunk.seq != self._snapshot_seq:
            return self._restart("snapshot_gap")
        else:
            effects = []
        self._next_chunk += 1
        if chunk.keys:
            effects.append(Load(chunk.keys, chunk.tier))
        if not chunk.last:
            return effects
        self.state, self._applied = FeedState.LIVE, chunk.seq
        kept, self._kept = self._kept, deque()
        for batch in kept:
            effects += self.batch(batch)
            if self.state is not FeedState.LIVE:
                break
        return effects

    def batch(self, batch: EventBatch) -> list[Effect]:
        if batch.boot != self._boot:
            return self._other_boot(batch.boot)
        if self.state is FeedState.SNAPSHOT:
            if len(self._kept) >= MAX_KEPT_BATCHES:
                return self._restart("overflow")
            self._kept.append(batch)
            return []
        if self.state is FeedState.IDLE or batch.seq <= self._applied:
            return []
        if batch.seq != self._applied + 1:
            effects = self._restart("gap")
            self._kept.append(batch)
            return effects
        self._applied = batch.seq
        return [Apply(batch)]

    def _other_boot(self, boot: str) -> list[Effect]:
        self._boot = boot
        return self._restart("boot")

    def _restart(self, reason: str) -> list[Effect]:
        self.state = FeedState.SNAPSHOT
        self._next_chunk, self._snapshot_seq = 0, None
        self._kept.clear()
        return [Clear(), Resubscribe(reason)]
