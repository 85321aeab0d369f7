"""Snapshot, numbered batches, gaps and boots of one node's stream."""

import re

from kvgrove_gateway.router import feed
from kvgrove_gateway.router.feed import (
    MAX_KEPT_BATCHES,
    TABLE,
    Apply,
    Ask,
    Begin,
    Clear,
    Drifted,
    Effect,
    FeedState,
    Ignored,
    Input,
    Load,
    Overdue,
    Position,
    Quiet,
    step,
)
from kvgrove_protocol.events import EventBatch, NodeLoad, SnapshotChunk

LOAD = NodeLoad(queued_prefill_tokens=0, running=0, prefill_tokens_per_s=0.0, decode_steps_per_s=0.0, free_blocks=0)
KEY = b"k" * 32


def batch(seq: int, boot: str = "b1") -> EventBatch:
    return EventBatch(boot=boot, seq=seq, events=[], load=LOAD)


def chunk(seq: int, index: int = 0, *, last: bool = True, boot: str = "b1", keys: bytes = KEY) -> SnapshotChunk:
    return SnapshotChunk(boot=boot, seq=seq, index=index, last=last, keys=keys)


class Feed:
    """A position that moves."""

    def __init__(self, boot: str = "b1") -> None:
        self.at = Position()
        self.first = self(Begin(boot))

    def __call__(self, *inputs: Input) -> list[Effect]:
        effects: list[Effect] = []
        for each in inputs:
            self.at, more = step(self.at, each)
            effects += more
        return effects

    @property
    def state(self) -> FeedState:
        return self.at.state


def live(seq: int = 4) -> Feed:
    stream = Feed()
    stream(chunk(seq))
    assert stream.state is FeedState.LIVE
    return stream


def test_the_docstring_shows_the_table() -> None:
    shown = {
        (state, input_)
        for state, input_ in re.findall(r"^(SYNCING|LIVE|GAP|STALE) +([\w ]+?)  ", feed.__doc__ or "", re.MULTILINE)
    }
    names = {"chunk": "SnapshotChunk", "last chunk": "SnapshotChunk", "chunk 0": "SnapshotChunk"}
    seen = {(state, names.get(each, "EventBatch" if "batch" in each else each)) for state, each in shown}
    assert seen == {(state.name, kind.__name__) for state, kind in TABLE}


def test_it_begins_by_asking_for_a_snapshot() -> None:
    stream = Feed()
    assert stream.first == [Clear(), Ask("start")]
    assert stream.state is FeedState.SYNCING


def test_snapshot_then_batches_in_order() -> None:
    stream = Feed()
    assert stream(chunk(4, 0, last=False)) == [Load(KEY, "host")]
    assert stream(chunk(4, 1)) == [Load(KEY, "host")]
    assert stream(batch(5)) == [Apply(batch(5))]
    assert stream(batch(6)) == [Apply(batch(6))]


def test_batches_that_overtake_the_snapshot_are_applied_on_top_of_it() -> None:
    stream = Feed()
    assert stream(batch(3), batch(5), batch(4)) == []
    assert stream(chunk(4)) == [Load(KEY, "host"), Apply(batch(5))]


def test_a_gap_is_asked_for_and_nothing_is_forgotten() -> None:
    stream = live(4)
    assert stream(batch(7)) == [Ask("gap", 4)]
    assert stream.state is FeedState.GAP
    assert stream(batch(8)) == []
    assert stream(batch(5)) == [Apply(batch(5))]
    assert stream.state is FeedState.GAP
    assert stream(batch(6)) == [Apply(batch(6)), Apply(batch(7)), Apply(batch(8))]
    assert stream.state is FeedState.LIVE
    assert stream(batch(7), batch(8)) == [Ignored("late"), Ignored("late")]  # the replay's own copies


def test_a_snapshot_in_answer_to_a_gap_replaces_everything() -> None:
    stream = live(4)
    stream(batch(7))
    assert stream(chunk(7)) == [Clear(), Load(KEY, "host")]
    assert stream(batch(8)) == [Apply(batch(8))]


def test_a_replay_that_does_not_come_gives_way_to_a_snapshot() -> None:
    stream = live(4)
    stream(batch(7))
    assert stream(Overdue()) == [Clear(), Ask("overdue")]
    assert stream(chunk(9)) == [Load(KEY, "host")]
    assert stream.state is FeedState.LIVE


def test_a_hole_behind_a_snapshot_is_a_gap_too() -> None:
    stream = Feed()
    stream(batch(6))
    assert stream(chunk(4)) == [Load(KEY, "host"), Ask("gap", 4)]
    assert stream(batch(5)) == [Apply(batch(5)), Apply(batch(6))]


def test_a_late_batch_never_brings_a_removed_block_back() -> None:
    stream = live(4)
    assert stream(batch(4), batch(2)) == [Ignored("late"), Ignored("late")]
    assert stream.state is FeedState.LIVE


def test_rou_06_a_new_boot_starts_from_zero_and_the_old_one_is_heard_no_more() -> None:
    stream = live(400)
    assert stream(Begin("b2")) == [Clear(), Ask("start")]
    stream(chunk(-1, boot="b2"))
    assert stream(batch(0, "b2")) == [Apply(batch(0, "b2"))]
    assert stream(batch(401), chunk(401)) == [Ignored("other_boot"), Ignored("other_boot")]
    assert stream(batch(1, "b2")) == [Apply(batch(1, "b2"))]


def test_a_snapshot_with_a_hole_is_asked_for_again_once() -> None:
    stream = Feed()
    stream(chunk(4, 0, last=False))
    assert stream(chunk(4, 2, last=False)) == [Clear(), Ask("snapshot_gap")]
    assert stream(chunk(4, 3, last=False), chunk(4, 4)) == [Ignored("late")] * 2
    assert stream.state is FeedState.SYNCING


def test_a_snapshot_that_begins_anew_replaces_the_half_one() -> None:
    stream = Feed()
    stream(chunk(4, 0, last=False))
    assert stream(chunk(9, 0)) == [Clear(), Load(KEY, "host")]
    assert stream(batch(10)) == [Apply(batch(10))]


def test_a_quiet_node_is_in_doubt_until_it_speaks() -> None:
    stream = live(4)
    stream(Quiet())
    assert stream.state is FeedState.STALE
    assert stream(batch(5)) == [Apply(batch(5))]
    assert stream.state is FeedState.LIVE


def test_drift_is_healed_by_a_snapshot() -> None:
    stream = live(4)
    assert stream(Drifted()) == [Clear(), Ask("drift")]
    assert stream.state is FeedState.SYNCING


def test_rou_14_what_is_kept_is_bounded_and_overflow_resyncs() -> None:
    for stream in (Feed(), live(-1)):
        for seq in range(1, MAX_KEPT_BATCHES + 1):
            assert stream(batch(seq))[:1] in ([], [Ask("gap", -1)])
        assert stream(batch(MAX_KEPT_BATCHES + 1)) == [Clear(), Ask("overflow")]
        assert stream.at.kept == ()


def test_before_a_link_is_up_nothing_counts() -> None:
    assert step(Position(), batch(0, boot="")) == (Position(), [])
