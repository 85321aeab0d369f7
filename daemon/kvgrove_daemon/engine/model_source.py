"""A model directory on disk: what must be in it, and what it says about itself.

Role: find every problem of a local model before its weights are read, with one line that says what to do. Invariant:
nothing is fetched from anywhere. Must not know: memory, requests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from kvgrove_daemon.engine.errors import MissingModel
from kvgrove_daemon.engine.families import ModelShape, require_supported, shape_of


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A checked model directory in the Hugging Face layout."""

    path: Path
    shape: ModelShape
    weights: tuple[Path, ...]
    """The safetensors files, by name."""
    tokenizer_files: tuple[Path, ...]


_TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def open_model(path: Path) -> ModelSource:
    """Check ``path`` and read its config. Raises `MissingModel` or `UnsupportedModel`, each naming the cure."""
    if not path.is_dir():
        raise MissingModel(f"{path}: no such directory; give the directory of a downloaded model", field="source.path")
    if not (path / "config.json").is_file():
        raise MissingModel(
            f"{path}: no config.json; give a model directory in the Hugging Face layout", field="source.path"
        )
    require_supported(_read_json(path / "config.json").get("model_type"))
    shape = shape_of(AutoConfig.from_pretrained(path, local_files_only=True))
    weights = _weights(path)
    if not weights:
        raise MissingModel(
            f"{path}: no *.safetensors; convert the weights with save_pretrained(..., safe_serialization=True)",
            field="source.path",
        )
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise MissingModel(
            f"{path}: no tokenizer.json or tokenizer.model; download the model's tokenizer too", field="source.path"
        )
    tokenizer = tuple(path / name for name in _TOKENIZER_FILES if (path / name).is_file())
    return ModelSource(path, shape, weights, tokenizer)


def _weights(path: Path) -> tuple[Path, ...]:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return tuple(sorted(path.glob("*.safetensors")))
    shards = tuple(path / name for name in sorted(set(_read_json(index).get("weight_map", {}).values())))
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise MissingModel(
            f"{path}: {', '.join(missing)} named by {index.name} is not there; download it again", field="source.path"
        )
    return shards


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MissingModel(f"{path}: not JSON ({error}); download it again", field="source.path") from error
    return content if isinstance(content, dict) else {}
