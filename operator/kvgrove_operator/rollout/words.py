"""A rollout in words, for statuses: the verdict on ``Promoted``, its reason and what to know beside it. Pure."""

from typing import NamedTuple

from kvgrove_crds.namespace_delivery import RolloutSpec
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.rollout.due import current_step, weight
from kvgrove_operator.rollout.facts import RolloutState, Target
from kvgrove_operator.rollout.table import Phase
from kvgrove_protocol.identity import short

_REASONS = {reason.value: reason for reason in Reason}


class Said(NamedTuple):
    promoted: bool
    """Whether what is declared takes all new conversations."""
    stuck: bool
    """Whether nothing goes on before somebody changes something."""
    reason: Reason
    message: str


def said(state: RolloutState, rollout: RolloutSpec, wanted: str) -> Said:
    """``wanted``: the ModelVersion that is declared."""
    active, candidate = _name(state.active), _name(state.candidate)
    met = state.active is not None and state.active.model == wanted
    match state.phase:
        case Phase.PROMOTED:
            return Said(met, stuck=False, reason=Reason.PROMOTED if met else Reason.LOADING, message="")
        case Phase.ROLLED_BACK if met:
            return Said(True, stuck=False, reason=Reason.ROLLED_BACK, message=f"{active} takes everything again")
        case Phase.ROLLED_BACK:
            message = (
                f"{active} takes everything again; {wanted} is tried again when spec.rollout or spec.warmup changes, "
                "or when another version is named and then this one again"
            )
            return Said(False, stuck=True, reason=_reason(state, Reason.ROLLED_BACK), message=message)
        case Phase.ROLLING_BACK:
            message = f"{candidate} takes nothing any more, some members have not said so yet"
            return Said(False, stuck=False, reason=Reason.ROLLING_BACK, message=message)
        case Phase.STALLED:
            message = f"{active} serves on, {candidate} {_share(state, rollout)}; raise the limit or go back"
            return Said(False, stuck=True, reason=_reason(state, Reason.DEADLINE_EXCEEDED), message=message)
        case Phase.SHIFTING:
            step = rollout.steps.index(current_step(state, rollout)) + 1
            message = f"{candidate} {_share(state, rollout)}, step {step} of {len(rollout.steps)}"
            return Said(False, stuck=False, reason=Reason.SHIFTING, message=message)
        case Phase.AWAITING_APPROVAL:
            generation = state.candidate.generation if state.candidate is not None else b""
            message = f"set spec.rollout.approvedGeneration to {short(generation)} to let {candidate} take traffic"
            return Said(False, stuck=False, reason=Reason.AWAITING_APPROVAL, message=message)
        case Phase.WARMING:
            message = f"{active} answers until {candidate} is warm on every node"
            return Said(False, stuck=False, reason=Reason.WARMING, message=message)
        case _ if state.active is None:
            message = f"waiting for ModelVersion {wanted}"
            return Said(False, stuck=False, reason=Reason.LOADING, message=message)
        case _:
            message = f"{active} answers until {candidate} is ready on every node"
            return Said(False, stuck=False, reason=Reason.LOADING, message=message)


def _share(state: RolloutState, rollout: RolloutSpec) -> str:
    return f"takes {weight(state, rollout)} % of new conversations"


def _reason(state: RolloutState, otherwise: Reason) -> Reason:
    return _REASONS.get(state.reason, otherwise)


def _name(target: Target | None) -> str:
    return target.model if target is not None else "nothing"
