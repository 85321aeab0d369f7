"""The table of an engine's stream, and the steps that no engine takes twice the same way."""

from __future__ import annotations

import re

from kvgrove_gateway.kv_events import source
from kvgrove_gateway.kv_events.source import (
    MAX_ATTEMPTS,
    MAX_KEPT,
    TABLE,
    Apply,
    AskListing,
    AskReplay,
    Clear,
    Connected,
    Disconnected,
    Effect,
    End,
    Input,
    Live,
    Overdue,
    Position,
    Replayed,
    SourceState,
    Unusable,
    step,
)
from kvgrove_gateway.kv_events.wire import Batch

BATCH = Batch([], 0, 0)


class Stream:
    def __init__(self) -> None:
        self.at = Position()

    def __call__(self, *inputs: Input) -> list[Effect]:
        effects: list[Effect] = []
        for each in inputs:
            self.at, more = step(self.at, each)
            effects += more
        return effects


def live() -> Stream:
    stream = Stream()
    stream(Connected(), Replayed(0, BATCH), End())
    assert stream.at.state is SourceState.LIVE
    return stream


def test_the_docstring_shows_the_table() -> None:
    rows = re.findall(r"^(SYNCING|LIVE|STALE) +(\w+)", source.__doc__ or "", re.MULTILINE)
    shown = {(state, kind) for state, kind in rows}
    shown |= {("GAP", kind) for state, kind in rows if state == "SYNCING"}
    assert shown == {(state.name, kind.__name__) for state, kind in TABLE}


def test_what_is_said_while_history_is_read_comes_after_it() -> None:
    stream = Stream()
    assert stream(Connected()) == [Clear(), AskReplay(0, "start")]
    assert stream(Live(2, BATCH), Live(3, BATCH)) == []
    assert stream(Replayed(0, BATCH), Replayed(1, BATCH), Replayed(2, BATCH)) == [Apply(BATCH)] * 3
    assert stream(End()) == [Apply(BATCH)]
    assert (stream.at.state, stream.at.applied, stream.at.complete) == (SourceState.LIVE, 3, True)


def test_a_replay_with_a_hole_is_asked_for_again_and_then_given_up_for_a_clean_slate() -> None:
    stream = live()
    assert stream(Live(5, BATCH)) == [AskReplay(1, "gap")]
    assert stream(Replayed(1, BATCH)) == [Apply(BATCH)]
    for _ in range(MAX_ATTEMPTS - 1):
        assert stream(End()) == [AskReplay(2, "hole")]
    assert stream(End()) == [Clear(), Apply(BATCH)]
    assert (stream.at.state, stream.at.applied, stream.at.complete) == (SourceState.LIVE, 5, False)


def test_without_answers_the_stream_is_followed_from_where_it_is() -> None:
    stream = Stream()
    stream(Connected())
    stream(Live(7, BATCH))
    for _ in range(MAX_ATTEMPTS):
        assert stream(Overdue()) == [AskReplay(0, "overdue")]
    assert stream(Overdue()) == [Clear(), Apply(BATCH)]
    assert stream.at.state is SourceState.LIVE
    assert not stream.at.complete
    assert stream.at.applied == 7
    assert stream(Live(8, BATCH)) == [Apply(BATCH)]


def test_a_history_that_begins_too_late_is_replaced_by_a_listing() -> None:
    stream = live()
    stream(Live(9, BATCH))
    assert stream(Replayed(6, BATCH)) == [Clear(), AskListing()]
    assert stream.at.state is SourceState.SYNCING


def test_rou_14_what_is_kept_is_bounded() -> None:
    stream = Stream()
    stream(Connected(), *(Live(number, BATCH) for number in range(MAX_KEPT)))
    assert stream(Live(MAX_KEPT, BATCH)) == [Clear(), AskReplay(0, "overflow")]
    assert stream.at.kept == ()


def test_a_batch_that_cannot_be_read_takes_what_was_believed_with_it() -> None:
    stream = live()
    assert stream(Live(1, None)) == [Clear()]
    assert (stream.at.state, stream.at.applied, stream.at.complete) == (SourceState.LIVE, 1, False)


def test_a_refused_engine_is_heard_again_when_it_comes_back() -> None:
    stream = live()
    assert stream(Unusable("block_size")) == [Clear()]
    assert stream(Live(1, BATCH)) == []
    assert (stream.at.state, stream.at.refused) == (SourceState.REFUSED, "block_size")
    stream(Disconnected(), Connected())
    assert (stream.at.state, stream.at.refused) == (SourceState.SYNCING, "")
