"""Whatever is lost between an engine and us: never more is believed than was true, and in the end what is true."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvgrove_gateway.kv_events.engine import EngineResidency
from kvgrove_gateway.kv_events.source import (
    AskListing,
    AskReplay,
    Connected,
    Disconnected,
    End,
    Input,
    Listed,
    Live,
    Overdue,
    Quiet,
    Replayed,
    SourceState,
)
from kvgrove_gateway.kv_events.translate import Translator
from kvgrove_gateway.kv_events.wire import AllBlocksCleared, Batch, BlockRemoved, BlockStored, Event
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.chain import block_keys

BLOCK, BLOCKS = 4, 5
ROOT = b"r" * 32
KEYS = [block_keys(ROOT, number.to_bytes(4, "little") * BLOCK, block_size=BLOCK)[0] for number in range(BLOCKS)]
NUMBERS = st.integers(0, BLOCKS - 1)


def told(number: int) -> BlockStored:
    return BlockStored([number], None, [number] * BLOCK, BLOCK, medium="GPU")


class Engine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = BlockIndex(1000)
        self.view = EngineResidency(
            self.index, Metrics(), lambda: Translator(lambda _l, _s: ROOT, block_size=BLOCK, capacity=100)
        )
        self.known_states: list[frozenset[int]] = []
        self.lists = True
        self.process()

    def process(self) -> None:
        """A new engine process: memory and history are gone, numbers begin anew."""
        self.resident: set[int] = set()
        self.next = 0
        self.history: deque[tuple[int, Batch]] = deque(maxlen=4)
        self.live: deque[Live] = deque()
        self.answer: deque[Input] = deque()
        self.known_states = [frozenset()]
        self.take(Disconnected())
        self.take(Connected())

    def take(self, input_: Input) -> None:
        ask = self.view.take(input_)
        if isinstance(ask, AskReplay):
            self.answer = deque(Replayed(n, batch) for n, batch in self.history if n >= ask.start)
            self.answer.append(End())
        elif isinstance(ask, AskListing):
            everything: list[Event] = [AllBlocksCleared(), *(told(number) for number in sorted(self.resident))]
            self.answer = deque([End()])
            if self.lists and self.next:
                self.answer.appendleft(Listed(self.next - 1, Batch(everything, 0, 0)))

    @initialize(lists=st.booleans())
    def kind(self, lists: bool) -> None:
        self.lists = lists

    def say(self, *events: Event) -> None:
        batch = Batch(events, 0, 0)
        self.history.append((self.next, batch))
        self.live.append(Live(self.next, batch))
        self.next += 1
        self.known_states.append(frozenset(self.resident))

    @rule(number=NUMBERS)
    def store(self, number: int) -> None:
        if number not in self.resident:
            self.resident.add(number)
            self.say(told(number))

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        if number in self.resident:
            self.resident.remove(number)
            self.say(BlockRemoved([number], "GPU"))

    @rule(number=NUMBERS)
    def churn(self, number: int) -> None:
        """What a late replay would bring back."""
        self.store(number)
        self.remove(number)

    @rule(number=NUMBERS)
    def late_replay(self, number: int) -> None:
        """The answer to a probe arrives after the live batches that it repeats."""
        self.churn(number)
        self.quiet()
        self.deliver(1000)
        self.hear(1)

    @rule()
    def clear(self) -> None:
        self.resident.clear()
        self.say(AllBlocksCleared())

    @rule()
    def restart(self) -> None:
        self.process()

    @rule()
    def restart_unseen(self) -> None:
        """The transport's word comes late: the number alone tells."""
        before, self.resident = self.next, set()
        self.next, self.history = 0, deque(maxlen=4)
        self.live.clear()
        self.answer.clear()
        self.known_states = [frozenset()]
        if before == 0 or self.view.position.seen < 0:
            self.process()
        else:
            self.clear()
            self.deliver(1)

    @rule(count=st.integers(1, 3))
    def lose(self, count: int) -> None:
        for _ in range(min(count, len(self.live))):
            self.live.popleft()

    @rule()
    def lose_an_answer(self) -> None:
        if self.answer:
            self.answer.clear()
            self.take(Overdue())

    @rule()
    def lose_part_of_an_answer(self) -> None:
        if len(self.answer) > 1:
            del self.answer[len(self.answer) // 2 - 1]

    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.live))):
            self.take(self.live.popleft())

    @rule(count=st.integers(1, 6))
    def hear(self, count: int) -> None:
        for _ in range(count):
            if self.answer:
                self.take(self.answer.popleft())

    @rule()
    def quiet(self) -> None:
        if not self.answer:
            self.take(Quiet())

    def believed(self) -> frozenset[int]:
        slot = self.view.slot
        assert slot is not None
        return frozenset(number for number in range(BLOCKS) if self.index.holds(slot, KEYS[number]))

    @invariant()
    def no_more_is_believed_than_was_true_after_the_batch_that_was_applied_last(self) -> None:
        if self.view.slot is not None:
            at = self.view.position.applied + 1
            assert self.believed() <= self.known_states[at]
            if self.view.position.complete:
                assert self.believed() == self.known_states[at]

    def teardown(self) -> None:
        for _ in range(12):
            self.deliver(1000)
            self.hear(1000)
            self.quiet()
            self.hear(1000)
        assert self.view.position.state is SourceState.LIVE
        assert self.view.position.applied == self.next - 1
        assert self.believed() <= self.resident
        if self.view.position.complete:
            assert self.believed() == self.resident
        super().teardown()


Engine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_a_foreign_engine_is_never_believed_to_hold_more_than_it_does = Engine.TestCase
