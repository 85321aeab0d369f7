"""A namespace that is planned again and again on its way from one model version to another."""

from typing import Any

from msgspec.structs import replace as replaced
from planning_rig import INPUTS, Planning, model, namespace, only

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.observed import Beside, Observed
from kvgrove_operator.plan import Planned
from kvgrove_operator.plan_state import Proof
from kvgrove_protocol.control import DAEMON, GATEWAY, GenerationReport, ModelReport
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import GenerationInputs, generation

V2 = replaced(INPUTS, weights="sha256:w2")
BOTH = (model("m1"), model("m2"))
STEPS: dict[str, Any] = {
    "steps": [{"weight": 10, "pause": "60s"}, {"weight": 50, "pause": "60s"}, {"weight": 100}],
    "window": "10m",
}
DAEMONS = ("node-0", "node-1")


class Moving:
    """A namespace on m1 that is told to move to m2; members follow each plan when told to."""

    def __init__(self, other: GenerationInputs = V2, **spec: Any) -> None:
        self.planning, self.other = Planning(), other
        self.spec: dict[str, Any] = {"rollout": STEPS} | spec
        self.wanted = "m2"
        self.beside: dict[str, Beside] = {}
        self.warm = {"m1": 10, "m2": 10}
        self.proofs: dict[str, Proof] = {}
        self.last = self.planning(namespace(model_name="m1", **self.spec), models=BOTH, observed=self.seen())

    def seen(self) -> Observed:
        def reports(inputs: GenerationInputs) -> dict[str, ModelReport]:
            return {each: ModelReport(name="-", state="ready", inputs=inputs) for each in DAEMONS}

        return Observed(
            frozenset(DAEMONS),
            {"m1": reports(INPUTS), "m2": reports(self.other)},
            beside={"uid-a": self.beside},
            proofs=self.proofs,
        )

    def go(self, seconds: float = 0.0) -> Planned:
        self.planning.now += seconds
        self.last = self.planning(namespace(model_name=self.wanted, **self.spec), models=BOTH, observed=self.seen())
        return self.last

    @property
    def resource(self) -> PromptCacheNamespace:
        return namespace(model_name=self.wanted, **self.spec)

    def follow(self, fence: Fence | None = None) -> None:
        """All members apply the plan and report."""
        plan = only(self.last)
        names = [plan.model, *(each.model for each in plan.generations)] if plan.generations else []
        inputs = {"m1": INPUTS, "m2": self.other}
        told = [
            GenerationReport(
                generation=generation(inputs[name]), warm_ready=self.warm[name], warm_wanted=10, warm_resolved=True
            )
            for name in names
        ]
        roles = {"node-0": DAEMON, "node-1": DAEMON, "gateway-0": GATEWAY}
        self.beside = {
            member: Beside(role, f"{member}/boot", fence or plan.fence, told) for member, role in roles.items() if told
        }

    def run(self, phase: str) -> None:
        for _ in range(10):
            self.follow()
            self.go(60)
            if self.phase == phase:
                return
        raise AssertionError(f"{self.phase}, not {phase}")

    @property
    def phase(self) -> str:
        rollout = self.planning.state.namespaces["uid-a"].rollout
        assert rollout is not None
        return rollout.phase.value
