"""`kvgrove estimate` says what a node allocates, and refuses what the formula does not hold for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvgrove_cli import console
from kvgrove_cli.__main__ import kvgrove
from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.layout import KVLayout, as_dtype
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.disk import DiskMedium
from kvgrove_daemon.engine.model_source import open_model

ATTENTION = {"llama": "GQA", "qwen3": "GQA", "gpt_neox": "MHA", "phi3": "GQA"}


def run(*arguments: str) -> dict[str, Any]:
    found = CliRunner().invoke(kvgrove, ["estimate", *arguments, "-o", "json"])
    assert found.exit_code == 0, (found.output, found.exception)
    estimate: dict[str, Any] = json.loads(found.output)
    return estimate


@pytest.mark.parametrize("family", ATTENTION)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_figures_are_the_bytes_of_a_real_pool(
    family: str, dtype: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = tiny_model(family)
    size = 3 << 20
    found = run(
        str(directory), "--dtype", dtype, "--block-size", "16", "--tokens", "100", "--tier", "host=3Mi",
        "--tier", "disk=2Mi",
    )  # fmt: skip
    layout: KVLayout = open_model(directory).shape.layout(as_dtype(dtype), 16)
    host, disk = found["tiers"]
    arena = SharedMemoryArena(layout, layout.slots_within(size), segment_name(f"estimate{os.getpid()}", "0", 1))
    try:
        assert len(arena.read_block(0)) == found["bytes_per_block"] == host["block_bytes"]
        assert arena.num_slots == host["blocks"]
    finally:
        arena.close()
    medium = DiskMedium.open(
        tmp_path / "disk", layout=b"l" * 32, block_size=16, block_bytes=layout.block_bytes, capacity_bytes=2 << 20
    )
    try:
        assert (medium.file_bytes, medium.num_slots) == (disk["block_bytes"], disk["blocks"])
    finally:
        medium.close()
    assert found["attention"] == ATTENTION[family]
    assert found["bytes_per_token"] * 16 == found["bytes_per_block"]
    assert found["blocks_per_prompt"] == 7
    assert host["prompts"] == host["blocks"] // 7
    assert host["tokens"] == host["blocks"] * 16


def config(tmp_path: Path, **fields: Any) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields))
    return file


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    file = config(tmp_path, **LLAMA)
    found = run(str(file), "--tier", "device=16Gi")
    assert found["bytes_per_token"] == 2 * 32 * 8 * 128 * 2 == 131_072
    assert found["tiers"][0]["tokens"] == 16 * 2**30 // 131_072
    assert run(str(tmp_path))["bytes_per_token"] == 131_072
    one = run(str(config(tmp_path, **LLAMA | {"num_key_value_heads": 1})))
    assert (one["attention"], one["bytes_per_token"]) == ("MQA", 131_072 // 8)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "mamba", "state_size": 16}, "recurrent state"),
        ({"model_type": "rwkv"}, "recurrent state"),
        ({"model_type": "jamba", "attn_layer_period": 8}, "recurrent state"),
        (LLAMA | {"layer_types": ["full_attention", "linear_attention"]}, "recurrent state"),
        ({"model_type": "wrapper", "text_config": {"model_type": "deepseek_v2", "kv_lora_rank": 512}}, "latent"),
        ({"model_type": "unheard_of"}, "not supported"),
        ({"model_type": "llama", "num_hidden_layers": "many"}, "config.json"),
    ],
)
def test_other_states_are_refused_with_the_reason(
    tmp_path: Path, fields: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, **fields)
    assert console.run(lambda: kvgrove.main(["estimate", str(file)], standalone_mode=False)) == console.EXIT_USAGE
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("given", ["host", "attic=1Gi", "host=lots", "host=-1"])
def test_a_tier_that_cannot_be_read_is_named(tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = config(tmp_path, **LLAMA)
    arguments = ["estimate", str(file), "--tier", given]
    assert console.run(lambda: kvgrove.main(arguments, standalone_mode=False)) == console.EXIT_USAGE
    assert given in capsys.readouterr().err


def test_the_text_names_the_formula(tmp_path: Path) -> None:
    found = CliRunner().invoke(kvgrove, ["estimate", str(config(tmp_path, **LLAMA)), "--tier", "host=1Gi"])
    assert "2 (K and V) x 32 layers x 8 KV heads x 128 dimensions x 2 bytes = 131072 bytes per token" in found.output
