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


def model_object(name: str) -> str:
    """`PlanProblem.object` of a ModelVersion."""
    return f"{ModelVersion.__name__} {name}"


def namespace_object(name: str) -> str:
    """`PlanProblem.object` of a namespace, by its API name."""
    return f"{PromptCacheNamespace.__name__} {name}"


def of_model(name: str, reason: ConditionReason, message: str) -> PlanProblem:
    return PlanProblem(model_object(name), reason, message)


def of_namespace(name: str, reason: ConditionReason, message: str) -> PlanProblem:
    return PlanProblem(namespace_object(name), reason, message)
