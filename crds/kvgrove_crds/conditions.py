"""The condition type that all three kinds carry, and which types each kind has.

Every condition is present from the first write, carries ``observedGeneration`` and changes ``lastTransitionTime`` only
when its status changes (so that `kubectl wait` and alerts can measure ages).
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import Status
from kvgrove_crds.containers import ListMap
from kvgrove_crds.reasons import OpenReason


class ConditionType(StrEnum):
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    DIGESTS_VERIFIED = "DigestsVerified"
    SUPPORTED = "Supported"
    WARM = "Warm"
    PROMOTED = "Promoted"
    INVALIDATION_COMPLETE = "InvalidationComplete"
    ERASURE_VERIFIED = "ErasureVerified"
    QUOTA_OK = "QuotaOK"


MODEL_VERSION_CONDITIONS = (
    ConditionType.READY,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
    ConditionType.DIGESTS_VERIFIED,
    ConditionType.SUPPORTED,
)
NAMESPACE_CONDITIONS = (
    ConditionType.READY,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
    ConditionType.WARM,
    ConditionType.PROMOTED,
    ConditionType.INVALIDATION_COMPLETE,
    ConditionType.ERASURE_VERIFIED,
    ConditionType.QUOTA_OK,
)
CACHE_NODE_CONDITIONS = (ConditionType.READY,)


class Condition(Status):
    """One aspect of the object's state, in the standard Kubernetes shape."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """What is judged."""
    status: Literal["True", "False", "Unknown"]
    """The verdict."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """metadata.generation that the verdict is about."""
    last_transition_time: datetime
    """When the status last changed."""
    reason: OpenReason
    """Why, from the closed list."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """For people: what happened and what helps."""


Conditions = Annotated[tuple[Condition, ...], ListMap(16, key="type")]
