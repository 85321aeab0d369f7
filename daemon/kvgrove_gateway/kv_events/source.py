"""One engine's event stream: live batches, replays, gaps, restarts. Pure.

========  ===============  ==================================================================  =======================
state     input            effects                                                             next
========  ===============  ==================================================================  =======================
any       Connected        Clear, AskReplay from 0                                             SYNCING
any       Disconnected     Clear                                                               IDLE
any       Unusable         Clear                                                               REFUSED
SYNCING   Live             (kept, bounded: beyond it Clear, AskReplay from 0)                  SYNCING
SYNCING   Replayed         Apply if it is the next; with a hole before it Clear, AskListing    SYNCING
SYNCING   Listed           Apply                                                               SYNCING
SYNCING   End              Apply what was kept; with a hole in it AskReplay again, a few times LIVE, or SYNCING
SYNCING   Overdue          AskReplay again, a few times; then on with what there is            SYNCING, or LIVE
LIVE      Live             Apply the next; with a hole before it AskReplay, and it is kept     LIVE, or GAP
LIVE      Quiet            AskReplay: is the publisher there, and was that all?                LIVE
LIVE      Replayed         Apply the next                                                      LIVE
LIVE      End              (the publisher is there)                                            LIVE
LIVE      Overdue          (asked, and no answer: no events)                                   STALE
GAP       as SYNCING       what was held is held on to, and is in doubt                        LIVE, or SYNCING
STALE     Live             AskReplay, and it is kept                                           GAP
STALE     Quiet            AskReplay                                                           STALE
STALE     Replayed         Apply the next                                                      GAP
STALE     End              (the publisher is back)                                             LIVE
========  ===============  ==================================================================  =======================

A live number that is not above the last live one is a restarted engine: Clear, AskReplay from 0. Batches that were
applied already are dropped, so that a late replay never brings a removed block back. An engine whose history does not
reach back, and that knows no listing, is followed from where it does: `Position.complete` says so. Its removals of
blocks that were never heard of are harmless, and a cleared slate is never too full.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from kvgrove_gateway.kv_events.wire import Batch

MAX_KEPT = 1024
MAX_ATTEMPTS = 3
PROBE = "probe"


class SourceState(Enum):
    IDLE = "idle"
    SYNCING = "syncing"
    LIVE = "live"
    GAP = "gap"
    STALE = "stale"
    REFUSED = "refused"


@dataclass(frozen=True)
class Connected:
    pass


@dataclass(frozen=True)
class Disconnected:
    pass


@dataclass(frozen=True)
class Live:
    number: int
    batch: Batch | None
    """None: its payload could not be read."""


@dataclass(frozen=True)
class Replayed:
    number: int
    batch: Batch | None


@dataclass(frozen=True)
class Listed:
    """Part of a listing that is true as of ``number``."""

    number: int
    batch: Batch | None


@dataclass(frozen=True)
class End:
    """Of a replay or listing."""


@dataclass(frozen=True)
class Overdue:
    """An answer has no end after the time that it may take."""


@dataclass(frozen=True)
class Quiet:
    """Nothing live for a while: an idle engine, a dead publisher, or a lost last batch."""


@dataclass(frozen=True)
class Unusable:
    """What the engine publishes cannot be mapped."""

    code: str


Input = Connected | Disconnected | Live | Replayed | Listed | End | Overdue | Quiet | Unusable


@dataclass(frozen=True)
class Clear:
    """Forget what the engine holds."""


@dataclass(frozen=True)
class Apply:
    batch: Batch


@dataclass(frozen=True)
class AskReplay:
    start: int
    reason: str


@dataclass(frozen=True)
class AskListing:
    pass


Effect = Clear | Apply | AskReplay | AskListing


@dataclass(frozen=True)
class Position:
    state: SourceState = SourceState.IDLE
    applied: int = -1
    seen: int = -1
    """The highest live number of this engine process."""
    kept: tuple[Live, ...] = ()
    attempts: int = 0
    listing: bool = False
    """The answer awaited is a listing."""
    reaches_back: bool = True
    """False once the engine has shown that its history does not, and that it knows no listing."""
    complete: bool = True
    """Whether all that the engine holds was told."""
    refused: str = ""


Step = tuple[Position, list[Effect]]


def step(position: Position, input_: Input) -> Step:
    """What ``input_`` changes, and the effects to carry out, in order."""
    match input_:
        case Connected():
            return _anew(Position(), "start")
        case Disconnected():
            return Position(), [Clear()]
        case Unusable():
            return Position(SourceState.REFUSED, seen=position.seen, refused=input_.code), [Clear()]
        case Live() if input_.number <= position.seen:
            after, effects = _anew(Position(seen=input_.number), "restart")
            return replace(after, kept=(input_,)), effects
        case _:
            handler = TABLE.get((position.state, type(input_)))
            if isinstance(input_, Live):
                position = replace(position, seen=input_.number)
            return handler(position, input_) if handler is not None else (position, [])


def _anew(position: Position, reason: str) -> Step:
    return (
        Position(SourceState.SYNCING, seen=position.seen, reaches_back=position.reaches_back),
        [Clear(), AskReplay(0, reason)],
    )


def _apply(position: Position, number: int, batch: Batch | None, effects: list[Effect]) -> Position:
    if batch is None:  # what it said is lost for good: believe nothing older
        effects.append(Clear())
        return replace(position, applied=number, complete=False)
    effects.append(Apply(batch))
    return replace(position, applied=number)


def _keep(position: Position, live: Live) -> Step:
    if len(position.kept) >= MAX_KEPT:
        return _anew(position, "overflow")
    return replace(position, kept=(*position.kept, live)), []


def _live(position: Position, live: Live) -> Step:
    if live.number <= position.applied:
        return position, []
    if live.number > position.applied + 1:
        after = replace(position, state=SourceState.GAP, kept=(live,), attempts=1)
        return after, [AskReplay(position.applied + 1, "gap")]
    effects: list[Effect] = []
    return _apply(position, live.number, live.batch, effects), effects


def _stale_live(position: Position, live: Live) -> Step:
    after = replace(position, state=SourceState.GAP, kept=(live,), attempts=1)
    return after, [AskReplay(position.applied + 1, "stale")]


def _replayed(position: Position, replayed: Replayed) -> Step:
    if position.listing or replayed.number <= position.applied:
        return position, []
    if replayed.number > position.applied + 1:
        if position.reaches_back:
            after = Position(SourceState.SYNCING, seen=position.seen, kept=position.kept, listing=True)
            return after, [Clear(), AskListing()]
        first = position.applied == -1
        effects: list[Effect] = [] if first else [Clear()]
        return _apply(replace(position, complete=False), replayed.number, replayed.batch, effects), effects
    effects = []
    after = _apply(position, replayed.number, replayed.batch, effects)
    return replace(after, state=SourceState.GAP if position.state is SourceState.STALE else position.state), effects


def _listed(position: Position, listed: Listed) -> Step:
    if not position.listing:
        return position, []
    effects: list[Effect] = []
    return _apply(position, listed.number, listed.batch, effects), effects


def _end(position: Position, _: End) -> Step:
    if position.listing:
        if position.applied == -1:  # it knows no listing: from the oldest that it has, then
            after = replace(position, listing=False, reaches_back=False, attempts=1)
            return after, [AskReplay(0, "incomplete")]
        position = replace(position, listing=False)
    return _settle(position)


def _settle(position: Position) -> Step:
    """The answer is complete: what was kept follows it, or there is a hole."""
    effects: list[Effect] = []
    kept = list(position.kept)
    while kept and kept[0].number <= position.applied + 1:
        live = kept.pop(0)
        if live.number == position.applied + 1:
            position = _apply(position, live.number, live.batch, effects)
    position = replace(position, kept=tuple(kept))
    if not kept:
        return replace(position, state=SourceState.LIVE, attempts=0), effects
    if position.attempts >= MAX_ATTEMPTS:
        return _go_on(position, effects)
    effects.append(AskReplay(position.applied + 1, "hole"))
    return replace(position, attempts=position.attempts + 1), effects


def _go_on(position: Position, effects: list[Effect]) -> Step:
    """Nobody can say what is missing: what was believed is forgotten, and the rest is followed."""
    effects.append(Clear())
    position = replace(position, state=SourceState.LIVE, complete=False, attempts=0, listing=False)
    for live in position.kept:
        position = _apply(position, live.number, live.batch, effects)
    return replace(position, applied=max(position.applied, position.seen), kept=()), effects


def _overdue(position: Position, _: Overdue) -> Step:
    if position.listing:
        after = replace(position, listing=False, reaches_back=False, applied=-1, attempts=1)
        return after, [Clear(), AskReplay(0, "incomplete")]
    if position.attempts >= MAX_ATTEMPTS:
        return _go_on(position, [])
    return replace(position, attempts=position.attempts + 1), [AskReplay(position.applied + 1, "overdue")]


def _probe(position: Position, _: Quiet) -> Step:
    return position, [AskReplay(position.applied + 1, PROBE)]


def _silent(position: Position, _: Overdue) -> Step:
    return replace(position, state=SourceState.STALE), []


def _nothing(position: Position, _: End) -> Step:
    return position, []


TABLE: Final[Mapping[tuple[SourceState, type[Any]], Callable[[Position, Any], Step]]] = MappingProxyType(
    {
        **{
            (state, kind): handler
            for state in (SourceState.SYNCING, SourceState.GAP)
            for kind, handler in (
                (Live, _keep), (Replayed, _replayed), (Listed, _listed), (End, _end), (Overdue, _overdue),
            )
        },
        (SourceState.LIVE, Live): _live,
        (SourceState.LIVE, Replayed): _replayed,
        (SourceState.LIVE, End): _nothing,
        (SourceState.LIVE, Quiet): _probe,
        (SourceState.LIVE, Overdue): _silent,
        (SourceState.STALE, Live): _stale_live,
        (SourceState.STALE, Replayed): _replayed,
        (SourceState.STALE, End): _end,
        (SourceState.STALE, Quiet): _probe,
    }
)  # fmt: skip
