"""Random lives of a work queue, against what a reader of its documentation expects."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvgrove_operator.work_queue import Pace, WorkQueue

PACE = Pace(between=0.5, first_backoff=1.0, longest_backoff=8.0, attempts=3, keys=4)
KEYS = st.sampled_from("abcdef")


class Lives(RuleBasedStateMachine):
    @initialize(jitter=st.floats(0, 1, exclude_max=True))
    def start(self, jitter: float) -> None:
        self.queue: WorkQueue[str] = WorkQueue(jitter=lambda: jitter, pace=PACE)
        self.now = 0.0
        self.running: set[str] = set()
        self.owed: set[str] = set()
        """Asked for, and not looked at since."""
        self.ended: dict[str, float] = {}
        self.attempts: dict[str, int] = {}

    @rule(key=KEYS, delay=st.sampled_from([0.0, 0.0, 3.0]))
    def add(self, key: str, delay: float) -> None:
        refused = self.queue.refused
        self.queue.add(key, self.now, delay=delay)
        if self.queue.refused == refused:
            self.owed.add(key)

    @rule(seconds=st.sampled_from([0.1, 0.5, 2.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now)
        if key is None:
            return
        assert key not in self.running, "one worker at a time"
        assert self.now >= self.ended.get(key, -math.inf) + PACE.between, "at a limited rate"
        assert key in self.owed or self.attempts.get(key), "only what was asked for, or failed"
        self.running.add(key)
        self.owed.discard(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        key = self._one(data)
        self.queue.done(key, self.now)
        self.attempts.pop(key, None)
        assert self.queue.trouble(key) is None

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        key = self._one(data)
        trouble = self.queue.failed(key, self.now, "it did not work")
        expected = self.attempts.get(key, 0) + 1
        assert trouble.attempts == expected
        assert trouble.exhausted is (expected == PACE.attempts)
        self.attempts[key] = 0 if trouble.exhausted else expected
        if not trouble.exhausted:
            self.owed.add(key)

    @rule()
    def tidy(self) -> None:
        self.queue.forget_idle(self.now)

    @invariant()
    def nothing_that_is_owed_is_forgotten(self) -> None:
        waiting = self.owed - self.running
        due = self.queue.next_due()
        assert (due is not None) == bool(waiting)
        if due is not None:
            longest = max(PACE.longest_backoff, 3.0, PACE.between)
            assert due <= self.now + longest

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.queue) <= PACE.keys

    def _one(self, data: st.DataObject) -> str:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(key)
        self.ended[key] = self.now
        return key


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
