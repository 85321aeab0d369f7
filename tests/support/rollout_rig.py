"""A rollout by itself: what is declared and reported is set by hand, and time goes on when told."""

from dataclasses import replace
from typing import Any

import msgspec

from kvgrove_crds.namespace_delivery import RolloutSpec, WarmupSpec
from kvgrove_operator.rollout.due import Rules, Seen, weight
from kvgrove_operator.rollout.facts import Measures, RolloutState
from kvgrove_operator.rollout.gate import Warmth
from kvgrove_operator.rollout.machine import advance

NODES = ("node-0", "node-1")
WARM, COLD = Warmth(10, 10, resolved=True), Warmth(0, 10, resolved=True)


def digest_of(model: str) -> bytes:
    """What stands for the generation of a model here."""
    return model.encode().ljust(32, b"\0")


class Rollout:
    """Advances, through the stored form of its state, with each call of `go`."""

    def __init__(self, wanted: str = "v1", *, rollout: dict[str, Any] | None = None, **warmup: Any) -> None:
        self.state = RolloutState()
        self.rules = Rules(
            wanted,
            RolloutSpec.model_validate(rollout or {}),
            WarmupSpec.model_validate(warmup),
        )
        self.seen = Seen(now=1000.0)
        self.retired: list[bytes] = []
        self.load(wanted)
        self.warm(wanted)
        self.go()

    def load(self, *models: str) -> None:
        names = {**self.seen.generations, **{model: digest_of(model) for model in models}}
        nodes = {**self.seen.nodes, **dict.fromkeys(models, NODES)}
        self.seen = replace(self.seen, generations=names, ready=(*self.seen.ready, *models), nodes=nodes)

    def warm(self, model: str, *nodes: Warmth) -> None:
        found = dict(zip(NODES, nodes or (WARM, WARM), strict=True))
        self.seen = replace(self.seen, warmth={**self.seen.warmth, digest_of(model): found})

    def declare(self, wanted: str | None = None, **rules: Any) -> None:
        if wanted is not None:
            rules["wanted"] = wanted
        if "rollout" in rules:
            rules["rollout"] = RolloutSpec.model_validate(rules["rollout"])
        if "warmup" in rules:
            rules["warmup"] = WarmupSpec.model_validate(rules["warmup"])
        self.rules = replace(self.rules, **rules)

    def count(self, model: str, **counts: Any) -> None:
        found = {**self.seen.measures.get("gw/1", {}), digest_of(model): Measures(**counts)}
        self.seen = replace(self.seen, measures={"gw/1": found})

    def go(self, seconds: float = 0.0) -> str:
        """The phase after ``seconds``."""
        self.seen = replace(self.seen, now=self.seen.now + seconds)
        found = advance(self.state, self.rules, self.seen)
        self.state = msgspec.json.decode(msgspec.json.encode(found.state), type=RolloutState)
        assert self.state == found.state
        again = advance(self.state, self.rules, self.seen)
        assert (again.state, again.retired) == (self.state, ())
        self.retired += found.retired
        return self.state.phase.value

    @property
    def weight(self) -> int:
        return weight(self.state, self.rules.rollout)

    @property
    def active(self) -> str:
        return self.state.active.model if self.state.active is not None else ""
