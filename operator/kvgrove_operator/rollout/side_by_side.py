"""What members are told of a rollout: the generations to serve, and their share of new conversations. Pure."""

from kvgrove_crds.namespace_delivery import RolloutSpec
from kvgrove_operator.rollout.due import weight
from kvgrove_operator.rollout.facts import RolloutState
from kvgrove_operator.rollout.table import Phase
from kvgrove_protocol.control import GenerationPlan

_SERVED = frozenset({Phase.WARMING, Phase.AWAITING_APPROVAL, Phase.SHIFTING, Phase.STALLED})
"""In which the candidate is served beside the active generation, with or without traffic."""


def generation_plans(state: RolloutState, rollout: RolloutSpec) -> list[GenerationPlan]:
    """All but the active one, each once."""
    active = state.active.generation if state.active is not None else b""
    found: dict[bytes, GenerationPlan] = {}
    if state.candidate is not None and state.phase in _SERVED:
        found[state.candidate.generation] = GenerationPlan(model=state.candidate.model, weight=weight(state, rollout))
    if state.previous is not None and state.previous.generation not in found:
        found[state.previous.generation] = GenerationPlan(model=state.previous.model)
    return [plan for generation, plan in found.items() if generation and generation != active]
