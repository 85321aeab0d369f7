"""The life of one request on a node, as one table, and what it holds in each state.

::

    ARRIVED --refuse--> ENDED
    ARRIVED --cancel--> ENDED
    ARRIVED --await_flight--> WAITING_FLIGHT
    ARRIVED --await_room--> WAITING_ROOM
    ARRIVED --load--> LOADING
    ARRIVED --run--> RUNNING
    WAITING_FLIGHT --retry--> ARRIVED
    WAITING_FLIGHT --cancel--> ENDED
    WAITING_ROOM --retry--> ARRIVED
    WAITING_ROOM --refuse--> ENDED
    WAITING_ROOM --cancel--> ENDED
    LOADING --run--> RUNNING
    LOADING --retry--> ARRIVED
    LOADING --cancel--> LETTING_GO
    LETTING_GO --loaded--> ENDED
    RUNNING --finish--> ENDED
    RUNNING --fail--> ENDED
    RUNNING --cancel--> ENDED

Role: the only place that says what may follow what, and what is given back on the way. Invariants: a change gives back
exactly what the state before holds and the one after does not, so whatever ends a request, in whatever state, gives
everything back once; who waits holds neither blocks nor slots, so nobody waits for a waiter; the slots that a worker
still writes to outlive the cancel (LETTING_GO), since somebody else's bytes must not meet them (I5).
Must not know: caches, engines, gateways. It says what; `RequestRunner` does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_protocol.errors import Terminal


class RequestState(StrEnum):
    ARRIVED = "arrived"
    """To be judged, matched and given a place, now; left within the same call."""
    WAITING_FLIGHT = "waiting_flight"
    """Another request computes what this one lacks first (`cache.flights`)."""
    WAITING_ROOM = "waiting_room"
    """The pool has no room, or others came first who wait for it (`WaitingRoom`)."""
    LOADING = "loading"
    """Blocks are on their way from a slower tier into slots of its own (`Restorer`)."""
    RUNNING = "running"
    """In the engine."""
    LETTING_GO = "letting_go"
    """Nobody waits for it any more, but a worker still writes to its slots."""
    ENDED = "ended"


class RequestEvent(StrEnum):
    AWAIT_FLIGHT = "await_flight"
    AWAIT_ROOM = "await_room"
    LOAD = "load"
    RUN = "run"
    RETRY = "retry"
    """What it waited for may be there, or the plan moved on meanwhile: judge it anew."""
    LOADED = "loaded"
    """The worker has let go of its slots."""
    REFUSE = "refuse"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    """The caller or its gateway has gone."""


class Held(Enum):
    """What a request may hold, in the order in which it is given back."""

    ENGINE = "engine"
    LEAD = "lead"
    """Of a flight: others may wait for what it computes."""
    BUILD = "build"
    """Slots, and a lease on what it reuses."""
    WAIT = "wait"
    PLACE = "place"
    """In the waiting room."""


TRANSITIONS: Final[Mapping[tuple[RequestState, RequestEvent], RequestState]] = MappingProxyType(
    {
        (RequestState.ARRIVED, RequestEvent.REFUSE): RequestState.ENDED,
        (RequestState.ARRIVED, RequestEvent.CANCEL): RequestState.ENDED,
        (RequestState.ARRIVED, RequestEvent.AWAIT_FLIGHT): RequestState.WAITING_FLIGHT,
        (RequestState.ARRIVED, RequestEvent.AWAIT_ROOM): RequestState.WAITING_ROOM,
        (RequestState.ARRIVED, RequestEvent.LOAD): RequestState.LOADING,
        (RequestState.ARRIVED, RequestEvent.RUN): RequestState.RUNNING,
        (RequestState.WAITING_FLIGHT, RequestEvent.RETRY): RequestState.ARRIVED,
        (RequestState.WAITING_FLIGHT, RequestEvent.CANCEL): RequestState.ENDED,
        (RequestState.WAITING_ROOM, RequestEvent.RETRY): RequestState.ARRIVED,
        (RequestState.WAITING_ROOM, RequestEvent.REFUSE): RequestState.ENDED,
        (RequestState.WAITING_ROOM, RequestEvent.CANCEL): RequestState.ENDED,
        (RequestState.LOADING, RequestEvent.RUN): RequestState.RUNNING,
        (RequestState.LOADING, RequestEvent.RETRY): RequestState.ARRIVED,
        (RequestState.LOADING, RequestEvent.CANCEL): RequestState.LETTING_GO,
        (RequestState.LETTING_GO, RequestEvent.LOADED): RequestState.ENDED,
        (RequestState.RUNNING, RequestEvent.FINISH): RequestState.ENDED,
        (RequestState.RUNNING, RequestEvent.FAIL): RequestState.ENDED,
        (RequestState.RUNNING, RequestEvent.CANCEL): RequestState.ENDED,
    }
)

HOLDS: Final[Mapping[RequestState, frozenset[Held]]] = MappingProxyType(
    {
        RequestState.ARRIVED: frozenset({Held.WAIT}),  # its bounds run on until it is placed
        RequestState.WAITING_FLIGHT: frozenset({Held.WAIT}),
        RequestState.WAITING_ROOM: frozenset({Held.WAIT, Held.PLACE}),
        RequestState.LOADING: frozenset({Held.WAIT, Held.BUILD, Held.LEAD}),
        RequestState.RUNNING: frozenset({Held.BUILD, Held.LEAD, Held.ENGINE}),
        RequestState.LETTING_GO: frozenset({Held.BUILD}),
        RequestState.ENDED: frozenset(),
    }
)


class ForbiddenRequestStep(Terminal):
    """A caller asked for a change that the table does not hold: a defect, never an operating condition."""

    code = "forbidden_transition"


def step(state: RequestState, event: RequestEvent) -> tuple[RequestState, tuple[Held, ...]]:
    """The state after ``event``, and what is to be given back, in order. Pure; raises `ForbiddenRequestStep`."""
    try:
        after = TRANSITIONS[state, event]
    except KeyError:
        raise ForbiddenRequestStep(f"a request cannot {event} while {state}", field="event") from None
    lost = HOLDS[state] - HOLDS[after]
    return after, tuple(held for held in Held if held in lost)
