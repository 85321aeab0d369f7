"""ModelVersion: everything that decides what a cached block means, plus how to run it.

Identity fields (what enters the generation) are immutable: a change is a new object, so that both can live side by
side while the new one warms. Engine, placement and pool sizes may change at any time.
"""

from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import API_VERSION, Resource, Spec, Status
from kvgrove_crds.cel import Transition, frozen_field
from kvgrove_crds.conditions import Conditions
from kvgrove_crds.containers import ListMap
from kvgrove_crds.engine import EngineSpec, PoolSpec
from kvgrove_crds.model_identity import AdapterSpec, ChatTemplateSource, DigestPins, KvFormat, RopeSpec
from kvgrove_crds.names import Digest, DnsLabel, FullGeneration
from kvgrove_crds.sources import ModelSource, SecretKeyRef, TokenizerSource

_NOUN = "ModelVersion"
_PINS = {"weights": "weights", "tokenizer": "tokenizer", "chat_template": "chatTemplate"}


def _pin_lost(old: "ModelVersionSpec", new: "ModelVersionSpec") -> bool:
    before, after = old.digests or DigestPins(), new.digests or DigestPins()
    return any(getattr(before, pin) not in (None, getattr(after, pin)) for pin in _PINS)


class ModelVersionSpec(Spec):
    """Desired model version. Fields that decide what cached blocks mean are immutable."""

    transitions = (
        Transition(
            cel="self.source == oldSelf.source",
            says="spec.source is immutable, because it is part of what cached blocks mean",
            cure="create a new ModelVersion with the new value and point to that",
            broken=lambda old, new: old.source != new.source,
        ),
        Transition(
            cel="self.kvFormat == oldSelf.kvFormat",
            says="spec.kvFormat is immutable, because it is part of what cached blocks mean",
            cure="create a new ModelVersion with the new value and point to that",
            broken=lambda old, new: old.kv_format != new.kv_format,
        ),
        frozen_field("chat_template_from", "chatTemplateFrom", noun=_NOUN),
        frozen_field("tokenizer_from", "tokenizerFrom", noun=_NOUN),
        Transition(
            # The API server compares list maps without order, and so does the Python half.
            cel="(has(self.adapters) ? self.adapters : []) == (has(oldSelf.adapters) ? oldSelf.adapters : [])",
            says="spec.adapters is immutable, because it is part of what cached blocks mean",
            cure="create a new ModelVersion with the new value and point to that",
            broken=lambda old, new: {a.name: a for a in old.adapters} != {a.name: a for a in new.adapters},
        ),
        frozen_field("rope", "rope", noun=_NOUN),
        Transition(
            cel=" && ".join(
                f"(!has(oldSelf.digests) || !has(oldSelf.digests.{pin})"
                f" || (has(self.digests) && has(self.digests.{pin}) && self.digests.{pin} == oldSelf.digests.{pin}))"
                for pin in _PINS.values()
            ),
            says="a digest pin in spec.digests may be added, never changed or removed",
            cure="create a new ModelVersion with the new pin and point to that",
            broken=_pin_lost,
        ),
    )

    source: ModelSource
    """Where weights, config and tokenizer lie. Immutable."""
    credentials_secret_ref: SecretKeyRef | None = None
    """Secret in the operator's namespace with the token for the source."""
    digests: DigestPins | None = None
    """Pinned digests. A pin may be added later, never changed."""
    chat_template_from: ChatTemplateSource | None = None
    """Replaces the model's chat template. Immutable: a new template is a new ModelVersion."""
    tokenizer_from: TokenizerSource | None = None
    """Replaces the tokenizer beside the weights. Immutable."""
    adapters: Annotated[tuple[AdapterSpec, ...], ListMap(32)] = ()
    """Adapters merged into this version. Immutable."""
    rope: RopeSpec | None = None
    """Overrides of the rotary position settings. Immutable."""
    kv_format: KvFormat = KvFormat()
    """How KV is kept. Immutable."""
    engine: EngineSpec = EngineSpec()
    """The engine and where it runs."""
    pool: PoolSpec = PoolSpec()
    """Pool sizes of each node, by tier."""


class AdapterDigest(Status):
    """What the nodes found for one adapter."""

    name: DnsLabel
    """Name of the adapter in the spec."""
    digest: Digest
    """Digest of its files."""


class ResolvedDigests(Status):
    """Digests on which all nodes that loaded the model agree."""

    weights: Digest | None = None
    """Digest of the weight files."""
    tokenizer: Digest | None = None
    """Digest of the tokenizer files."""
    chat_template: Digest | None = None
    """Digest of the chat template."""
    adapters: Annotated[tuple[AdapterDigest, ...], ListMap(32)] = ()
    """Digests of the adapters."""


class NodeCounts(Status):
    """Nodes of this version by state."""

    desired: Annotated[int, Field(ge=0)] = 0
    """Nodes that match the placement."""
    loaded: Annotated[int, Field(ge=0)] = 0
    """Nodes whose engine has the weights in memory."""
    verified: Annotated[int, Field(ge=0)] = 0
    """Nodes whose digests agree."""
    ready: Annotated[int, Field(ge=0)] = 0
    """Nodes that serve this version."""
    failed: Annotated[int, Field(ge=0)] = 0
    """Nodes that reported an error."""
    unreachable: Annotated[int, Field(ge=0)] = 0
    """Nodes that have not been heard within their lease."""


class ModelVersionSummary(Status):
    """Texts for kubectl's columns."""

    generation: Annotated[str, Field(max_length=12)] = ""
    """First 12 digits of the generation."""
    nodes: Annotated[str, Field(max_length=32)] = ""
    """Ready and desired nodes, like 2/3."""


class ModelVersionStatus(Status):
    """Observed model version."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """metadata.generation that this status describes."""
    phase: Literal["Pending", "Loading", "Ready", "Degraded", "Failed", "Deleting"] = "Pending"
    """One word for where it stands; conditions say why."""
    conditions: Conditions = ()
    """Ready, Reconciling, Stalled, DigestsVerified, Supported."""
    generation: FullGeneration | None = None
    """Digest of everything that makes KV incompatible; named once digests are verified."""
    digests: ResolvedDigests | None = None
    """Digests the nodes agree on."""
    nodes: NodeCounts = NodeCounts()
    """Nodes by state."""
    kv_bytes_per_token: Annotated[int, Field(ge=0)] | None = None
    """Pool bytes that one token takes."""
    max_model_len: Annotated[int, Field(ge=0)] | None = None
    """Longest prompt plus answer in tokens."""
    used_by: Annotated[int, Field(ge=0)] = 0
    """Namespaces that point to this version."""
    summary: ModelVersionSummary = ModelVersionSummary()
    """Texts for kubectl's columns."""


class ModelVersion(Resource):
    """One exact version of a model: weights, tokenizer, chat template, adapters, KV format, and how to run it."""

    api_version: Literal["kvgrove.dev/v1alpha1"] = API_VERSION
    kind: Literal["ModelVersion"] = "ModelVersion"
    spec: ModelVersionSpec
    status: ModelVersionStatus | None = None
