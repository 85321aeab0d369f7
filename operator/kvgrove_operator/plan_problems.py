"""What keeps an object from being planned as it is declared. One object's problem is never another's."""

from dataclasses import dataclass

from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.reasons import ConditionReason


@dataclass(frozen=True)
class PlanProblem:
    object: str
    """Kind and name."""
    reason: ConditionReason
    message: str
    """For people: what is wrong, what stays in force, what helps."""


def of_model(name: str, reason: ConditionReason, message: str) -> PlanProblem:
    return PlanProblem(f"{ModelVersion.__name__} {name}", reason, message)


def of_namespace(name: str, reason: ConditionReason, message: str) -> PlanProblem:
    return PlanProblem(f"{PromptCacheNamespace.__name__} {name}", reason, message)
