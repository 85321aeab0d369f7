"""The life of a rollout, as one table.

::

    PENDING --adopted--> PROMOTED
    PENDING --named--> LOADING
    PENDING --withdrawn--> ROLLING_BACK
    LOADING --adopted--> PROMOTED
    LOADING --loaded--> WARMING
    LOADING --withdrawn--> ROLLING_BACK
    WARMING --warm--> AWAITING_APPROVAL
    WARMING --stuck--> STALLED
    WARMING --withdrawn--> ROLLING_BACK
    AWAITING_APPROVAL --approved--> SHIFTING
    AWAITING_APPROVAL --withdrawn--> ROLLING_BACK
    SHIFTING --stepped--> SHIFTING
    SHIFTING --finished--> PROMOTED
    SHIFTING --stuck--> STALLED
    SHIFTING --failed--> ROLLING_BACK
    SHIFTING --withdrawn--> ROLLING_BACK
    STALLED --warms--> WARMING
    STALLED --shifts--> SHIFTING
    STALLED --failed--> ROLLING_BACK
    STALLED --withdrawn--> ROLLING_BACK
    PROMOTED --targeted--> PENDING
    PROMOTED --reverted--> ROLLING_BACK
    ROLLING_BACK --back--> ROLLED_BACK
    ROLLED_BACK --targeted--> PENDING

Role: the only place that says what may follow what. Invariants: traffic reaches a generation only in SHIFTING, so only
after it was warm and approved; whatever is given up goes through ROLLING_BACK, which gives it no traffic and ends when
nobody places on it any more; another target is begun only from an end. Every cause (weights, tokenizer, template,
adapter, KV format) is alike here: it is another generation.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_protocol.errors import Terminal


class Phase(StrEnum):
    """Spelled as in ``status.rollout.phase``."""

    PENDING = "Pending"
    """A generation is wanted that has no name yet, or whose earlier blocks are still being erased."""
    LOADING = "Loading"
    """Nodes load it."""
    WARMING = "Warming"
    """Every node holds it, takes no traffic on it and computes its warm set."""
    AWAITING_APPROVAL = "AwaitingApproval"
    SHIFTING = "Shifting"
    """New conversations go to it by the weight of the current step."""
    PROMOTED = "Promoted"
    """The declared generation takes all new conversations."""
    ROLLING_BACK = "RollingBack"
    """It takes no traffic any more; some members have not said so yet."""
    ROLLED_BACK = "RolledBack"
    """The generation that was promoted last takes everything."""
    STALLED = "Stalled"
    """It stays at the traffic it has until what holds it back is over, or another one is declared."""


class Event(StrEnum):
    ADOPTED = "adopted"
    """Nothing is given up for it: nothing has served before, or it is the very generation that serves."""
    NAMED = "named"
    LOADED = "loaded"
    WARM = "warm"
    APPROVED = "approved"
    STEPPED = "stepped"
    FINISHED = "finished"
    """The last step is over."""
    STUCK = "stuck"
    """A limit is reached that fails nothing: a deadline, or measurements that tell nothing."""
    WARMS = "warms"
    """It was stuck warming, and is not any more."""
    SHIFTS = "shifts"
    """It was stuck shifting, and is not any more."""
    FAILED = "failed"
    """The analysis failed, and the spec says to go back."""
    WITHDRAWN = "withdrawn"
    """Something else is declared."""
    TARGETED = "targeted"
    """A generation is declared that does not serve."""
    REVERTED = "reverted"
    """The generation before the promoted one is declared again, and is still there."""
    BACK = "back"
    """Nobody places conversations on it, and no node serves it."""


class ForbiddenRollout(Terminal):
    """A rollout cannot go that way."""

    code = "forbidden_rollout"


_P, _E = Phase, Event

TRANSITIONS: Final[Mapping[tuple[Phase, Event], Phase]] = MappingProxyType(
    {
        (_P.PENDING, _E.ADOPTED): _P.PROMOTED,
        (_P.PENDING, _E.NAMED): _P.LOADING,
        (_P.PENDING, _E.WITHDRAWN): _P.ROLLING_BACK,
        (_P.LOADING, _E.ADOPTED): _P.PROMOTED,
        (_P.LOADING, _E.LOADED): _P.WARMING,
        (_P.LOADING, _E.WITHDRAWN): _P.ROLLING_BACK,
        (_P.WARMING, _E.WARM): _P.AWAITING_APPROVAL,
        (_P.WARMING, _E.STUCK): _P.STALLED,
        (_P.WARMING, _E.WITHDRAWN): _P.ROLLING_BACK,
        (_P.AWAITING_APPROVAL, _E.APPROVED): _P.SHIFTING,
        (_P.AWAITING_APPROVAL, _E.WITHDRAWN): _P.ROLLING_BACK,
        (_P.SHIFTING, _E.STEPPED): _P.SHIFTING,
        (_P.SHIFTING, _E.FINISHED): _P.PROMOTED,
        (_P.SHIFTING, _E.STUCK): _P.STALLED,
        (_P.SHIFTING, _E.FAILED): _P.ROLLING_BACK,
        (_P.SHIFTING, _E.WITHDRAWN): _P.ROLLING_BACK,
        (_P.STALLED, _E.WARMS): _P.WARMING,
        (_P.STALLED, _E.SHIFTS): _P.SHIFTING,
        (_P.STALLED, _E.FAILED): _P.ROLLING_BACK,
        (_P.STALLED, _E.WITHDRAWN): _P.ROLLING_BACK,
        (_P.PROMOTED, _E.TARGETED): _P.PENDING,
        (_P.PROMOTED, _E.REVERTED): _P.ROLLING_BACK,
        (_P.ROLLING_BACK, _E.BACK): _P.ROLLED_BACK,
        (_P.ROLLED_BACK, _E.TARGETED): _P.PENDING,
    }
)

ENDS: Final = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK})
"""In which nothing is under way."""


def step(phase: Phase, event: Event) -> Phase:
    """What follows; raises ForbiddenRollout for what the table does not hold."""
    after = TRANSITIONS.get((phase, event))
    if after is None:
        raise ForbiddenRollout(f"a rollout cannot be {event} while {phase}")
    return after
