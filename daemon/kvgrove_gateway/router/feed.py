"""One node's residency stream: snapshot, then numbered batches. Pure.

=========  ==============  ========================================================  ===================
state      input           effects                                                   next
=========  ==============  ========================================================  ===================
any        Begin           Clear, Ask                                                SYNCING
IDLE       others          (nothing is known, nothing is expected)                   IDLE
SYNCING    chunk           Load (with index 0 after others: Clear before)            SYNCING
SYNCING    last chunk      Load, then each kept batch that follows: Apply            LIVE, or GAP + Ask
SYNCING    batch           (kept, bounded: beyond it Clear, Ask)                     SYNCING
SYNCING    Overdue         Clear, Ask                                                SYNCING
LIVE       next batch      Apply                                                     LIVE
LIVE       batch ahead     Ask for those between; the batch is kept                  GAP
LIVE       Quiet                                                                     STALE
LIVE       Drifted         Clear, Ask                                                SYNCING
GAP        next batch      Apply, and so each kept one that follows                  LIVE, or GAP
GAP        batch ahead     (kept, bounded: beyond it Clear, Ask)                     GAP
GAP        chunk 0         Clear, Load: the node no longer had what was missed       SYNCING, or LIVE
GAP        Overdue         Clear, Ask                                                SYNCING
STALE      batch           as in LIVE                                                LIVE, or GAP
=========  ==============  ========================================================  ===================

A pair that is not listed changes nothing. Batches that were applied already are dropped in every state, so that a late
replay never brings a removed block back; so is whatever another boot than the one of Begin says (ROU-06, ROU-08).
A snapshot is true as of its ``seq``; batches with a higher one are applied on top. Only in LIVE is what a node holds
not in doubt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from kvgrove_protocol.events import Build, EventBatch, SnapshotChunk

MAX_KEPT_BATCHES = 1024


class FeedState(Enum):
    IDLE = "idle"
    SYNCING = "syncing"
    LIVE = "live"
    GAP = "gap"
    STALE = "stale"


# -- inputs beside EventBatch and SnapshotChunk ------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """A link to ``boot`` is up."""

    boot: str
    reason: str = "start"


@dataclass(frozen=True)
class Overdue:
    """What was asked for has not come in time."""


@dataclass(frozen=True)
class Quiet:
    """No batch for so long that the node would have sent several heartbeats."""


@dataclass(frozen=True)
class Drifted:
    """All batches were applied, and the node lists something else."""


Input = Begin | EventBatch | SnapshotChunk | Overdue | Quiet | Drifted

# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clear:
    """Forget what the node holds."""


@dataclass(frozen=True)
class Load:
    """Keys of the snapshot, and in its first part what is being computed."""

    keys: bytes
    tier: str
    builds: Sequence[Build] = ()


@dataclass(frozen=True)
class Apply:
    batch: EventBatch


@dataclass(frozen=True)
class Ask:
    """Subscribe at the node. ``reason`` labels a counter."""

    reason: str
    after: int | None = None
    """None: for a snapshot. Else: for the batches after this one, of which the last are known."""


@dataclass(frozen=True)
class Ignored:
    """What came is of no use. ``reason``: ``late`` or ``other_boot``."""

    reason: str


Effect = Clear | Load | Apply | Ask | Ignored


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """Where in the stream of one node we are."""

    state: FeedState = FeedState.IDLE
    boot: str = ""
    applied: int = -1
    """The last batch that was applied, or that the snapshot covers."""
    next_chunk: int = 0
    snapshot_seq: int = -1
    kept: tuple[EventBatch, ...] = ()
    """Batches that wait for those before them, by number."""


Step = tuple[Position, list[Effect]]


def step(position: Position, input_: Input) -> Step:
    """What ``input_`` changes, and the effects to carry out, in order."""
    if isinstance(input_, Begin):
        return _restart(Position(boot=input_.boot), input_.reason)
    if isinstance(input_, EventBatch | SnapshotChunk) and input_.boot != position.boot:
        return position, [Ignored("other_boot")]
    handler = TABLE.get((position.state, type(input_)))
    return handler(position, input_) if handler is not None else (position, [])


def _restart(position: Position, reason: str) -> Step:
    return Position(FeedState.SYNCING, position.boot), [Clear(), Ask(reason)]


def _keep(position: Position, batch: EventBatch) -> Step:
    if any(kept.seq == batch.seq for kept in position.kept):
        return position, [Ignored("late")]
    if len(position.kept) >= MAX_KEPT_BATCHES:
        return _restart(position, "overflow")
    kept = (*position.kept, batch)
    if position.kept and batch.seq < position.kept[-1].seq:
        kept = tuple(sorted(kept, key=lambda each: each.seq))
    return replace(position, kept=kept), []


def _follow_on(position: Position, effects: list[Effect]) -> Step:
    """Apply the kept batches that follow; what is left then waits behind a gap."""
    applied, taken = position.applied, 0
    for batch in position.kept:
        if batch.seq > applied + 1:
            break
        if batch.seq == applied + 1:
            effects.append(Apply(batch))
            applied = batch.seq
        taken += 1
    left = position.kept[taken:]
    state = FeedState.GAP if left else FeedState.LIVE
    if left and position.state is not FeedState.GAP:
        effects.append(Ask("gap", applied))
    return replace(position, state=state, applied=applied, kept=left), effects


def _batch(position: Position, batch: EventBatch) -> Step:
    """In LIVE, STALE and GAP."""
    if batch.seq <= position.applied:
        return position, [Ignored("late")]
    if batch.seq == position.applied + 1:
        return _follow_on(replace(position, applied=batch.seq), [Apply(batch)])
    after, effects = _keep(position, batch)
    if position.state is FeedState.GAP or effects:
        return after, effects
    return replace(after, state=FeedState.GAP), [Ask("gap", position.applied)]


def _chunk(position: Position, chunk: SnapshotChunk) -> Step:
    """In SYNCING."""
    effects: list[Effect] = []
    if chunk.index == 0:
        if position.next_chunk:
            effects.append(Clear())  # it begins anew: what the half one said is out of date
        position = replace(position, next_chunk=0, snapshot_seq=chunk.seq)
    elif position.next_chunk == 0:
        return position, [Ignored("late")]  # the tail of one that was given up
    elif chunk.index != position.next_chunk or chunk.seq != position.snapshot_seq:
        return _restart(position, "snapshot_gap")
    position = replace(position, next_chunk=position.next_chunk + 1)
    if chunk.keys or chunk.builds:
        effects.append(Load(chunk.keys, chunk.tier, tuple(chunk.builds)))
    if not chunk.last:
        return position, effects
    return _follow_on(replace(position, applied=chunk.seq, next_chunk=0), effects)


def _chunk_for_gap(position: Position, chunk: SnapshotChunk) -> Step:
    if chunk.index != 0 or chunk.seq < position.applied:
        return position, [Ignored("late")]
    position = replace(position, state=FeedState.SYNCING, next_chunk=0)
    after, effects = _chunk(position, chunk)
    return after, [Clear(), *effects]


def _overdue(position: Position, _: Overdue) -> Step:
    return _restart(position, "overdue")


def _quiet(position: Position, _: Quiet) -> Step:
    return replace(position, state=FeedState.STALE), []


def _drifted(position: Position, _: Drifted) -> Step:
    return _restart(position, "drift")


TABLE: Final[Mapping[tuple[FeedState, type[Any]], Callable[[Position, Any], Step]]] = MappingProxyType(
    {
        (FeedState.SYNCING, SnapshotChunk): _chunk,
        (FeedState.SYNCING, EventBatch): _keep,
        (FeedState.SYNCING, Overdue): _overdue,
        (FeedState.LIVE, EventBatch): _batch,
        (FeedState.LIVE, Quiet): _quiet,
        (FeedState.LIVE, Drifted): _drifted,
        (FeedState.GAP, EventBatch): _batch,
        (FeedState.GAP, SnapshotChunk): _chunk_for_gap,
        (FeedState.GAP, Overdue): _overdue,
        (FeedState.STALE, EventBatch): _batch,
    }
)
