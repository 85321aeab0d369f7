"""What a gateway believes of one node: never more than the node has said, and in doubt where something is missing."""

from __future__ import annotations

import pytest

from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.followers import Followers
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import DRIFT_S, QUIET_S, REPLAY_S, SNAPSHOT_S, NodeResidency
from kvgrove_gateway.router.decide import Candidate, decide
from kvgrove_gateway.router.feed import FeedState
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.data import Subscribe, ToGateway
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.events import Cleared, EventBatch, Listing, NodeLoad, SnapshotChunk, Stored, fingerprint

LOAD = NodeLoad(0, 0, 0.0, 0.0, 1)
HOST = "host"


def key(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


class Pair:
    """A node's event log and a gateway's view of it. ``wire`` holds what is under way."""

    def __init__(self, boot: str = "b1", *, capacity: int = 100_000) -> None:
        self.index, self.metrics = BlockIndex(capacity), Metrics()
        self.view = NodeResidency(self.index, self.metrics, "n")
        self.wire: list[ToGateway] = []
        self.ready: set[bytes] = set()
        self.now = 0.0
        self.reboot(boot)

    def reboot(self, boot: str) -> None:
        self.log = EventLog(boot)
        self.node = Followers(self.log, lambda _, message: self.wire.append(message))
        self.ready = set()

    def connect(self) -> None:
        self.ask(self.view.begin(self.log.boot, self.now, "start"))

    def ask(self, subscribe: Subscribe | None) -> None:
        if subscribe is not None:
            self.node.add(b"g", {HOST: sorted(self.ready)}, LOAD, boot=subscribe.boot, after=subscribe.after)

    def store(self, *numbers: int) -> None:
        self.log.stored([key(number) for number in numbers])
        self.ready |= {key(number) for number in numbers}

    def remove(self, *numbers: int) -> None:
        self.log.removed([key(number) for number in numbers])
        self.ready -= {key(number) for number in numbers}

    def flush(self) -> None:
        self.node.flush(LOAD, heartbeat=True)

    def deliver(self, *, lose: int = 0) -> None:
        """All that is under way but the first ``lose``, and what the view asks for because of it."""
        del self.wire[:lose]
        while self.wire:
            message = self.wire.pop(0)
            if isinstance(message, EventBatch):
                self.ask(self.view.batch(message, self.now))
            elif isinstance(message, SnapshotChunk):
                self.ask(self.view.chunk(message, self.now))

    def resyncs(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("kvgrove_router_resyncs_total", {"reason": reason}) or 0.0

    def drift(self) -> float | None:
        return self.metrics.registry.get_sample_value("kvgrove_index_drift", {"node": "n"})

    def held(self, numbers: range) -> set[int]:
        slot = self.view.slot
        assert slot is not None
        return {number for number in numbers if self.index.holds(slot, key(number))}


def connected() -> Pair:
    pair = Pair()
    pair.connect()
    pair.deliver()
    assert pair.view.state is FeedState.LIVE
    return pair


def test_rou_06_after_a_restart_nothing_of_the_old_boot_is_believed() -> None:
    pair = connected()
    pair.store(*range(10))
    pair.flush()
    pair.deliver()
    late = EventBatch(boot="b1", seq=2, events=[Stored(key(99))], load=LOAD)
    pair.reboot("b2")
    pair.view.end()
    pair.connect()
    pair.store(3)
    pair.flush()
    pair.deliver()
    pair.view.batch(late, pair.now)
    assert pair.held(range(100)) == {3}
    assert pair.view.listing == Listing(1, fingerprint(key(3), HOST))


def test_rou_07_a_cleared_node_is_not_preferred_also_where_the_event_is_lost() -> None:
    pair = connected()
    pair.store(*range(10))
    pair.flush()
    pair.deliver()
    pair.view.batch(EventBatch("b1", pair.log.next_seq, [Cleared()], LOAD), pair.now)
    assert pair.held(range(10)) == set()
    # and with the event lost: the next heartbeat shows the gap, the replay brings it
    pair = connected()
    pair.store(*range(10))
    pair.flush()
    pair.deliver()
    pair.remove(*range(10))
    pair.flush()
    pair.flush()
    pair.deliver(lose=1)
    assert pair.held(range(10)) == set()
    assert pair.resyncs("gap") == 1


def test_rou_07_a_removal_that_was_never_said_is_noticed_and_healed() -> None:
    pair = connected()
    pair.store(*range(10))
    pair.flush()
    pair.deliver()
    pair.ready.clear()  # the blocks are gone, and the log was not told
    pair.node.add(b"other", {HOST: pair.ready}, LOAD)  # any snapshot shows it to the node
    assert pair.log.corrected == 1
    pair.wire.clear()
    pair.flush()
    pair.deliver()
    assert pair.resyncs("drift") == 1
    assert pair.held(range(10)) == set()


@pytest.mark.parametrize(("capacity", "missing"), [(100_000, 0.0), (40, 1.0)])
def test_rou_07_blocks_that_the_index_lost_are_noticed_when_the_node_takes_them_back(
    capacity: int, missing: float
) -> None:
    pair = Pair(capacity=capacity)
    pair.connect()
    pair.deliver()
    for number in range(100):  # with room for 40, the first have given way
        pair.store(number)
        pair.flush()
    pair.remove(0)
    pair.remove(99)
    pair.flush()
    pair.deliver()
    assert (pair.index.dropped > 0) == bool(missing)
    assert pair.drift() == 0  # all was applied
    assert pair.metrics.registry.get_sample_value("kvgrove_router_index_missing_total") == missing


def test_rou_08_what_was_said_before_the_end_is_not_believed_after_it() -> None:
    pair = connected()
    pair.view.end()
    pair.view.batch(EventBatch("b1", 0, [Stored(key(1))], LOAD), pair.now)
    pair.view.chunk(SnapshotChunk("b1", 0, 0, True, key(1)), pair.now)
    assert pair.view.slot is None
    assert len(pair.index) == 0


def test_rou_08_the_end_of_the_old_boot_leaves_its_replacement_alone() -> None:
    pair = connected()
    replacement = NodeResidency(pair.index, pair.metrics, "n")
    replacement.begin("b2", 0.0, "start")
    replacement.chunk(SnapshotChunk("b2", 0, 0, True, key(1)), 0.0)
    pair.view.end()
    assert replacement.slot is not None
    assert pair.index.holds(replacement.slot, key(1))


def test_rou_09_a_node_whose_events_have_died_is_placed_by_load_alone() -> None:
    pair = connected()
    pair.store(1)
    pair.flush()
    pair.deliver()
    assert pair.view.tick(QUIET_S - 1) is None
    assert pair.view.slot is not None
    pair.view.tick(QUIET_S + 1)
    assert (pair.view.state, pair.view.slot) == (FeedState.STALE, None)
    pair.flush()
    pair.deliver()
    assert pair.held(range(3)) == {1}


def test_rou_10_blocks_of_another_size_match_nothing_rather_than_a_part() -> None:
    tokens = bytes(4 * 128)
    for theirs in (16, 64):
        pair = connected()
        keys = block_keys(b"r" * 32, tokens, block_size=theirs)
        pair.log.stored(keys)
        pair.flush()
        pair.deliver()
        slot = pair.view.slot
        assert slot is not None
        ours = block_keys(b"r" * 32, tokens, block_size=32)
        assert pair.index.longest_matches({"n": slot}, ours) == {"n": 0}
        assert pair.index.longest_matches({"n": slot}, keys) == {"n": len(keys)}


def test_rou_13_a_gateway_that_starts_late_learns_all_5000_blocks() -> None:
    pair = Pair()
    for start in range(0, 5000, 100):
        pair.store(*range(start, start + 100))
        pair.flush()  # nobody follows yet
    pair.remove(*range(0, 5000, 7))
    pair.flush()
    pair.connect()
    pair.store(6000)
    pair.flush()
    pair.deliver()
    assert pair.held(range(7000)) == {*range(5000), 6000} - {*range(0, 5000, 7)}
    assert pair.drift() == 0


def test_rou_14_more_than_can_be_kept_is_counted_and_resynced() -> None:
    pair = Pair()
    pair.connect()
    snapshot, pair.wire = pair.wire, []
    for number in range(3000):
        pair.store(number)
        pair.flush()
    assert pair.view.slot is None
    pair.deliver()
    assert pair.resyncs("overflow") >= 1
    assert snapshot
    pair.flush()
    pair.deliver()
    assert pair.held(range(3000)) == {*range(3000)}
    assert pair.drift() == 0


def test_an_open_gap_is_not_preferred_for_what_is_in_doubt() -> None:
    pair = connected()
    pair.store(*range(4))
    pair.flush()
    pair.flush()
    batch = pair.wire[1]
    assert isinstance(batch, EventBatch)
    ask = pair.view.batch(batch, pair.now)
    assert ask == Subscribe(boot="b1", after=batch.seq - 2)
    assert pair.view.slot is None
    in_doubt = Candidate("doubted", 0, 0, 0, 1000.0)
    sure = Candidate("sure", 96, 0, 0, 1000.0)
    assert decide([in_doubt, sure], 128).node == "sure"


def test_what_does_not_come_is_asked_for_again() -> None:
    pair = Pair()
    assert pair.view.begin("b1", 0.0, "start") == Subscribe()
    assert pair.view.tick(SNAPSHOT_S) is None
    assert pair.view.tick(SNAPSHOT_S + 1) == Subscribe()
    pair = connected()
    pair.store(1)
    pair.flush()
    pair.flush()
    last = pair.wire[-1]
    assert isinstance(last, EventBatch)
    pair.view.batch(last, 100.0)
    assert pair.view.tick(100.0 + REPLAY_S) is None
    assert pair.view.tick(101.0 + REPLAY_S) == Subscribe()
    assert (pair.resyncs("overdue"), pair.resyncs("gap")) == (1, 1)


def test_drift_that_a_snapshot_does_not_heal_is_shown_and_asked_for_rarely() -> None:
    pair = connected()
    wrong = Listing(7, 1)
    seq = pair.log.next_seq

    def heartbeat() -> EventBatch:
        nonlocal seq
        seq += 1
        return EventBatch("b1", seq - 1, [], LOAD, wrong)

    assert pair.view.batch(heartbeat(), 0.0) == Subscribe()
    pair.view.chunk(SnapshotChunk("b1", seq - 1, 0, True, b""), 0.0)
    assert pair.view.batch(heartbeat(), 1.0) is None
    assert (pair.drift(), pair.view.state) == (7, FeedState.LIVE)
    assert pair.view.batch(heartbeat(), DRIFT_S + 1) == Subscribe()
    pair.view.end()
    assert pair.drift() is None


def test_a_block_that_moved_between_tiers_is_not_the_same_listing() -> None:
    assert fingerprint(key(1) + key(2), "host") == fingerprint(key(2) + key(1), "host")
    several = bytes(range(32))
    assert len({fingerprint(several, tier) for tier in ("device", "host", "disk")}) == 3


def test_keys_that_are_none_change_nothing() -> None:
    pair = connected()
    with pytest.raises(Malformed):
        pair.view.batch(EventBatch("b1", 1, [Stored(key(1)), Stored(b"short")], LOAD), pair.now)
    with pytest.raises(Malformed):
        pair.view.chunk(SnapshotChunk("b1", 1, 0, True, b"short"), pair.now)
    assert pair.view.listing == Listing(0, 0)
