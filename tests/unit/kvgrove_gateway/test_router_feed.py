"""Snapshot, numbered batches, gaps and boots of one node's stream."""

from kvgrove_gateway.router.feed import MAX_KEPT_BATCHES, Apply, Clear, Feed, FeedState, Load, Resubscribe
from kvgrove_protocol.events import EventBatch, NodeLoad, SnapshotChunk

LOAD = NodeLoad(queued_prefill_tokens=0, running=0, prefill_tokens_per_s=0.0, decode_steps_per_s=0.0, free_blocks=0)


def batch(seq: int, boot: str = "b1") -> EventBatch:
    return EventBatch(boot=boot, seq=seq, events=[], load=LOAD)


def chunk(seq: int, index: int = 0, *, last: bool = True, boot: str = "b1", keys: bytes = b"k" * 32) -> SnapshotChunk:
    return SnapshotChunk(boot=boot, seq=seq, index=index, last=last, keys=keys)


def live(seq: int = 4) -> Feed:
    feed = Feed()
    feed.begin("b1")
    feed.chunk(chunk(seq))
    assert feed.state is FeedState.LIVE
    return feed


def test_it_begins_by_asking_for_a_snapshot() -> None:
    assert Feed().begin("b1") == [Clear(), Resubscribe("start")]


def test_snapshot_then_batches_in_order() -> None:
    feed = Feed()
    feed.begin("b1")
    assert feed.chunk(chunk(4, 0, last=False)) == [Load(b"k" * 32, "host")]
    assert feed.chunk(chunk(4, 1)) == [Load(b"k" * 32, "host")]
    assert feed.batch(batch(5)) == [Apply(batch(5))]
    assert feed.batch(batch(6)) == [Apply(batch(6))]


def test_batches_that_overtake_the_snapshot_are_applied_on_top_of_it() -> None:
    feed = Feed()
    feed.begin("b1")
    for seq in (3, 4, 5):
        assert feed.batch(batch(seq)) == []
    assert feed.chunk(chunk(4)) == [Load(b"k" * 32, "host"), Apply(batch(5))]


def test_a_gap_forgets_the_node_until_the_next_snapshot() -> None:
    feed = live(4)
    assert feed.batch(batch(6)) == [Clear(), Resubscribe("gap")]
    assert feed.state is FeedState.SNAPSHOT
    assert feed.batch(batch(7)) == []
    assert feed.chunk(chunk(6)) == [Load(b"k" * 32, "host"), Apply(batch(7))]


def test_a_late_batch_is_dropped() -> None:
    feed = live(4)
    assert feed.batch(batch(4)) == []
    assert feed.batch(batch(2)) == []
    assert feed.state is FeedState.LIVE


def test_another_boot_starts_over() -> None:
    """ROU-06: numbering restarts with the node."""
    feed = live(400)
    assert feed.batch(batch(0, "b2")) == [Clear(), Resubscribe("boot")]
    feed.chunk(chunk(0, boot="b2"))
    assert feed.batch(batch(1, "b2")) == [Apply(batch(1, "b2"))]


def test_a_snapshot_with_a_hole_is_asked_for_again() -> None:
    feed = Feed()
    feed.begin("b1")
    feed.chunk(chunk(4, 0, last=False))
    assert feed.chunk(chunk(4, 2)) == [Clear(), Resubscribe("snapshot_gap")]


def test_a_snapshot_that_begins_anew_replaces_the_half_one() -> None:
    feed = Feed()
    feed.begin("b1")
    feed.chunk(chunk(4, 0, last=False))
    assert feed.chunk(chunk(9, 0)) == [Clear(), Load(b"k" * 32, "host")]
    assert feed.batch(batch(10)) == [Apply(batch(10))]


def test_what_is_kept_is_bounded() -> None:
    """ROU-14."""
    feed = Feed()
    feed.begin("b1")
    for seq in range(MAX_KEPT_BATCHES):
        assert feed.batch(batch(seq)) == []
    assert feed.batch(batch(MAX_KEPT_BATCHES)) == [Clear(), Resubscribe("overflow")]
