"""One erase on one node, as one table: of a user, a tenant, a document or a whole namespace (I8).

::

    REQUESTED --cut--> UNREADABLE
    REQUESTED --recalled--> UNREADABLE
    UNREADABLE --surveyed--> WIPING
    WIPING --emptied--> REWRAPPING
    WIPING --failed--> INCOMPLETE
    REWRAPPING --sealed--> PROVEN
    REWRAPPING --failed--> INCOMPLETE
    INCOMPLETE --retry--> WIPING
    PROVEN --reseal--> REWRAPPING
    REWRAPPING --reseal--> REWRAPPING
    INCOMPLETE --reseal--> INCOMPLETE

Role: the only place that says what may follow what, and what is to be done on the way. Invariants: nothing is PROVEN
before it was cut in every tier, what earlier boots left was looked at, every byte was overwritten and read back, and
the survivors are wrapped under the secret of now. That it was wiped is remembered before survivors are wrapped anew, so
a node that dies in between does not erase a second time what is new data by then; one that dies earlier begins anew,
and erasing twice is harmless.
Must not know: blocks, media, plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.receipts import EraseOutcome


class EraseState(StrEnum):
    REQUESTED = "requested"
    """To be cut now, unless an earlier boot has wiped it; left within the same call."""
    UNREADABLE = "unreadable"
    """No tier lists it any more, and nothing that was under way stores it."""
    WIPING = "wiping"
    """What earlier boots left was cut too. Bytes are being overwritten; some wait for their readers."""
    REWRAPPING = "rewrapping"
    """Nothing of it is left. What survives on disk is being wrapped under the new secret."""
    PROVEN = "proven"
    INCOMPLETE = "incomplete"
    """Something refused to be wiped or wrapped. Nothing of it can be read all the same."""


class EraseEvent(StrEnum):
    CUT = "cut"
    """Every tier dropped it."""
    RECALLED = "recalled"
    """An earlier boot wiped it: what there is now is new data or a survivor, which it may not have wrapped anew."""
    SURVEYED = "surveyed"
    """Nothing that an earlier boot left is still to be looked at."""
    EMPTIED = "emptied"
    """No slot or extent is left that has to be wiped, and nobody still reads any."""
    SEALED = "sealed"
    FAILED = "failed"
    RETRY = "retry"
    RESEAL = "reseal"
    """The plan has another secret."""


class EraseEffect(StrEnum):
    """Of a change. Cutting comes before the first one, and what earlier boots left is looked at without being asked."""

    WIPE = "wipe"
    """Overwrite what was cut and read it back; answers EMPTIED or FAILED."""
    REMEMBER = "remember"
    """Make durable that it was wiped, before anything that follows."""
    REWRAP = "rewrap"
    """Wrap what survives of the namespace under the secret of now; answers SEALED or FAILED."""


Step = tuple[EraseState, tuple[EraseEffect, ...]]
_S, _E, _F = EraseState, EraseEvent, EraseEffect

TRANSITIONS: Final[Mapping[tuple[EraseState, EraseEvent], Step]] = MappingProxyType(
    {
        (_S.REQUESTED, _E.CUT): (_S.UNREADABLE, ()),
        (_S.REQUESTED, _E.RECALLED): (_S.UNREADABLE, ()),
        (_S.UNREADABLE, _E.SURVEYED): (_S.WIPING, (_F.WIPE,)),
        (_S.WIPING, _E.EMPTIED): (_S.REWRAPPING, (_F.REMEMBER, _F.REWRAP)),
        (_S.WIPING, _E.FAILED): (_S.INCOMPLETE, ()),
        (_S.REWRAPPING, _E.SEALED): (_S.PROVEN, ()),
        (_S.REWRAPPING, _E.FAILED): (_S.INCOMPLETE, ()),
        (_S.INCOMPLETE, _E.RETRY): (_S.WIPING, (_F.WIPE,)),
        (_S.PROVEN, _E.RESEAL): (_S.REWRAPPING, (_F.REWRAP,)),
        (_S.REWRAPPING, _E.RESEAL): (_S.REWRAPPING, (_F.REWRAP,)),
        (_S.INCOMPLETE, _E.RESEAL): (_S.INCOMPLETE, ()),
    }
)

OUTCOMES: Final[Mapping[EraseState, EraseOutcome]] = MappingProxyType(
    dict.fromkeys(EraseState, EraseOutcome.PENDING)
    | {EraseState.PROVEN: EraseOutcome.PROVEN, EraseState.INCOMPLETE: EraseOutcome.INCOMPLETE}
)
"""What a receipt says."""


class ForbiddenErase(Terminal):
    """A caller asked for a change that the table does not hold: a defect, never an operating condition."""

    code = "forbidden_transition"


def step(state: EraseState, event: EraseEvent) -> Step:
    """The state after ``event``, and what is to be done. Pure; raises `ForbiddenErase`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ForbiddenErase(f"an erase cannot be {event} while {state}", field="event") from None
