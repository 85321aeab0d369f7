"""A model directory's problems are found before its weights are read, each with its cure."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.engine.errors import MissingModel, UnsupportedModel
from kvgrove_daemon.engine.families import shape_of
from kvgrove_daemon.engine.model_source import open_model


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def edit_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_good_directory_says_what_its_cache_looks_like(model: Path) -> None:
    source = open_model(model)
    assert source.shape.layout("float32", 32) == KVLayout(3, 2, 16, "float32", 32)
    assert (source.shape.vocab_size, source.shape.max_context) == (1024, 2048)
    assert [path.name for path in source.weights] == ["model.safetensors"]


def test_what_is_missing_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingModel, match="no such directory; give"):
        open_model(tmp_path / "nowhere")
    (model / "tokenizer.json").unlink()
    with pytest.raises(MissingModel, match=r"no tokenizer\.json .*; download"):
        open_model(model)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(MissingModel, match=r"no \*\.safetensors; convert"):
        open_model(model)
    (model / "config.json").unlink()
    with pytest.raises(MissingModel, match=r"no config\.json; give"):
        open_model(model)


def test_a_shard_that_is_missing_is_named(model: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MissingModel, match=r"model-00002-of-00002\.safetensors named by"):
        open_model(model)


def test_a_broken_config_is_not_a_traceback(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(MissingModel, match=r"config\.json: not JSON"):
        open_model(model)


@pytest.mark.parametrize("kind", ["mamba", "gpt2", "a-model-of-tomorrow", None])
def test_an_unknown_model_is_refused_by_name(model: Path, kind: str | None) -> None:
    edit_config(model, model_type=kind)
    with pytest.raises(UnsupportedModel, match="choose a model of type gpt_neox, llama"):
        open_model(model)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic'"),
        ("llama", {"quantization_config": {"quant_method": "x"}}, "quantized"),
        ("llama", {"is_causal": False}, "both directions"),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear_attention"),
    ],
)
def test_what_would_not_be_exact_is_refused(family: str, changes: dict[str, Any], reason: str) -> None:
    config = AutoConfig.for_model(family, num_hidden_layers=3)
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(UnsupportedModel, match=reason):
        shape_of(config)


def test_a_sliding_window_bounds_the_context() -> None:
    assert shape_of(AutoConfig.for_model("mistral", sliding_window=100)).max_context == 100
    assert (
        shape_of(AutoConfig.for_model("mistral", sliding_window=None, max_position_embeddings=300)).max_context == 300
    )
    whole = AutoConfig.for_model("qwen2", use_sliding_window=False, sliding_window=10, max_position_embeddings=300)
    assert shape_of(whole).max_context == 300


def test_rope_settings_are_flat_scalars_for_the_generation() -> None:
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    rope = shape_of(AutoConfig.for_model("llama", rope_parameters=scaling)).rope
    assert rope["factor"] == 2.0
    assert rope["rope_theta"] == 5e5
    assert all(value is None or isinstance(value, str | int | float | bool) for value in rope.values())
