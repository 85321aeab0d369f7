"""Bundles are deterministic, and their digests say what changed (COR-16)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prompt_fixtures import CHATML, QWEN, write_tokenizer

from kvgrove_prompt.bundle import bundle_digest, chat_template_digest, pack, tokenizer_digest


def _digests(directory: Path, chat_template: str | None = None) -> tuple[bytes, str, str]:
    packed = pack(directory, chat_template)
    return bundle_digest(packed), tokenizer_digest(packed), chat_template_digest(packed)


def test_digests_are_the_same_in_every_process(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    script = """
import pathlib, sys
from kvgrove_prompt.bundle import *
packed = pack(pathlib.Path(sys.argv[1]))
print(bundle_digest(packed).hex(), tokenizer_digest(packed), chat_template_digest(packed))
"""
    bundle, tokenizer, template = _digests(directory)
    for seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", script, str(directory)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.stdout.split() == [bundle.hex(), tokenizer, template]
    assert len(bundle) == 32
    assert tokenizer.startswith("sha256:")
    assert len(tokenizer) == len(template) == len("sha256:") + 64


def test_where_the_files_lie_does_not_matter(tmp_path: Path) -> None:
    assert _digests(write_tokenizer(tmp_path / "a")) == _digests(write_tokenizer(tmp_path / "b"))


def test_a_tokenizer_only_change_changes_the_tokenizers_digest_alone_cor_16(tmp_path: Path) -> None:
    before = _digests(write_tokenizer(tmp_path))
    file = tmp_path / "tokenizer.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    fields["model"]["merges"].pop()
    file.write_text(json.dumps(fields), encoding="utf-8")
    after = _digests(tmp_path)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


@pytest.mark.parametrize("where", ["override", "file", "config"])
def test_a_template_only_change_changes_the_templates_digest_alone_cor_16(tmp_path: Path, where: str) -> None:
    before = _digests(write_tokenizer(tmp_path, template=CHATML))
    changed = CHATML + " "
    override = None
    if where == "override":
        override = changed
    elif where == "file":
        (tmp_path / "chat_template.jinja").write_text(changed, encoding="utf-8")
    else:
        write_tokenizer(tmp_path, template=changed)
    after = _digests(tmp_path, override)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, False]


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_tokens_that_templates_name_belong_to_the_tokenizer(tmp_path: Path, name: str) -> None:
    before = _digests(write_tokenizer(tmp_path))
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config[name] = {"content": "<s>", "special": True}
    file.write_text(json.dumps(config), encoding="utf-8")
    after = _digests(tmp_path)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


def test_the_template_is_taken_where_transformers_takes_it(tmp_path: Path) -> None:
    plain = _digests(write_tokenizer(tmp_path, template=QWEN))
    config_file = tmp_path / "tokenizer_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["chat_template"] = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": QWEN}]
    config_file.write_text(json.dumps(config), encoding="utf-8")
    assert _digests(tmp_path) == plain
    (tmp_path / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    assert _digests(tmp_path)[2] == _digests(tmp_path, CHATML)[2] != plain[2]
