"""The life of an erase: one table, and what it promises (I8)."""

from __future__ import annotations

import itertools
import re

import pytest

from kvgrove_daemon.cache import erase
from kvgrove_daemon.cache.erase import (
    OUTCOMES,
    TRANSITIONS,
    EraseEffect,
    EraseEvent,
    EraseState,
    ForbiddenErase,
    step,
)
from kvgrove_protocol.receipts import EraseOutcome


def test_the_diagram_is_the_table() -> None:
    drawn = re.findall(r"^    ([A-Z]+) --([a-z]+)--> ([A-Z]+)$", erase.__doc__ or "", re.MULTILINE)
    assert [(state.name, event.value, after.name) for (state, event), (after, _) in TRANSITIONS.items()] == drawn


@pytest.mark.parametrize(("state", "event"), list(itertools.product(EraseState, EraseEvent)))
def test_what_the_table_does_not_hold_is_refused(state: EraseState, event: EraseEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) == TRANSITIONS[state, event]
    else:
        with pytest.raises(ForbiddenErase, match=f"cannot be {event} while {state}"):
            step(state, event)


def paths(to: EraseState) -> list[list[EraseEvent]]:
    """All ways from the first state that visit no state twice."""
    found: list[list[EraseEvent]] = []

    def walk(state: EraseState, seen: frozenset[EraseState], taken: list[EraseEvent]) -> None:
        if state is to:
            found.append(taken)
            return
        for (before, event), (after, _) in TRANSITIONS.items():
            if before is state and after not in seen:
                walk(after, seen | {after}, [*taken, event])

    walk(EraseState.REQUESTED, frozenset({EraseState.REQUESTED}), [])
    return found


def test_i8_nothing_is_proven_before_it_was_cut_surveyed_emptied_and_sealed() -> None:
    ways = paths(EraseState.PROVEN)
    assert ways
    for way in ways:
        cut = EraseEvent.CUT if EraseEvent.CUT in way else EraseEvent.RECALLED
        order = [way.index(event) for event in (cut, EraseEvent.SURVEYED, EraseEvent.EMPTIED, EraseEvent.SEALED)]
        assert order == sorted(order)


def test_i8_that_it_was_wiped_is_remembered_before_survivors_are_wrapped() -> None:
    _, effects = TRANSITIONS[EraseState.WIPING, EraseEvent.EMPTIED]
    assert effects == (EraseEffect.REMEMBER, EraseEffect.REWRAP)
    remembers = [key for key, (_, effects) in TRANSITIONS.items() if EraseEffect.REMEMBER in effects]
    assert remembers == [(EraseState.WIPING, EraseEvent.EMPTIED)]


def test_i8_another_secret_takes_the_proof_back() -> None:
    after, effects = step(EraseState.PROVEN, EraseEvent.RESEAL)
    assert (after, effects) == (EraseState.REWRAPPING, (EraseEffect.REWRAP,))
    assert OUTCOMES[after] is EraseOutcome.PENDING


def test_i8_a_receipt_says_proven_in_one_state_only() -> None:
    assert [state for state, outcome in OUTCOMES.items() if outcome is EraseOutcome.PROVEN] == [EraseState.PROVEN]
    assert set(OUTCOMES) == set(EraseState)


def test_every_state_can_end_in_proof() -> None:
    able = {EraseState.PROVEN}
    for _ in EraseState:
        able |= {state for (state, _), (after, _) in TRANSITIONS.items() if after in able}
    assert able == set(EraseState)
