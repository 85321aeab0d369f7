"""The compile cache: what its keys tell apart, what it keeps, and its bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvgrove_kernels import compile as compiling
from kvgrove_kernels.compile import CompileCache, Variant, source_digest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with torch")

ROPE = {"KVG_POOL": "BFLOAT16", "KVG_HEAD_DIM": 16, "KVG_ROTARY": 16, "KVG_BLOCK_SIZE": 4}
VARIANTS = [Variant("rope_shift", (*ROPE.items(), ("KVG_INTERLEAVED", value))) for value in (0, 1)]


def test_compiled_once_for_all_processes(tmp_path: Path) -> None:
    first, second = CompileCache("sm_90", tmp_path), CompileCache("sm_90", tmp_path)
    path = first.cubin(VARIANTS[0])
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert first.cubin(VARIANTS[0]) == second.cubin(VARIANTS[0]) == path
    assert (first.compiled, second.compiled) == (1, 0)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_keys_tell_apart_all_that_bytes_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CompileCache("sm_90", tmp_path)
    keys = {cache.key(variant) for variant in VARIANTS} | {CompileCache("sm_80", tmp_path).key(VARIANTS[0])}
    monkeypatch.setattr(compiling, "OPTIONS", (*compiling.OPTIONS, "--use_fast_math"))
    keys.add(cache.key(VARIANTS[0]))
    sources = tmp_path / "cuda"
    sources.mkdir()
    (sources / "rope_shift.cu").write_text("other")
    monkeypatch.setattr(compiling, "SOURCES", sources)
    source_digest.cache_clear()
    keys.add(cache.key(VARIANTS[0]))
    source_digest.cache_clear()
    assert len(keys) == 5


def test_i11_the_disk_holds_no_more_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MAX_CUBINS", 2)
    for age, name in enumerate(("oldest", "older")):
        (tmp_path / f"{name}.cubin").write_bytes(b"")
        os.utime(tmp_path / f"{name}.cubin", (1000 + age, 1000 + age))
    path = CompileCache("sm_90", tmp_path).cubin(VARIANTS[0])
    assert {entry.name for entry in tmp_path.iterdir()} == {"older.cubin", path.name}
