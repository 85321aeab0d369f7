"""Planning with what is remembered of the last time gives what planning without it gives, whatever happens between."""

import dataclasses
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from planning_rig import INPUTS, CountingMint, document, model, namespace, ready

from kvgrove_operator.observed import Beside, Observed
from kvgrove_operator.plan import Desired, Planned, PlanState, plan
from kvgrove_operator.plan_memo import PlanMemo
from kvgrove_protocol.control import DAEMON, GenerationReport
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import generation

NAMES = st.sampled_from("abc")
MODELS = ("m1", "m2")
SPECS: tuple[dict[str, Any], ...] = (
    {"purge": {"epoch": 1}},
    {"purge": {"epoch": 2}},
    {"access": {"tenants": ["acme"]}},
    {"documents": [document()]},
    {"documents": [document(text="another", version="v2")]},
    {"documents": [document(text="later", version="v3", update="WarmFirst")]},
    {"documents": [document(text=None)]},
    {"aliases": ["shared"]},
    {"suspend": True},
    {"privacy": {"erasures": [{"name": "e1", "tenant": "acme"}]}},
    {"rollout": {"steps": [{"weight": 50, "pause": "10s"}, {"weight": 100}]}},
    {},
)


class Side:
    """One planner: its own state, its own randomness."""

    def __init__(self, memo: PlanMemo | None) -> None:
        self.memo, self.mint, self.state = memo, CountingMint(), PlanState()
        self.last: Planned | None = None

    def plan(self, desired: Desired, observed: Observed, now: float) -> Planned:
        kept = self.last.bodies if self.last is not None else {}
        self.last = plan(desired, self.state, observed, mint=self.mint, now=now, kept=kept, memo=self.memo)
        self.state = self.last.state
        return self.last


class Lives(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.memo = PlanMemo()
        self.sides = Side(None), Side(self.memo)
        self.specs: dict[str, tuple[str, dict[str, Any]]] = {"a": ("m1", {}), "b": ("m1", {})}
        self.resources = {name: namespace(name) for name in self.specs}
        self.observed, self.now = ready("m1"), 1000.0
        self._plan()

    @rule(name=NAMES, model_name=st.sampled_from(MODELS), spec=st.sampled_from(SPECS))
    def declare(self, name: str, model_name: str, spec: dict[str, Any]) -> None:
        self.resources[name] = namespace(name, model_name=model_name, **spec)
        self._plan()

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.resources.pop(name, None)
        self._plan()

    @rule(names=st.sets(st.sampled_from(MODELS)), daemons=st.sampled_from([("node-0",), ("node-0", "node-1")]))
    def models_are_reported(self, names: set[str], daemons: tuple[str, ...]) -> None:
        inputs = dataclasses.replace(self.observed, models=ready(*names, daemons=daemons).models)
        self.observed = dataclasses.replace(inputs, daemons=frozenset(daemons))
        self._plan()

    @rule(placement=st.sampled_from(["", "large", "small"]))
    def a_node_is_of_a_placement(self, placement: str) -> None:
        self.observed = dataclasses.replace(self.observed, placements={"node-0": placement})
        self._plan()

    @rule(name=NAMES, counter=st.integers(1, 5))
    def a_member_has_seen_more(self, name: str, counter: int) -> None:
        seen = {**self.observed.fences_seen, f"uid-{name}": Fence(counter, counter, counter)}
        self.observed = dataclasses.replace(self.observed, fences_seen=seen)
        self._plan()

    @rule(name=NAMES, ratio=st.sampled_from([0, 1]))
    def generations_are_reported(self, name: str, ratio: int) -> None:
        report = GenerationReport(generation=generation(INPUTS), warm_ready=ratio, warm_wanted=1, warm_resolved=True)
        beside = {"node-0": Beside(DAEMON, "node-0/a", Fence(9, 9, 9), [report])}
        self.observed = dataclasses.replace(self.observed, beside={f"uid-{name}": beside})
        self._plan()

    @rule(seconds=st.sampled_from([1.0, 20.0, 7200.0, 100_000.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self._plan()

    def _plan(self) -> None:
        models = model("m1"), model("m2", placement="large")
        desired = Desired(models, tuple(self.resources.values()))
        plain, remembering = (side.plan(desired, self.observed, self.now) for side in self.sides)
        assert remembering == plain

    @invariant()
    def what_did_not_change_is_the_same_object(self) -> None:
        self._plan()
        before = self.sides[1].state.namespaces
        self._plan()
        after = self.sides[1].state.namespaces
        assert all(after[uid] is before[uid] for uid in self.memo.remembered)


TestPlanMemo = Lives.TestCase
TestPlanMemo.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
