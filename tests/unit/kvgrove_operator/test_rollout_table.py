"""The life of a rollout: one table, and what it promises."""

import itertools
import re

import pytest

from kvgrove_operator.rollout import table
from kvgrove_operator.rollout.table import ENDS, TRANSITIONS, Event, ForbiddenRollout, Phase, step


def test_the_diagram_is_the_table() -> None:
    drawn = re.findall(r"^    ([A-Z_]+) --([a-z]+)--> ([A-Z_]+)$", table.__doc__ or "", re.MULTILINE)
    assert [(phase.name, event.value, after.name) for (phase, event), after in TRANSITIONS.items()] == drawn


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_what_the_table_does_not_hold_is_refused(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert step(phase, event) is TRANSITIONS[phase, event]
    else:
        with pytest.raises(ForbiddenRollout, match=f"cannot be {event} while {phase}"):
            step(phase, event)


def test_traffic_comes_only_after_warmth_and_approval() -> None:
    into = {key for key, after in TRANSITIONS.items() if after is Phase.SHIFTING and key[0] is not Phase.SHIFTING}
    assert into == {(Phase.AWAITING_APPROVAL, Event.APPROVED), (Phase.STALLED, Event.SHIFTS)}
    assert [key for key, after in TRANSITIONS.items() if after is Phase.AWAITING_APPROVAL] == [
        (Phase.WARMING, Event.WARM)
    ]


def test_whatever_is_under_way_can_be_withdrawn() -> None:
    for phase in set(Phase) - ENDS - {Phase.ROLLING_BACK}:
        assert step(phase, Event.WITHDRAWN) is Phase.ROLLING_BACK


def test_every_event_and_every_phase_is_used() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {phase for phase, _ in TRANSITIONS} == set(Phase)
