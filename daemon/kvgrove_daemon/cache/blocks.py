"""The life of one block, as one table.

::

    ABSENT --claim--> BUILDING
    BUILDING --commit--> READY
    BUILDING --fail--> FAILED
    FAILED --free--> ABSENT
    READY --retire--> EVICTING
    EVICTING --free--> ABSENT

Role: the only place that says which change of state is allowed. Invariants: readers see READY blocks only (I4); a
block leaves READY before its bytes go, and its bytes go only from EVICTING or FAILED (I5). A retired block may stay
EVICTING for as long as somebody reads it: it can no longer be found, and is not yet freed.
Must not know: keys, slots, who holds what.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_protocol.errors import Terminal


class BlockState(IntEnum):
    """Small integers: a state is one byte of a column (`BlockIndex`)."""

    ABSENT = 0
    BUILDING = 1
    READY = 2
    EVICTING = 3
    FAILED = 4


class BlockEvent(StrEnum):
    CLAIM = "claim"
    """Somebody begins to compute it."""
    COMMIT = "commit"
    """Its bytes are whole, its parent is READY and the fence still holds."""
    FAIL = "fail"
    """It will not be stored: an error, a cancel, or the request ended first."""
    RETIRE = "retire"
    """It gives way, or was dropped: unreadable from now on."""
    FREE = "free"
    """Nobody reads it any more: its slot goes back."""


TRANSITIONS: Final[Mapping[tuple[BlockState, BlockEvent], BlockState]] = MappingProxyType(
    {
        (BlockState.ABSENT, BlockEvent.CLAIM): BlockState.BUILDING,
        (BlockState.BUILDING, BlockEvent.COMMIT): BlockState.READY,
        (BlockState.BUILDING, BlockEvent.FAIL): BlockState.FAILED,
        (BlockState.FAILED, BlockEvent.FREE): BlockState.ABSENT,
        (BlockState.READY, BlockEvent.RETIRE): BlockState.EVICTING,
        (BlockState.EVICTING, BlockEvent.FREE): BlockState.ABSENT,
    }
)


class ForbiddenTransition(Terminal):
    """A caller asked for a change that the table does not hold: a defect, never an operating condition."""

    code = "forbidden_transition"


def step(state: BlockState, event: BlockEvent) -> BlockState:
    """The state after ``event``. Pure; raises `ForbiddenTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ForbiddenTransition(f"a block cannot {event} while {state.name}", field="event") from None
