"""Which model serves a namespace, and whether its cache may be used. Pure.

The last model that served goes on until the wanted one is ready on every daemon: nothing is given up for what cannot
answer yet. A namespace that does not allow lossy codecs is never moved to a model version that stores KV by one. Where
that very version serves already (it was allowed until now, and nothing exact is there to go back to) requests are
answered without the cache: exact at once, and no outage.
"""

from dataclasses import dataclass

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.generations import Models
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan_problems import PlanProblem, of_namespace

EXACT = "none"


@dataclass(frozen=True)
class Serving:
    model: str
    """Name of the ModelVersion; empty while none ever served."""
    cold: bool
    """Its cache must not be used: what it gives is not what the namespace allows."""
    problems: tuple[PlanProblem, ...]


def serving(resource: PromptCacheNamespace, active: str, models: Models, observed: Observed) -> Serving:
    """``active``: the model that served until now, or empty."""
    wanted, name = resource.spec.model_version_ref.name, resource.api_name
    active = active if active in models.states else ""
    forbidden = {
        each
        for each in (wanted, active)
        if resource.spec.privacy.lossy_codecs == "Forbidden" and _codec(each, models) != EXACT
    }
    if wanted not in models.states:
        problem = of_namespace(
            name,
            ConditionReason.MODEL_VERSION_NOT_FOUND,
            f"spec.modelVersionRef: there is no usable ModelVersion {wanted}; create it or correct the name",
        )
        return Serving(active, active in forbidden, (problem,))
    if wanted in forbidden:
        message = (
            f"spec.privacy.lossyCodecs: it forbids {_codec(wanted, models)}, by which {wanted} stores KV; set it to "
            f"Allowed, or let spec.modelVersionRef name a version with spec.kvFormat.codec {EXACT}"
        )
        if active:
            cold = active in forbidden
            message += f"; until then {active} serves on" + (", without its cache" if cold else "")
        problem = of_namespace(name, ConditionReason.LOSSY_CODEC_FORBIDDEN, message)
        return Serving(active, active in forbidden, (problem,))
    # Where the last one never had a generation nothing is given up.
    if wanted == active or not models.named(active) or models.ready_everywhere(wanted, observed):
        return Serving(wanted, cold=False, problems=())
    return Serving(active, active in forbidden, ())


def _codec(name: str, models: Models) -> str:
    return models.states[name].plan.kv_codec if name in models.states else EXACT
