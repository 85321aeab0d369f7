"""How a model version is run: engine, placement, limits, pool sizes.

Nothing here is part of the generation: all of it may change on a living ModelVersion.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from kvgrove_crds.base import Spec
from kvgrove_crds.cel import Rule, Violation, refuse, when
from kvgrove_crds.containers import Bounded, BoundedMap
from kvgrove_crds.quantities import Quantity

_AMOUNT = re.compile("[0-9]+([.][0-9]+)?(m|Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?", re.ASCII)
_AMOUNT_PROBLEM = Violation(
    "", "a resource amount is a whole number or a Kubernetes quantity", "write it like 2, 500m or 8Gi"
)


class AmountMetadata:
    """Amounts in a Pod's resources are Kubernetes' own (``500m``, ``2``, ``1Gi``): text or number, kept as written."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any) -> int | str:
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
            if isinstance(value, str) and len(value) <= 32 and _AMOUNT.fullmatch(value):
                return value
            raise refuse([_AMOUNT_PROBLEM])

        return core_schema.no_info_plain_validator_function(check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"x-kubernetes-int-or-string": True}


Amount = Annotated[int | str, AmountMetadata()]
Argument = Annotated[str, Field(max_length=1024)]
LabelText = Annotated[str, Field(max_length=253)]


class Resources(Spec):
    """Resources of the engine's container, as in a Pod."""

    limits: Annotated[dict[str, Amount], BoundedMap(16)] = Field(default_factory=dict)
    """Upper limits, such as nvidia.com/gpu."""
    requests: Annotated[dict[str, Amount], BoundedMap(16)] = Field(default_factory=dict)
    """What the scheduler sets aside."""


class Toleration(Spec):
    """A toleration, as in a Pod."""

    rules = (
        Rule(
            cel="!has(self.value) || self.operator == 'Equal'",
            says="a toleration with operator Exists has no value",
            cure="delete the value, or use operator Equal",
            broken=lambda t: when(t.value is not None and t.operator != "Equal"),
        ),
    )

    key: LabelText | None = None
    """Taint key; without one, every key (operator Exists only)."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How key and value are compared."""
    value: LabelText | None = None
    """Taint value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; without one, every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """How long a NoExecute taint is tolerated."""


class EngineSpec(Spec):
    """The inference engine and where it runs. ModelVersions with equal node selectors and tolerations share one
    DaemonSet; image, args and resources of the newest of them apply.
    """

    type: Literal["transformers", "vllm"] = "transformers"
    """transformers is built in and hosts several generations in one process; vllm runs behind the connector."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Container image; the operator's default for the engine type where absent."""
    args: Annotated[tuple[Argument, ...], Bounded(64)] = ()
    """Extra command-line arguments of the engine."""
    resources: Resources = Resources()
    """Container resources."""
    node_selector: Annotated[dict[str, LabelText], BoundedMap(32)] = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Bounded(16)] = ()
    """Taints that the pods bear."""
    max_batch_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Requests decoded together; more wait."""
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=65_536)] = 512
    """Tokens prefilled between two decode steps: a cancel frees the node within one chunk."""
    max_model_len: Annotated[int, Field(ge=32, le=16_777_216)] | None = None
    """Longest prompt plus answer in tokens; the model's own limit where absent."""


class PoolSpec(Spec):
    """Size of the KV pool of each node, by tier. A tier that is absent or 0 does not exist."""

    rules = (
        Rule(
            cel=(
                "[self.host, has(self.device) ? self.device : '0']"
                ".exists(q, !isQuantity(q) || quantity(q).isGreaterThan(quantity('0')))"
            ),
            says="a pool has a device or a host tier",
            cure="set pool.host or pool.device to a size above 0, like 1Gi",
            broken=lambda p: when(p.host.bytes == 0 and (p.device is None or p.device.bytes == 0)),
        ),
    )

    device: Quantity | None = None
    """GPU memory."""
    host: Quantity = Quantity("1Gi")
    """Host memory (shared memory; pinned where there is a GPU)."""
    disk: Quantity | None = None
    """Local disk, encrypted."""
