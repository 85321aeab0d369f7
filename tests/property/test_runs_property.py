"""`RunAllocator` against a set of free slots: in any order of calls, no slot is lost, doubled or handed out twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvgrove_daemon.cache.runs import Run, RunAllocator, coalesce

SLOTS = 40


class RunsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runs = RunAllocator(SLOTS)
        self.free = set(range(SLOTS))
        self.held: list[Run] = []

    def _model_runs(self) -> list[Run]:
        return coalesce(sorted(self.free))

    def _took(self, run: Run) -> None:
        assert set(run.slots()) <= self.free
        self.free -= set(run.slots())
        self.held.append(run)

    @rule(count=st.integers(1, SLOTS), spare=st.integers(0, 8))
    def allocate(self, count: int, spare: int) -> None:
        before = self._model_runs()
        taken = self.runs.allocate(count, spare=spare)
        if count > len(self.free):
            assert taken is None
            return
        assert taken is not None
        assert sum(run.length for run in taken) == count
        # The fewest fragments possible: the longest runs, until they add up.
        longest, fewest = sorted((run.length for run in before), reverse=True), 0
        while sum(longest[:fewest]) < count:
            fewest += 1
        assert len(taken) == fewest
        if any(run.length >= count + spare for run in before):
            end = taken[0].stop
            assert len(taken) == 1
            assert set(range(end, end + spare)) <= self.free
        elif fewest == 1:  # the tightest fit
            home = next(run for run in before if run.start == taken[0].start)
            assert home.length == min(run.length for run in before if run.length >= count)
        for run in taken:
            self._took(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 6))
    def extend(self, data: st.DataObject, count: int) -> None:
        last = data.draw(st.sampled_from(self.held))
        added = self.runs.extend(last, count)
        possible = set(range(last.stop, last.stop + count)) <= self.free
        assert (added is not None) == possible
        if added is not None:
            assert added == Run(last.stop, count)
            self._took(added)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free_some_of_a_run(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.held))
        given = data.draw(st.lists(st.sampled_from(run.slots()), unique=True, min_size=1))
        self.runs.free(given)
        self.free |= set(given)
        self.held.remove(run)
        self.held += coalesce(sorted(set(run.slots()) - set(given)))

    @rule(slot=st.integers(-2, SLOTS + 1))
    def refuses_what_is_not_held(self, slot: int) -> None:
        if slot in self.free or not 0 <= slot < SLOTS:
            try:
                self.runs.free([*self.held[0].slots(), slot] if self.held else [slot])
            except ValueError:
                return
            raise AssertionError("a slot that was not held was taken back")

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert list(self.runs.free_runs()) == self._model_runs()
        assert self.runs.free_count == len(self.free)
        assert self.runs.free_count + self.runs.used_count == SLOTS
        assert self.runs.largest_run == max((run.length for run in self._model_runs()), default=0)


TestRuns = RunsMachine.TestCase
TestRuns.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
