"""Which models this engine serves exactly, and what their KV looks like.

Role: a closed table of model types that are proven by logits equal to a cold run of the plain model
(``tests/unit/kvgrove_daemon/test_exactness_*.py``), and the checks that refuse everything whose attention is not plain
causal softmax over per-token K and V. Invariant: when in doubt, refuse by name.
Must not know: weights, memory, requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kvgrove_daemon.cache.layout import KVLayout, as_dtype
from kvgrove_daemon.engine.errors import UnsupportedModel

SUPPORTED: Final = ("gpt_neox", "llama", "mistral", "phi", "phi3", "qwen2", "qwen3")
"""``model_type`` of every proven family. Extending it starts with the family's line in the exactness tests."""

_LENGTH_DEPENDENT_ROPE: Final = ("dynamic", "longrope")
"""These rotate a token by frequencies that depend on how long the whole sequence is: its KV is then not a function of
the tokens before it, and reusing it would change answers."""

ScalarSettings = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the cache has to know of a model."""

    model_type: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    """Tokens of prompt and answer together. A sliding window bounds it: up to the window, attention is full."""
    rope: ScalarSettings
    """RoPE and position settings, flat, for the generation."""
    attention: ScalarSettings
    """What else changes K, V or who sees them, flat, for the generation."""

    def layout(self, dtype: str, block_size: int) -> KVLayout:
        return KVLayout(self.num_layers, self.num_kv_heads, self.head_dim, as_dtype(dtype), block_size)


def require_supported(model_type: object) -> str:
    """``model_type`` itself, or `UnsupportedModel` naming the supported ones."""
    if model_type not in SUPPORTED:
        raise UnsupportedModel(
            f"model type {model_type!r} is not supported: choose a model of type {', '.join(SUPPORTED)}",
            field="model_type",
        )
    return str(model_type)


def shape_of(config: Any) -> ModelShape:
    """The shape of the model that a transformers ``config`` describes. Raises `UnsupportedModel`, naming why."""
    kind = require_supported(getattr(config, "model_type", None))
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModel(
            "quantized weights are not supported: use the plain safetensors", field="quantization_config"
        )
    if not getattr(config, "is_causal", True):
        raise UnsupportedModel("attention in both directions has no reusable prefix", field="is_causal")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if odd := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise UnsupportedModel(f"layers of type {', '.join(odd)} hold no per-token KV", field="layer_types")
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if rope.get("rope_type", "default") in _LENGTH_DEPENDENT_ROPE:
        raise UnsupportedModel(
            f"RoPE of type {rope['rope_type']!r} makes KV depend on the sequence's length", field="rope_parameters"
        )
    heads = int(config.num_attention_heads)
    window = getattr(config, "sliding_window", None)
    max_context = int(config.max_position_embeddings)
    return ModelShape(
        model_type=kind,
        num_layers=int(config.num_hidden_layers),
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocab_size=int(config.vocab_size),
        max_context=min(max_context, int(window)) if window else max_context,
        rope=_flat(rope) | {"max_position_embeddings": max_context},
        attention={
            "model_type": kind,
            "heads": heads,
            "sliding_window": int(window) if window else None,
            "layer_types": ",".join(getattr(config, "layer_types", None) or []),
        },
    )


def _flat(settings: dict[str, Any], prefix: str = "") -> ScalarSettings:
    flat: ScalarSettings = {}
    for name, value in sorted(settings.items()):
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            flat[prefix + name] = value
        else:
            flat[prefix + name] = repr(value)
    return flat
