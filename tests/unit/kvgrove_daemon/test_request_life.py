"""The table of a request's life: its diagram tells the truth, and everything held is given back once."""

import re

import pytest

from kvgrove_daemon import request_life
from kvgrove_daemon.request_life import (
    HOLDS,
    TRANSITIONS,
    ForbiddenRequestStep,
    Held,
    RequestEvent,
    RequestState,
    step,
)

Path = tuple[RequestEvent, ...]


def test_the_diagram_in_the_docstring_is_the_table() -> None:
    drawn = {
        (RequestState[before], RequestEvent(event)): RequestState[after]
        for before, event, after in re.findall(
            r"^    ([A-Z_]+) --(\w+)--> ([A-Z_]+)$", request_life.__doc__ or "", re.MULTILINE
        )
    }
    assert drawn == dict(TRANSITIONS)
    assert HOLDS.keys() == set(RequestState)


@pytest.mark.parametrize("state", RequestState)
@pytest.mark.parametrize("event", RequestEvent)
def test_what_the_table_does_not_hold_is_refused(state: RequestState, event: RequestEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event)[0] is TRANSITIONS[state, event]
    else:
        with pytest.raises(ForbiddenRequestStep, match=state):
            step(state, event)


def lives(state: RequestState = RequestState.ARRIVED, path: Path = (), tries: int = 2) -> list[Path]:
    """All ways from arrival to end that come back to ARRIVED at most ``tries`` times."""
    if state is RequestState.ENDED:
        return [path]
    found: list[Path] = []
    for (before, event), after in TRANSITIONS.items():
        if before is state and tries - (event is RequestEvent.RETRY) >= 0:
            found += lives(after, (*path, event), tries - (event is RequestEvent.RETRY))
    return found


def test_every_life_gives_back_exactly_what_it_took() -> None:
    assert len(lives()) > 100
    for path in lives():
        state, held = RequestState.ARRIVED, set(HOLDS[RequestState.ARRIVED])
        for event in path:
            before = state
            state, lost = step(before, event)
            assert len(set(lost)) == len(lost)
            assert held.issuperset(lost)  # nothing twice
            held = held.difference(lost) | HOLDS[state]
        assert not held


def test_a_cancel_ends_every_state_but_lets_a_worker_finish_with_its_slots() -> None:
    for state in set(RequestState) - {RequestState.LETTING_GO, RequestState.ENDED}:
        after, lost = step(state, RequestEvent.CANCEL)
        if state is RequestState.LOADING:
            assert after is RequestState.LETTING_GO
            assert Held.BUILD not in lost  # I5
            assert Held.LEAD in lost  # and who waits for it is not kept waiting
        else:
            assert after is RequestState.ENDED
            assert set(lost) == HOLDS[state]


def test_who_waits_holds_no_blocks() -> None:
    for state in (RequestState.ARRIVED, RequestState.WAITING_FLIGHT, RequestState.WAITING_ROOM):
        assert not HOLDS[state] & {Held.BUILD, Held.LEAD, Held.ENGINE}


def test_others_are_told_before_slots_go_back() -> None:
    _, lost = step(RequestState.RUNNING, RequestEvent.FAIL)
    assert lost == (Held.ENGINE, Held.LEAD, Held.BUILD)
