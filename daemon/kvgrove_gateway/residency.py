"""What one node holds, as the router's index knows it: the node's feed applied to a slot of the index.

Beside the index it keeps count and digest of what was applied. The node sends its own with every batch: where they
differ although nothing was missed, the two have drifted; that is counted, shown and healed by a snapshot.
That is a check of what was applied. Whether the index still holds it, it cannot say without a walk over all keys of all
nodes; so of each removal one block is looked up before it goes, and those that were not there are counted.
What the node is only computing is no part of that: see `router.heard`.
"""

from collections.abc import Sequence

from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.feed import (
    Apply,
    Ask,
    Begin,
    Clear,
    Drifted,
    Effect,
    FeedState,
    Ignored,
    Input,
    Load,
    Overdue,
    Position,
    Quiet,
    step,
)
from kvgrove_gateway.router.heard import HeardBuilds
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.data import Subscribe
from kvgrove_protocol.events import (
    NOTHING_LISTED,
    Build,
    Cleared,
    EventBatch,
    Listing,
    Removed,
    SnapshotChunk,
    Stored,
    count_keys,
    fingerprint,
)
from kvgrove_protocol.identity import DIGEST_BYTES

SNAPSHOT_S = 15.0
"""A snapshot that takes longer is asked for again."""
REPLAY_S = 3.0
"""Missed batches that have not come by then are given up for a snapshot."""
QUIET_S = 20.0
"""A node sends a heartbeat every second; its core may be in a long step, but not for that long."""
DRIFT_S = 30.0
"""At most so often is a snapshot asked for because of drift: one that does not heal must not be asked for for ever."""


class NodeResidency:
    """Carries a feed's effects out. `begin`, `batch`, `chunk` and `tick` answer what the node is to be asked, if so."""

    def __init__(self, index: BlockIndex, metrics: Metrics, node: str = "-") -> None:
        """``node`` labels the drift gauge."""
        self._index = index
        self._metrics = metrics
        self._node = node
        self._position = Position()
        self._slot: int | None = None
        self._listing = NOTHING_LISTED
        self._builds = HeardBuilds(index)
        self._asked = self._heard = 0.0
        self._healed: float | None = None

    @property
    def slot(self) -> int | None:
        """The slot to match against; None while what the node holds is in doubt."""
        return self._slot if self._position.state is FeedState.LIVE else None

    @property
    def state(self) -> FeedState:
        return self._position.state

    @property
    def listing(self) -> Listing:
        """What was applied so far, in short: the node's own listing where nothing is amiss."""
        return self._listing

    def begin(self, boot: str, now: float, reason: str) -> Subscribe | None:
        """A link to ``boot`` is up."""
        self._heard = now
        return self._take(Begin(boot, reason), now)

    def batch(self, batch: EventBatch, now: float) -> Subscribe | None:
        """Raises Malformed where its keys are none; it then counts as missed."""
        for event in batch.events:
            if not isinstance(event, Cleared):
                count_keys(event.keys)
        if batch.beacons is not None:
            for build in batch.beacons.begun:
                count_keys(build.keys)
        self._heard = now
        ask = self._take(batch, now)
        return ask or self._compare(batch, now)

    def chunk(self, chunk: SnapshotChunk, now: float) -> Subscribe | None:
        """Raises Malformed where its keys are none."""
        for joined in (chunk.keys, *(build.keys for build in chunk.builds)):
            count_keys(joined)
        return self._take(chunk, now)

    def tick(self, now: float) -> Subscribe | None:
        """To be called about once a second."""
        if self._slot is not None:
            self._builds.expire(self._slot, now)
        waited = now - self._asked
        match self._position.state:
            case FeedState.SYNCING if waited > SNAPSHOT_S:
                return self._take(Overdue(), now)
            case FeedState.GAP if waited > REPLAY_S:
                return self._take(Overdue(), now)
            case FeedState.LIVE if now - self._heard > QUIET_S:
                return self._take(Quiet(), now)
            case _:
                return None

    def end(self) -> None:
        """Nothing is known of the node any more."""
        self._position, self._listing, self._healed = Position(), NOTHING_LISTED, None
        self._metrics.drift_gone(self._node)
        self._builds.forget()
        if self._slot is not None:
            self._index.close_slot(self._slot)
            self._slot = None

    def _compare(self, batch: EventBatch, now: float) -> Subscribe | None:
        if batch.listing is None or self._position.state is not FeedState.LIVE or batch.seq != self._position.applied:
            return None
        mine, theirs = self._listing, batch.listing
        if mine == theirs:
            self._metrics.drift(self._node, 0)
            return None
        self._metrics.drift(self._node, max(1, abs(mine.count - theirs.count)))
        if self._healed is not None and now - self._healed < DRIFT_S:
            return None
        self._healed = now
        return self._take(Drifted(), now)

    def _take(self, input_: Input, now: float) -> Subscribe | None:
        self._position, effects = step(self._position, input_)
        return self._do(effects, now)

    def _do(self, effects: Sequence[Effect], now: float) -> Subscribe | None:
        subscribe: Subscribe | None = None
        for effect in effects:
            match effect:
                case Clear():
                    self._renew_slot()
                case Load():
                    self._store(effect.keys, effect.tier)
                    self._begin_builds(effect.builds, now)
                case Apply():
                    self._apply(effect.batch)
                    if effect.batch.beacons is not None:
                        self._begin_builds(effect.batch.beacons.begun, now)
                        self._builds.end(self._open(), effect.batch.beacons.ended)
                case Ask():
                    self._metrics.resyncs.labels(effect.reason).inc()
                    self._asked = now
                    subscribe = Subscribe()
                    if effect.after is not None:
                        subscribe = Subscribe(boot=self._position.boot, after=effect.after)
                case Ignored():
                    self._metrics.events_ignored.labels(effect.reason).inc()
        self._index.sweep()
        return subscribe

    def _apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            match event:
                case Stored():
                    self._store(event.keys, event.tier)
                case Removed():
                    if event.keys and not self._index.holds(self._open(), event.keys[:DIGEST_BYTES]):
                        self._metrics.index_missing.inc()
                    self._index.remove(self._open(), event.keys, event.tier)
                    self._note(event.keys, event.tier, -1)
                case Cleared():
                    self._renew_slot()

    def _begin_builds(self, builds: Sequence[Build], now: float) -> None:
        heard, left_out = self._builds.heard, self._builds.left_out
        self._builds.begin(self._open(), builds, now)
        self._metrics.builds_heard.inc(self._builds.heard - heard)
        self._metrics.builds_left_out.inc(self._builds.left_out - left_out)

    def _store(self, joined: bytes, tier: str) -> None:
        self._index.store(self._open(), joined, tier)
        self._note(joined, tier, 1)

    def _note(self, joined: bytes, tier: str, sign: int) -> None:
        count = self._listing.count + sign * count_keys(joined)
        self._listing = Listing(count, self._listing.digest ^ fingerprint(joined, tier))

    def _open(self) -> int:
        if self._slot is None:
            self._slot = self._index.open_slot()
        return self._slot

    def _renew_slot(self) -> None:
        if self._slot is not None:
            self._index.close_slot(self._slot)
        self._slot = self._index.open_slot()
        self._builds.forget()
        self._listing = NOTHING_LISTED
