"""The table of block life, and that its diagram tells the truth."""

import re

import pytest

from kvgrove_daemon.cache import blocks
from kvgrove_daemon.cache.blocks import TRANSITIONS, BlockEvent, BlockState, ForbiddenTransition, step


def test_the_diagram_in_the_docstring_is_the_table() -> None:
    drawn = {
        (BlockState[before], BlockEvent(event)): BlockState[after]
        for before, event, after in re.findall(
            r"^    ([A-Z]+) --(\w+)--> ([A-Z]+)$", blocks.__doc__ or "", re.MULTILINE
        )
    }
    assert drawn == dict(TRANSITIONS)


@pytest.mark.parametrize("state", BlockState)
@pytest.mark.parametrize("event", BlockEvent)
def test_what_the_table_does_not_hold_is_refused(state: BlockState, event: BlockEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ForbiddenTransition, match=state.name):
            step(state, event)


def test_i4_only_a_commit_makes_a_block_readable() -> None:
    assert {event for (_, event), after in TRANSITIONS.items() if after is BlockState.READY} == {BlockEvent.COMMIT}


def test_i5_bytes_are_freed_only_after_readers_can_no_longer_find_them() -> None:
    before_free = {before for (before, event) in TRANSITIONS if event is BlockEvent.FREE}
    assert before_free == {BlockState.EVICTING, BlockState.FAILED}


def test_every_state_can_end_as_absent() -> None:
    for start in BlockState:
        seen = {start}
        while not seen >= (after := {TRANSITIONS[key] for key in TRANSITIONS if key[0] in seen}):
            seen |= after
        assert BlockState.ABSENT in seen
