"""Rollouts of whatever is declared, reported and forgotten in whatever order: what must hold always."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rollout_rig import COLD, WARM, Rollout, digest_of

from kvgrove_operator.rollout.gate import Warmth
from kvgrove_operator.rollout.side_by_side import generation_plans
from kvgrove_operator.rollout.table import ENDS, Phase

MODELS = st.sampled_from(["v1", "v2", "v3"])
SPEC = {
    "steps": [{"weight": 10, "pause": "60s"}, {"weight": 100, "pause": "60s"}],
    "window": "5m",
    "analysis": {"interval": "20s", "minimumRequests": 10, "maximumErrorRatio": 0.1, "inconclusiveLimit": 3},
}


class RolloutLives(RuleBasedStateMachine):
    """Nodes and gateways follow the plan some time after it is made, and requests fail now and then."""

    @initialize()
    def begin(self) -> None:
        self.rollout = Rollout(rollout=SPEC, deadline="5m")
        self.asked = self.failed = 0
        self.warmed: set[bytes] = {digest_of("v1")}

    @rule(model=MODELS)
    def declare(self, model: str) -> None:
        self.rollout.declare(model)
        self.rollout.go()

    @rule(suspended=st.booleans())
    def suspend(self, suspended: bool) -> None:
        self.rollout.declare(suspended=suspended)
        self.rollout.go()

    @rule(model=MODELS)
    def load(self, model: str) -> None:
        self.rollout.load(model)
        self.rollout.go()

    @rule(model=MODELS, node=st.sampled_from([WARM, COLD, Warmth(10, 10, resolved=False)]))
    def warm(self, model: str, node: Warmth) -> None:
        self.rollout.warm(model, WARM, node)
        if node is WARM:
            self.warmed.add(digest_of(model))
        self.rollout.go()

    @rule()
    def members_follow(self) -> None:
        state = self.rollout.state
        told = generation_plans(state, self.rollout.rules.rollout)
        active = [state.active.generation] if state.active is not None else []
        self.rollout.seen = replace(self.rollout.seen, serving={*active, *(digest_of(each.model) for each in told)})
        self.rollout.go()

    @rule(requests=st.integers(0, 40), failing=st.booleans())
    def answer(self, requests: int, failing: bool) -> None:
        if self.rollout.weight:
            self.asked += requests
            self.failed += requests if failing else 0
            for model in ("v1", "v2", "v3"):
                self.rollout.count(model, requests=self.asked, failed=self.failed)

    @rule(seconds=st.sampled_from([1.0, 20.0, 60.0, 300.0]))
    def wait(self, seconds: float) -> None:
        self.rollout.go(seconds)

    @invariant()
    def somebody_serves(self) -> None:
        assert self.rollout.state.active is not None
        assert self.rollout.state.active.generation

    @invariant()
    def traffic_goes_only_to_what_was_warm(self) -> None:
        told = generation_plans(self.rollout.state, self.rollout.rules.rollout)
        assert all(digest_of(each.model) in self.warmed for each in told if each.weight)
        assert sum(each.weight for each in told) <= 100

    @invariant()
    def nothing_is_served_twice_or_after_it_was_given_up(self) -> None:
        state = self.rollout.state
        told = [digest_of(each.model) for each in generation_plans(state, self.rollout.rules.rollout)]
        assert state.active is not None
        assert len({state.active.generation, *told}) == len(told) + 1

    @invariant()
    def an_end_has_no_candidate(self) -> None:
        state = self.rollout.state
        assert (state.candidate is None) == (state.phase in ENDS)

    def teardown(self) -> None:
        """Given time, members that follow and requests that succeed, the end is what is declared."""
        rollout, state = self.rollout, self.rollout.state
        wanted = rollout.rules.wanted
        assert wanted is not None
        rollout.declare(suspended=False, rollout={"steps": [{"weight": 50}, {"weight": 100}], "window": "5m"})
        rollout.load("v1", "v2", "v3")
        for model in ("v1", "v2", "v3"):
            rollout.warm(model)
        for _ in range(8):
            self.members_follow()
        assert rollout.go(300) in (Phase.PROMOTED, Phase.ROLLED_BACK)
        assert (rollout.active, state is not rollout.state) == (wanted, True)


TestRolloutLives = RolloutLives.TestCase
TestRolloutLives.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
