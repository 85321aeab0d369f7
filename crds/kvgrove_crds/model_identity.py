"""Parts of a ModelVersion that enter the generation: pins, chat template, adapters, rotary positions, KV format."""

from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import Spec
from kvgrove_crds.cel import Rule, when
from kvgrove_crds.containers import Bounded
from kvgrove_crds.names import DataKey, Digest, DnsLabel, DnsName
from kvgrove_crds.sources import ModelSource, exactly_one


class DigestPins(Spec):
    """Digests that the nodes must find; a node that finds others serves nothing of this version."""

    weights: Digest | None = None
    """Digest of the weight files."""
    tokenizer: Digest | None = None
    """Digest of the tokenizer files."""
    chat_template: Digest | None = None
    """Digest of the chat template."""


class TemplateConfigMapRef(Spec):
    """One key of a ConfigMap in the operator's namespace."""

    name: DnsName
    """Name of the ConfigMap."""
    key: DataKey = "chat_template.jinja"
    """Key in its data."""


class ChatTemplateSource(Spec):
    """A chat template that replaces the model's own."""

    rules = (exactly_one(config_map_ref="configMapRef", inline="inline"),)

    config_map_ref: TemplateConfigMapRef | None = None
    """A key of a ConfigMap. An edit there changes the generation: pin digests.chatTemplate to be told."""
    inline: Annotated[str, Field(min_length=1, max_length=65_536)] | None = None
    """The template's text (Jinja)."""


class AdapterSpec(Spec):
    """A LoRA adapter. Its content enters the generation, its name does not."""

    name: DnsLabel
    """Name by which status and logs know it."""
    source: ModelSource
    """Where its files lie."""
    digest: Digest | None = None
    """Pinned digest of its files."""


class RopeSpec(Spec):
    """Overrides of the model's rotary position settings, named as transformers names them."""

    rules = (
        Rule(
            cel="self.type == 'default' || has(self.factor)",
            says="rope.factor is set for every type but default",
            cure="add the factor by which the context is stretched, like 4.0",
            broken=lambda r: when(r.type != "default" and r.factor is None),
        ),
    )

    type: Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3"]
    """Scaling method."""
    factor: Annotated[float, Field(ge=1, le=1024)] | None = None
    """Factor by which the context is stretched."""
    theta: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Base of the rotation frequencies."""
    original_max_position_embeddings: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Context the model was trained for."""
    attention_factor: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Scale of the attention logits (yarn, longrope)."""
    beta_fast: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Boundary of extrapolation (yarn)."""
    beta_slow: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Boundary of interpolation (yarn)."""
    short_factor: Annotated[tuple[float, ...], Bounded(512)] | None = None
    """Factors of each frequency below the trained context (longrope)."""
    long_factor: Annotated[tuple[float, ...], Bounded(512)] | None = None
    """Factors of each frequency above the trained context (longrope)."""
    low_freq_factor: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Scale of low frequencies (llama3)."""
    high_freq_factor: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Scale of high frequencies (llama3)."""


class KvFormat(Spec):
    """How KV is kept. Part of the generation."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Element type; auto is the model's own on a GPU and float32 on a CPU."""
    block_size: Literal[16, 32, 64, 128] = 32
    """Tokens in a block; only full blocks are reused."""
    codec: Literal["none", "int8", "fp8-e4m3", "int4"] = "none"
    """Lossy codec of the lower tiers; a namespace must allow it (privacy.lossyCodecs)."""
