"""A planner that dies between any two effects of a rollout: the end state is always the declared one (OPS-14).

The effects are the durable state and the plan that goes to the members. The whole story is run once to number them, and
then once for each number, with the planner dying right before that one and another going on from what is durable.
"""

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace as replaced
from planning_rig import INPUTS, CountingMint, document, model, namespace

from kvgrove_operator.observed import Beside, Observed
from kvgrove_operator.plan import Desired, Planned, plan
from kvgrove_operator.plan_state import PlanState, Proof
from kvgrove_protocol.control import DAEMON, GATEWAY, GenerationReport, ModelReport, NamespacePlan
from kvgrove_protocol.identity import generation

V2 = replaced(INPUTS, weights="sha256:w2")
GENERATION = {"m1": generation(INPUTS), "m2": generation(V2)}
SPEC: dict[str, Any] = {
    "rollout": {"steps": [{"weight": 10, "pause": "5s"}, {"weight": 50, "pause": "5s"}], "window": "20s"},
    "documents": [document()],
}
WITHDRAWN = SPEC | {"documents": []}
MOST_EFFECTS = 80


@cache
def _desired(wanted: str, *, withdrawn: bool) -> Desired:
    spec = WITHDRAWN if withdrawn else SPEC
    return Desired((model("m1"), model("m2")), (namespace(model_name=wanted, **spec),))


class Died(Exception):
    """The planner did."""


class Story:
    """Members that follow whatever plan reached them, and a planner that dies before effect ``dies_at``."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.dies_at, self.effects, self.now = dies_at, 0, 1000.0
        self.durable, self.mint = PlanState(), CountingMint()
        self.told: NamespacePlan | None = None
        self.last: Planned | None = None
        self.kept: dict[bytes, bytes] = {}
        self.served: list[set[bytes]] = []

    def effect(self) -> None:
        self.effects += 1
        if self.effects == self.dies_at:
            raise Died

    def observed(self) -> Observed:
        models = {
            name: {each: ModelReport(name=name, state="ready", inputs=inputs) for each in ("node-0", "node-1")}
            for name, inputs in (("m1", INPUTS), ("m2", V2))
        }
        beside, proofs = {}, {}
        if self.told is not None:
            names = [self.told.model, *(each.model for each in self.told.generations)]
            reports = [
                GenerationReport(generation=GENERATION[name], warm_ready=5, warm_wanted=5, warm_resolved=True)
                for name in (names if self.told.generations else [])
            ]
            roles = {"node-0": DAEMON, "node-1": DAEMON, "gateway-0": GATEWAY}
            beside = {each: Beside(role, each, self.told.fence, reports) for each, role in roles.items() if reports}
            proofs = {each.id: Proof(confirmed=3) for each in self.told.erasures}
        return Observed(frozenset({"node-0", "node-1"}), models, beside={"uid-a": beside}, proofs=proofs)

    def turn(self, wanted: str, spec: dict[str, Any]) -> None:
        """One planning, as the operator and the supervisor do it: durable first, then told."""
        planned = plan(
            _desired(wanted, withdrawn=spec is WITHDRAWN),
            self.durable,
            self.observed(),
            mint=self.mint,
            now=self.now,
            kept=self.kept,
        )
        if planned.state != self.durable:
            self.effect()
            self.durable = planned.state
        if self.last is None or not planned.same_plan(self.last):
            self.effect()
            (self.told,) = planned.namespaces
            self.served.append({GENERATION[self.told.model], *(GENERATION[g.model] for g in self.told.generations)})
        self.last, self.kept = planned, dict(planned.bodies)

    def commit(self, wanted: str, spec: dict[str, Any], seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            try:
                self.turn(wanted, spec)
            except Died:
                self.last, self.kept = None, {}
            self.now += 1

    def run(self) -> "Story":
        self.commit("m1", SPEC, 3)
        self.commit("m2", SPEC, 9)
        self.commit("m1", SPEC, 5)  # in mid-shift
        self.commit("m2", SPEC, 7)
        self.commit("m2", WITHDRAWN, 50)  # in mid-rollout
        return self


def test_the_story_has_effects_enough() -> None:
    whole = Story().run()
    assert 20 < whole.effects < MOST_EFFECTS
    assert {GENERATION["m1"], GENERATION["m2"]} in whole.served


@pytest.mark.parametrize("dies_at", range(1, MOST_EFFECTS))
def test_ops_14_wherever_the_planner_dies_the_end_is_what_is_declared(dies_at: int) -> None:
    story = Story(dies_at).run()
    assert story.told is not None
    told, held = story.told, story.durable.namespaces["uid-a"]
    assert (told.model, told.generations, told.documents, told.erasures) == ("m2", [], [], [])
    assert held.rollout is not None
    assert (held.rollout.phase, held.rollout.candidate, held.rollout.previous) == ("Promoted", None, None)
    assert [each.proof for each in held.erasures] == [Proof(confirmed=3), Proof(confirmed=3)]
    assert held.former_secret == b""
    assert all(len(served) <= 2 for served in story.served)
