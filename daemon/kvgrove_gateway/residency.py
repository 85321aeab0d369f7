"""What one node holds, as the router's index knows it: the node's feed applied to a slot of the index."""

from collections.abc import Sequence

from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.feed import Apply, Clear, Effect, Feed, FeedState, Load, Resubscribe
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.events import Cleared, EventBatch, Removed, SnapshotChunk, Stored, split_keys

SNAPSHOT_S = 15.0
"""A snapshot that takes longer is asked for again."""


class NodeResidency:
    """Carries a feed's effects out. Each method says whether the node is to be asked for a snapshot."""

    def __init__(self, index: BlockIndex, metrics: Metrics) -> None:
        self._index = index
        self._metrics = metrics
        self._feed = Feed()
        self._slot: int | None = None
        self._asked = 0.0

    @property
    def slot(self) -> int | None:
        """The slot to match against; None while what the node holds is in doubt."""
        return self._slot if self._feed.state is FeedState.LIVE else None

    def begin(self, boot: str, now: float, reason: str) -> bool:
        return self._do(self._feed.begin(boot, reason), now)

    def batch(self, batch: EventBatch, now: float) -> bool:
        return self._do(self._feed.batch(batch), now)

    def chunk(self, chunk: SnapshotChunk, now: float) -> bool:
        return self._do(self._feed.chunk(chunk), now)

    def overdue(self, now: float) -> bool:
        return self._feed.state is FeedState.SNAPSHOT and now - self._asked > SNAPSHOT_S

    def end(self) -> None:
        """Nothing is known of the node any more."""
        self._feed = Feed()
        if self._slot is not None:
            self._index.close_slot(self._slot)
            self._slot = None

    def _do(self, effects: Sequence[Effect], now: float) -> bool:
        resubscribe = False
        for effect in effects:
            match effect:
                case Clear():
                    self._renew_slot()
                case Load():
                    self._index.store(self._open(), split_keys(effect.keys), effect.tier)
                case Apply():
                    self._apply(effect.batch)
                case Resubscribe():
                    self._metrics.resyncs.labels(effect.reason).inc()
                    self._asked = now
                    resubscribe = True
        self._index.sweep()
        return resubscribe

    def _apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            match event:
                case Stored():
                    self._index.store(self._open(), split_keys(event.keys), event.tier)
                case Removed():
                    self._index.remove(self._open(), split_keys(event.keys), event.tier)
                case Cleared():
                    self._renew_slot()

    def _open(self) -> int:
        if self._slot is None:
            self._slot = self._index.open_slot()
        return self._slot

    def _renew_slot(self) -> None:
        if self._slot is not None:
            self._index.close_slot(self._slot)
        self._slot = self._index.open_slot()
