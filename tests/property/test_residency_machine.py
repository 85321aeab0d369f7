"""Whatever is lost, delayed, repeated or restarted between a node and a gateway: the view ends equal to the node's."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.followers import Followers
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import QUIET_S, SNAPSHOT_S, NodeResidency
from kvgrove_gateway.router.feed import FeedState
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.data import Subscribe
from kvgrove_protocol.events import DISK, HOST, EventBatch, NodeLoad, SnapshotChunk

LOAD = NodeLoad(0, 0, 0.0, 0.0, 1)
TIERS = (HOST, DISK)
BLOCKS = 5
NUMBERS = st.integers(0, BLOCKS - 1)
Block = tuple[str, int]


def key(number: int) -> bytes:
    return bytes([number * 7 + at & 255 for at in range(32)])


class Link(RuleBasedStateMachine):
    """The real event log and the real residency, with a wire between them that a rule may harm at any place."""

    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(10_000)
        self.view = NodeResidency(self.index, Metrics(), "n")
        self.boots = 0
        self.now = 0.0
        self.history: dict[tuple[str, int], frozenset[Block]] = {}
        """(boot, batch) -> what was READY after it."""
        self.boot_node()
        self.answer()
        self.deliver(1)

    def boot_node(self) -> None:
        self.boots += 1
        self.log = EventLog(f"boot-{self.boots}")
        self.ready: set[Block] = set()
        self.wire: list[EventBatch | SnapshotChunk] = []
        self.asks: list[Subscribe] = []
        self.said: list[EventBatch | SnapshotChunk] = []
        """What was delivered in this boot."""
        self.node = Followers(self.log, lambda _, message: self.wire.append(message))  # type: ignore[arg-type]
        self.history[self.log.boot, -1] = frozenset()
        self.view.end()
        self.ask(self.view.begin(self.log.boot, self.now, "start"))

    def ask(self, subscribe: Subscribe | None) -> None:
        if subscribe is not None:
            self.asks.append(subscribe)

    # -- the node ------------------------------------------------------------------------------------------------------

    @rule(numbers=st.sets(NUMBERS, min_size=1), tier=st.sampled_from(TIERS), flush=st.booleans())
    def store(self, numbers: set[int], tier: str, flush: bool) -> None:
        new = sorted(number for number in numbers if (tier, number) not in self.ready)
        self.log.stored([key(number) for number in new], tier)
        self.ready |= {(tier, number) for number in new}
        if flush:
            self.turn()

    @rule(numbers=st.sets(NUMBERS, min_size=1), tier=st.sampled_from(TIERS), flush=st.booleans())
    def remove(self, numbers: set[int], tier: str, flush: bool) -> None:
        gone = sorted(number for number in numbers if (tier, number) in self.ready)
        self.log.removed([key(number) for number in gone], tier)
        self.ready -= {(tier, number) for number in gone}
        if flush:
            self.turn()

    @rule(number=NUMBERS)
    def churn(self, number: int) -> None:
        """The block that a late replay would bring back."""
        self.store({number}, HOST, flush=True)
        self.remove({number}, HOST, flush=True)
        self.deliver(100)

    @rule()
    def turn(self) -> None:
        self.node.flush(LOAD, heartbeat=True)
        self.history[self.log.boot, self.log.next_seq - 1] = frozenset(self.ready)

    @rule()
    def answer(self) -> None:
        if self.asks:
            ask = self.asks.pop(0)
            ready = {tier: [key(number) for each, number in sorted(self.ready) if each == tier] for tier in TIERS}
            self.node.add(b"g", ready, LOAD, boot=ask.boot, after=ask.after)
            self.history[self.log.boot, self.log.next_seq - 1] = frozenset(self.ready)

    @rule()
    def restart(self) -> None:
        self.boot_node()

    # -- the wire ------------------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 2))
    def lose(self, at: int) -> None:
        del self.wire[at : at + 1]

    @rule()
    def lose_an_ask(self) -> None:
        del self.asks[:1]

    @rule(back=st.integers(1, 4))
    def say_again(self, back: int) -> None:
        self.wire[:0] = self.said[-back:][:1]

    @rule(at=st.integers(0, 2))
    def overtake(self, at: int) -> None:
        self.wire[:0] = [self.wire.pop(at)] if at < len(self.wire) else []

    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            message = self.wire.pop(0)
            self.said.append(message)
            if isinstance(message, EventBatch):
                self.ask(self.view.batch(message, self.now))
            else:
                self.ask(self.view.chunk(message, self.now))

    @rule(seconds=st.sampled_from([1.0, 1.0, 1.0, QUIET_S + 1, SNAPSHOT_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.ask(self.view.tick(self.now))

    # -- what must hold ------------------------------------------------------------------------------------------------

    def believed(self) -> frozenset[int]:
        slot = self.view.slot
        assert slot is not None
        return frozenset(number for number in range(BLOCKS) if self.index.holds(slot, key(number)))

    @invariant()
    def what_is_believed_was_true_at_the_batch_that_was_applied_last(self) -> None:
        if self.view.slot is not None:
            position = self.view._position
            assert self.believed() == {number for _, number in self.history[position.boot, position.applied]}

    def teardown(self) -> None:
        """With a wire that works again, the view is the node's within a few heartbeats."""
        for _ in range(6):
            self.turn()
            while self.asks or self.wire:
                self.answer()
                self.deliver(100)
            self.wait(SNAPSHOT_S + 1)
        self.turn()
        self.deliver(100)
        assert self.view.state is FeedState.LIVE
        assert self.believed() == {number for _, number in self.ready}
        super().teardown()


Link.TestCase.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_view_ends_equal_to_the_node = Link.TestCase
