"""The life of a flight, as one table, and what becomes of those who wait for it.

::

    FLYING --commit--> FLYING
    FLYING --silence--> SILENT
    FLYING --end--> LANDED
    SILENT --commit--> SILENT
    SILENT --end--> LANDED

Role: the only place that says which change of a flight is allowed. Invariant: a flight that fell silent never leads
again, whatever its build still commits. Must not know: keys, who leads, who waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_protocol.errors import Terminal


class FlightState(StrEnum):
    FLYING = "flying"
    SILENT = "silent"
    LANDED = "landed"


class FlightEvent(StrEnum):
    COMMIT = "commit"
    """More of its blocks are READY."""
    SILENCE = "silence"
    """A waiter's patience ran out, and nothing had been committed since it began to wait."""
    END = "end"
    """Finished, failed, cancelled, or it stores nothing more."""


TRANSITIONS: Final[Mapping[tuple[FlightState, FlightEvent], FlightState]] = MappingProxyType(
    {
        (FlightState.FLYING, FlightEvent.COMMIT): FlightState.FLYING,
        (FlightState.FLYING, FlightEvent.SILENCE): FlightState.SILENT,
        (FlightState.FLYING, FlightEvent.END): FlightState.LANDED,
        (FlightState.SILENT, FlightEvent.COMMIT): FlightState.SILENT,
        (FlightState.SILENT, FlightEvent.END): FlightState.LANDED,
    }
)


class ForbiddenFlight(Terminal):
    """A caller asked for a change that the table does not hold: a defect, never an operating condition."""

    code = "forbidden_transition"


def step(state: FlightState, event: FlightEvent) -> FlightState:
    """The state after ``event``. Pure; raises `ForbiddenFlight`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ForbiddenFlight(f"a flight cannot {event} while {state}", field="event") from None


class WakeCause(StrEnum):
    COVERED = "covered"
    """What it shares with the leader is READY."""
    ENDED = "ended"
    """The leader came to an end before that, or fell silent: somebody has to take over."""
    TIMED_OUT = "timed_out"
    """Its bound ran out: it computes from here on by itself."""
    RETRY = "retry"
    """The pause after a failure is over."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Match ``waiter`` again, and let it begin or `Flights.join` anew."""

    waiter: str
    cause: WakeCause
