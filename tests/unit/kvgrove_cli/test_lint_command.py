"""`kvgrove lint` says where, and what to do, and prints nothing of a prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgrove_cli import console
from kvgrove_cli.__main__ import kvgrove


def _run(*arguments: str) -> int:
    return console.run(lambda: kvgrove.main(["lint", *arguments], prog_name="kvgrove", standalone_mode=False))


def _request(system: str) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "system", "content": system}, {"role": "user", "content": "hi"}]}


def test_a_clean_request_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_request("Be kind.")))
    assert _run(str(tmp_path / "a.json")) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_findings_are_lines_with_a_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(_request("Be secret. 2026-11-30")))
    assert _run(str(file)) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{file}: messages[0].content, characters 11-21: date: say it in the last user message")
    assert "secret" not in out
    assert _run(str(file), "-o", "json") == 1
    [found] = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["start"], found["end"]) == ("date", 11, 21)


def test_requests_are_compared_with_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "traffic.jsonl"
    texts = [f"Be kind and brief, always, and greet {name} first of all things." for name in ("Ann", "Bob", "Cy")]
    file.write_text("\n".join(json.dumps(_request(text)) for text in texts))
    assert _run(str(file)) == 1
    assert capsys.readouterr().out.count("messages[0].content, word 9: varies: move it behind") == 2


def test_a_declared_text_is_looked_at_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prefix.txt").write_text("Request #17")
    assert _run(str(tmp_path / "prefix.txt")) == 1
    assert "text, characters 0-11: counter" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"messages": 3}', "[" * 99_999])
def test_what_is_no_request_is_a_usage_error(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text(content)
    assert _run(str(tmp_path / "a.json")) == 2
    assert "a.json" in capsys.readouterr().err
