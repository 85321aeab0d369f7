"""A model's config -> its shape, or why its state is not a KV per token that could be reckoned so.

The shape comes from the daemon's own table, so an estimate is of what a node would allocate and of nothing it would
refuse. Two kinds of model are told apart by name first, since there the usual formula would give a wrong figure:
latent attention, and layers with a recurrent state. Only the config is read: no weights, and nothing is fetched.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from kvgrove_cli.errors import UsageProblem
from kvgrove_daemon.engine.errors import UnsupportedModel
from kvgrove_daemon.engine.families import ModelShape, require_supported, shape_of

MAX_BYTES: Final = 4 << 20
_LATENT: Final = ("kv_lora_rank",)
_RECURRENT: Final = (
    "attn_layer_period",
    "d_state",
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_num_key_heads",
    "mamba_d_state",
    "ssm_cfg",
    "state_size",
    "time_step_rank",
)
_RECURRENT_TYPES: Final = ("mamba", "rwkv", "recurrent_gemma", "jamba", "bamba", "lfm2", "retnet", "xlstm")


def read_shape(location: Path) -> ModelShape:
    """Of the config at ``location``, a file or a model's directory. Raises UsageProblem, naming the reason."""
    file = location / "config.json" if location.is_dir() else location
    fields = _fields(file)
    text = fields.get("text_config")
    refuse_other_state({**fields, **text} if isinstance(text, dict) else fields)
    try:
        require_supported(fields.get("model_type"))
        return shape_of(AutoConfig.from_pretrained(file, local_files_only=True))
    except UnsupportedModel as error:
        raise UsageProblem(f"{file}: {error.message}", field=error.field) from None
    except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        raise UsageProblem(f"{file}: not a model's config that can be read: {error}") from None


def refuse_other_state(fields: Mapping[str, Any]) -> None:
    """Raises UsageProblem for a model that keeps something else than K and V of each token in each layer."""
    kind = str(fields.get("model_type", ""))
    if any(fields.get(name) for name in _LATENT):
        raise UsageProblem(
            f"{kind}: multi-head latent attention (MLA) keeps one compressed latent per token and layer, of "
            f"kv_lora_rank {fields['kv_lora_rank']} and a shared RoPE part, and no K and V per head: the formula for "
            "those does not hold, and no node here serves it",
            field="kv_lora_rank",
        )
    layers = {str(each) for each in fields.get("layer_types") or ()} - {"full_attention", "sliding_attention"}
    marks = [name for name in _RECURRENT if fields.get(name) is not None]
    if marks or layers or kind.startswith(_RECURRENT_TYPES):
        why = ", ".join([*marks, *sorted(layers)]) or kind
        raise UsageProblem(
            f"{kind}: layers with a recurrent state (SSM, linear attention or hybrid; {why}) hold one state per "
            "sequence and no KV per token: it cannot be cut into blocks, and no node here serves it",
            field=marks[0] if marks else "layer_types" if layers else "model_type",
        )


def _fields(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as source:
            raw = source.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"{file}: {error.strerror}; give a config.json, or the directory that holds it") from None
    try:
        fields = json.loads(raw) if len(raw) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UsageProblem(f"{file}: not a JSON object; give a model's config.json")
    return fields
