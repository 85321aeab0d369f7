"""How a new generation or document reaches traffic: warm-up, rollout steps, analysis, approval."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import Spec
from kvgrove_crds.cel import Rule
from kvgrove_crds.containers import Bounded, ListSet
from kvgrove_crds.durations import Between, Duration
from kvgrove_crds.names import DnsLabel, GenerationPrefix
from kvgrove_crds.namespace_content import MAX_PREFIXES

Ratio = Annotated[float, Field(ge=0, le=1)]


class WarmupSpec(Spec):
    """What is computed before traffic needs it."""

    prefixes: Annotated[tuple[DnsLabel, ...], ListSet(MAX_PREFIXES)] | None = None
    """Names of prefixes to warm. Absent: all. Empty: none."""
    top_k: Annotated[int, Field(ge=0, le=10_000)] = 64
    """Hottest chains of the last generation to warm too, where tokenizer and template are equal."""
    minimum_ratio: Ratio = 0.95
    """Share of wanted blocks that must be ready on each node (0 to 1)."""
    deadline: Annotated[Duration, Between("1s", "24h")] = Duration("15m")
    """Time after which warm-up gives up and the rollout stalls."""
    parallelism: Annotated[int, Field(ge=1, le=64)] = 2
    """Warm-up prefills at a time on one node; live traffic goes first."""


class RolloutStep(Spec):
    """One step of the shift."""

    weight: Annotated[int, Field(ge=1, le=100)]
    """Percent of new conversations that get the new generation."""
    pause: Annotated[Duration, Between("0s", "168h")] = Duration("0s")
    """Time to stay on this step, with analysis running."""


class AnalysisSpec(Spec):
    """Limits that measured values of the new generation must keep during the shift. Absent limits are not judged."""

    interval: Annotated[Duration, Between("1s", "1h")] = Duration("30s")
    """Time between two measurements."""
    minimum_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Fewer requests than this in an interval are inconclusive."""
    maximum_error_ratio: Ratio | None = None
    """Highest share of failed requests (0 to 1)."""
    minimum_hit_ratio: Ratio | None = None
    """Lowest token-weighted hit ratio (0 to 1)."""
    maximum_ttft_factor: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Highest time to first token (median), as a multiple of the old generation's."""
    failure_limit: Annotated[int, Field(ge=0, le=1000)] = 0
    """Failed measurements borne before the rollout fails."""
    inconclusive_limit: Annotated[int, Field(ge=0, le=1000)] = 10
    """Inconclusive measurements in a row borne before the rollout stalls."""
    not_measured_limit: Annotated[int, Field(ge=0, le=1000)] = 10
    """Measurements in a row that could not be taken, borne before the rollout stalls."""


def _not_ascending(steps: Sequence[RolloutStep]) -> Iterator[str]:
    for i, (before, after) in enumerate(itertools.pairwise(steps), start=1):
        if after.weight <= before.weight:
            yield f".steps[{i}].weight"


class RolloutSpec(Spec):
    """How traffic shifts to a new generation. After the last step it is promoted."""

    rules = (
        Rule(
            cel=(
                "self.steps.map(s, s.weight).isSorted()"
                " && self.steps.all(s, self.steps.exists_one(t, t.weight == s.weight))"
            ),
            says="weights of rollout.steps ascend",
            cure="sort the steps by weight and give each weight once",
            broken=lambda rollout: _not_ascending(rollout.steps),
        ),
    )

    steps: Annotated[tuple[RolloutStep, ...], Bounded(16, min_items=1)] = (
        RolloutStep(weight=10, pause=Duration("5m")),
        RolloutStep(weight=50, pause=Duration("5m")),
        RolloutStep(weight=100),
    )
    """Steps of the shift, by ascending weight."""
    analysis: AnalysisSpec | None = None
    """Limits for measured values. Absent: warmth alone is the gate."""
    approval: Literal["Automatic", "Manual"] = "Automatic"
    """Manual: traffic shifts only once approvedGeneration names the new generation."""
    approved_generation: GenerationPrefix | None = None
    """The generation (or its first 12 or more digits) that may take traffic."""
    auto_rollback: bool = True
    """Go back to the last promoted generation when analysis fails; else stall and wait."""
    window: Annotated[Duration, Between("0s", "720h")] = Duration("1h")
    """After promotion, how long the old generation stays warm for a rollback and for conversations that it holds."""
