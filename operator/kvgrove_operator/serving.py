"""Which generations serve a namespace, and whether its cache may be used. Pure.

The generation that was promoted last goes on until the wanted one has gone through its rollout: nothing is given up for
what cannot answer yet. A namespace that does not allow lossy codecs is never moved to a model version that stores KV by
one, and a rollout to it that is under way is taken back. Where that very version serves already (it was allowed until
now, and nothing exact is there to go back to) requests are answered without the cache: exact at once, and no outage.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvgrove_crds.namespace import PromptCacheNamespace, PromptCacheNamespaceSpec
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.generations import Models
from kvgrove_operator.observed import Beside, Observed
from kvgrove_operator.plan_problems import PlanProblem, of_namespace
from kvgrove_operator.plan_state import NamespaceState, Stage
from kvgrove_operator.rollout.due import Rules, Seen, next_due
from kvgrove_operator.rollout.facts import Measures, RolloutState, Target
from kvgrove_operator.rollout.gate import Warmth
from kvgrove_operator.rollout.machine import advance
from kvgrove_operator.rollout.side_by_side import generation_plans
from kvgrove_operator.rollout.table import Phase
from kvgrove_protocol.control import DAEMON, GATEWAY, GenerationPlan
from kvgrove_protocol.fence import Fence

EXACT = "none"


@dataclass(frozen=True)
class Serving:
    rollout: RolloutState
    beside: list[GenerationPlan]
    """Generations beside the active one."""
    retired: tuple[bytes, ...]
    """Generations that are given up: their blocks are to be erased."""
    cold: bool
    """The cache of the active one must not be used: what it gives is not what the namespace allows."""
    due: float | None
    """When time alone may change this (Unix seconds)."""
    problems: tuple[PlanProblem, ...]

    @property
    def model(self) -> str:
        """Name of the ModelVersion; empty while none ever served."""
        target = self.rollout.active or self.rollout.candidate
        return target.model if target is not None else ""


def serving(
    resource: PromptCacheNamespace,
    before: NamespaceState | None,
    models: Models,
    observed: Observed,
    *,
    uid: str,
    fence: Fence,
    now: float,
) -> Serving:
    """``fence``: what members must have in force for their reports to count; ``now``: Unix seconds."""
    wanted = resource.spec.model_version_ref.name
    state = rollout_of(before, models)
    active = state.active.model if state.active is not None else ""
    forbids = resource.spec.privacy.lossy_codecs == "Forbidden"
    may_serve, problem = _eligible(resource, active, models, forbids=forbids)
    rules = Rules(wanted if may_serve else None, resource.spec.rollout, resource.spec.warmup, resource.spec.suspend)
    beside = observed.beside.get(uid, {})
    seen = Seen(
        now=now,
        generations=models.generations,
        ready=[wanted] if wanted != active and models.ready_everywhere(wanted) else [],
        nodes=models.daemons,
        warmth=_warmth(beside, fence),
        serving={each.generation for found in beside.values() for each in found.reports},
        measures=_measures(beside),
        erasing=_erasing(before),
    )
    found = advance(state, rules, seen)
    serves = found.state.active.model if found.state.active is not None else ""
    return Serving(
        rollout=found.state,
        beside=generation_plans(found.state, resource.spec.rollout),
        retired=found.retired,
        cold=forbids and _codec(serves, models) != EXACT,
        due=next_due(found.state, rules, now),
        problems=(problem,) if problem is not None else (),
    )


def rollout_of(before: NamespaceState | None, models: Models) -> RolloutState:
    """As it is on record; of a namespace from before rollouts were, what serves was promoted."""
    if before is None:
        return RolloutState()
    state = before.rollout
    if state is None:
        if not before.model:
            return RolloutState()
        serves = Target(model=before.model, generation=models.generation_of(before.model))
        state = RolloutState(phase=Phase.PROMOTED, active=serves)
    if state.active is not None and state.active.model not in models.states:
        return RolloutState()  # nothing can serve by it any more, so nothing is given up
    return state


def warm_chains(spec: PromptCacheNamespaceSpec, found: Serving) -> int:
    """How many of the hottest chains are to be computed for the generation that comes."""
    return spec.warmup.top_k if found.rollout.candidate is not None and found.beside else 0


def _eligible(
    resource: PromptCacheNamespace, active: str, models: Models, *, forbids: bool
) -> tuple[bool, PlanProblem | None]:
    """Whether the wanted ModelVersion may serve, and why not."""
    wanted, name = resource.spec.model_version_ref.name, resource.api_name
    if wanted not in models.states:
        message = f"spec.modelVersionRef: there is no usable ModelVersion {wanted}; create it or correct the name"
        return False, of_namespace(name, ConditionReason.MODEL_VERSION_NOT_FOUND, message)
    if not forbids or _codec(wanted, models) == EXACT:
        return True, None
    message = (
        f"spec.privacy.lossyCodecs: it forbids {_codec(wanted, models)}, by which {wanted} stores KV; set it to "
        f"Allowed, or let spec.modelVersionRef name a version with spec.kvFormat.codec {EXACT}"
    )
    if active:
        cold = _codec(active, models) != EXACT
        message += f"; until then {active} serves on" + (", without its cache" if cold else "")
    return False, of_namespace(name, ConditionReason.LOSSY_CODEC_FORBIDDEN, message)


def _warmth(beside: Mapping[str, Beside], fence: Fence) -> dict[bytes, dict[str, Warmth]]:
    """Generation -> node -> its report. One of an older fence says nothing of what is to be warm now."""
    warmth: dict[bytes, dict[str, Warmth]] = {}
    for node, found in beside.items():
        if found.role == DAEMON and found.fence.covers(fence):
            for each in found.reports:
                told = Warmth(each.warm_ready, each.warm_wanted, each.warm_resolved)
                warmth.setdefault(each.generation, {})[node] = told
    return warmth


def _measures(beside: Mapping[str, Beside]) -> dict[str, dict[bytes, Measures]]:
    return {
        found.source: {
            each.generation: Measures(
                requests=each.requests,
                failed=each.failed,
                prompt_tokens=each.prompt_tokens,
                reused_tokens=each.reused_tokens,
                ttft=tuple(each.ttft),
            )
            for each in found.reports
        }
        for found in beside.values()
        if found.role == GATEWAY
    }


def _erasing(before: NamespaceState | None) -> Collection[bytes]:
    entries = before.erasures if before is not None else ()
    return {each.generation for each in entries if each.generation and each.stage is not Stage.DONE}


def _codec(name: str, models: Models) -> str:
    return models.states[name].plan.kv_codec if name in models.states else EXACT
