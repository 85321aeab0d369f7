"""LoRA adapters: checked, named by content, and merged into the weights at load.

Role: a model version with adapters is one set of weights. Merging keeps everything after load as it is without
adapters: the same kernels, the same pool, no choice by request that could meet another choice's KV; versions that
differ in an adapter are two versions, side by side. Invariants: what an adapter is called and in which order adapters
are listed changes nothing (they are merged in the order of their digests, and the digest covers content only, COR-05);
every tensor of an adapter reaches the model, or the load is refused. A merge adds ``scaling * B @ A`` to a weight
matrix (Hu et al., "LoRA", 2021), in the weights' own dtype.
Must not know: pools, requests, where files come from.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvgrove_daemon.engine.digests import file_digests
from kvgrove_daemon.engine.errors import DigestMismatch, MissingModel, UnsupportedModel
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.control import AdapterPlan

_CONFIG: Final = "adapter_config.json"
_TENSORS: Final = "adapter_model.safetensors"
# Of how the adapter was trained, or where its base was found: the merged weights are the same.
_IMMATERIAL: Final = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "inference_mode",
        "init_lora_weights",
        "loftq_config",
        "lora_dropout",
        "peft_version",
        "revision",
        "runtime_config",
        "task_type",
    }
)
_EMBEDDINGS: Final = ("embed_tokens", "embed_in", "lm_head", "embed_out", "wte")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A checked adapter directory in the layout that PEFT writes."""

    name: str
    path: Path
    digest: str
    """``sha256:<hex>`` of its tensors and of the settings that say how to merge them."""
    settings: Mapping[str, Any]

    @property
    def field(self) -> str:
        return f"adapters[{self.name}]"


def open_adapters(plans: Iterable[AdapterPlan], cache: Path) -> tuple[Adapter, ...]:
    """The adapters of ``plans`` in the order in which they are merged. ``cache``: remembers digests of files.

    Raises MissingModel, UnsupportedModel or DigestMismatch, each naming the adapter and the cure.
    """
    return tuple(sorted((_open(plan, cache) for plan in plans), key=lambda adapter: (adapter.digest, adapter.name)))


def adapters_digest(adapters: Iterable[Adapter]) -> str | None:
    """What several adapters together are, as one ``sha256:<hex>``; None: there are none."""
    digests: list[str] = sorted(adapter.digest for adapter in adapters)
    return f"sha256:{digest('adapters', {'adapters': digests}).hex()}" if digests else None


def merge(model: Any, adapters: Iterable[Adapter]) -> Any:
    """``model`` with every adapter added to its weights. Mutates and answers it; takes seconds."""
    for adapter in adapters:
        model = _merge_one(model, adapter)
    return model


def _open(plan: AdapterPlan, cache: Path) -> Adapter:
    path, field = Path(plan.path), f"adapters[{plan.name}]"
    for name in (_CONFIG, _TENSORS):
        if not (path / name).is_file():
            raise MissingModel(
                f"{path}: no {name}; give the directory that save_pretrained() of a PEFT model wrote",
                field=f"{field}.source",
            )
    try:
        settings = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise MissingModel(f"{path}/{_CONFIG}: not JSON ({error}); download it again", field=field) from error
    kind = settings.get("peft_type") if isinstance(settings, dict) else None
    if kind != "LORA":
        raise UnsupportedModel(f"{path}: peft_type is {kind!r}; only LORA can be merged", field=field)
    found = _content_digest(path, settings, cache)
    if plan.digest and plan.digest != found:
        raise DigestMismatch(
            f"{path}: its content is {found}, pinned is {plan.digest}; correct the source or the pin",
            field=f"{field}.digest",
        )
    return Adapter(plan.name, path, found, settings)


def _content_digest(path: Path, settings: Mapping[str, Any], cache: Path) -> str:
    # PEFT keeps module names in sets: their order in the file says nothing.
    material = {
        key: sorted(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value
        for key, value in settings.items()
        if key not in _IMMATERIAL
    }
    files = file_digests(path, (path / _TENSORS,), cache)
    return f"sha256:{digest('adapter', {'files': files, 'settings': json.dumps(material, sort_keys=True)}).hex()}"


def _merge_one(model: Any, adapter: Adapter) -> Any:
    from peft import PeftModel, get_peft_model_state_dict  # noqa: PLC0415 - most models have none, and it is slow to import
    from safetensors import safe_open  # noqa: PLC0415

    _refuse_tied_embeddings(model, adapter)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of what is checked below, and of its own deprecations
            adapted = PeftModel.from_pretrained(model, str(adapter.path), local_files_only=True)
        taken = get_peft_model_state_dict(adapted)
    except (ValueError, RuntimeError, KeyError) as error:
        raise UnsupportedModel(
            f"{adapter.path}: does not fit the model ({type(error).__name__}); give the adapter of this base model",
            field=adapter.field,
        ) from error
    with safe_open(adapter.path / _TENSORS, framework="pt") as file:
        names = set(file.keys())
    if strange := names ^ set(taken):
        raise UnsupportedModel(
            f"{adapter.path}: {len(strange)} tensors have no place in the model or are missing, "
            f"such as {min(strange)}; give the adapter of this base model",
            field=adapter.field,
        )
    try:
        merged = adapted.merge_and_unload(safe_merge=True)
    except ValueError as error:  # what safe_merge says of NaN
        raise UnsupportedModel(
            f"{adapter.path}: the merged weights are not finite; train or download it again", field=adapter.field
        ) from error
    return merged.requires_grad_(requires_grad=False)


def _refuse_tied_embeddings(model: Any, adapter: Adapter) -> None:
    """Merging into one of two tied matrices would change both."""
    targets = adapter.settings.get("target_modules") or ()
    saved = adapter.settings.get("modules_to_save") or ()
    named = [*([targets] if isinstance(targets, str) else targets), *saved]
    touched = sorted(name for name in named if name.rpartition(".")[2] in _EMBEDDINGS)
    if touched and getattr(model.config, "tie_word_embeddings", False):
        raise UnsupportedModel(
            f"{adapter.path}: changes {', '.join(touched)} of a model whose input and output embeddings are one; "
            "merge it into the weights yourself",
            field=adapter.field,
        )
