"""The digest of weights: what moves it, what does not, and that nothing is read twice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgrove_daemon.engine import digests
from kvgrove_daemon.engine.digests import weights_digest
from kvgrove_daemon.engine.model_source import open_model


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def digest_of(model: Path, cache: Path) -> str:
    return weights_digest(open_model(model), cache)


def edit_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_copy_elsewhere_has_the_same_digest(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    first = digest_of(model, tmp_path / "cache")
    assert first.startswith("sha256:")
    assert len(first) == 71
    assert digest_of(copy, tmp_path / "cache") == first


def test_one_changed_byte_changes_it_although_size_and_time_are_kept(model: Path, tmp_path: Path) -> None:
    before = digest_of(model, tmp_path / "cache")
    weights = model / "model.safetensors"
    stat = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digest_of(model, tmp_path / "cache") != before


def test_settings_that_change_the_computation_change_it(model: Path, tmp_path: Path) -> None:
    before = digest_of(model, tmp_path / "cache")
    edit_config(model, transformers_version="9.9.9", _name_or_path="elsewhere")
    assert digest_of(model, tmp_path / "cache") == before
    edit_config(model, rms_norm_eps=1e-3)
    assert digest_of(model, tmp_path / "cache") != before


def test_known_files_are_not_read_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    hash_file = digests._hash
    monkeypatch.setattr(digests, "_hash", lambda path: read.append(path) or hash_file(path))
    first = digest_of(model, tmp_path / "cache")
    assert digest_of(model, tmp_path / "cache") == first
    assert read == [model / "model.safetensors"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b'{"model.safetensors": 3}', b'{"model.safetensors": [1, 2, 3, 4]}']
)
def test_a_damaged_memory_costs_time_only(model: Path, tmp_path: Path, content: bytes) -> None:
    first = digest_of(model, tmp_path / "cache")
    (memory,) = (tmp_path / "cache" / "weights").iterdir()
    memory.write_bytes(content)
    assert digest_of(model, tmp_path / "cache") == first


def test_a_memory_that_cannot_be_written_costs_time_only(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert digest_of(model, tmp_path / "file") == digest_of(model, tmp_path / "cache")
