"""`kvgrove explain` without a fleet, and its page: whatever a prompt holds stays text (I12, MET-06, PRO-09)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_cli import console
from kvgrove_cli.__main__ import kvgrove
from kvgrove_cli.explain.page import page
from kvgrove_gateway.explain.report import Change, NodeView, Piece, PromptView, Report, decode

LONG = "Tell me all that there is to say of gardens. " * 12
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "h1",
    "h2",
    "p",
    "ul",
    "li",
    "table",
    "tr",
    "th",
    "td",
    "pre",
    "span",
}


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"model": "team/bot", "messages": messages, **more}


def write(folder: Path, **bodies: Any) -> list[str]:
    files = []
    for name, body in bodies.items():
        file = folder / f"{name}.json"
        file.write_text(body if isinstance(body, str) else json.dumps(body))
        files.append(str(file))
    return files


@pytest.fixture
def model(tiny_model: Callable[[str], Path]) -> str:
    return str(tiny_model("llama"))


def run(*arguments: str) -> str:
    found = CliRunner().invoke(kvgrove, ["explain", *arguments])
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def test_two_files_and_a_model_directory_are_enough(tmp_path: Path, model: str) -> None:
    files = write(tmp_path, a=chat(LONG, "Roses.", "Why?"), b=chat(LONG, "Nettles.", "Why?"))
    report = decode(run(*files, "--model", model, "-o", "json").encode())
    assert report.assumed
    assert report.parting is not None
    assert report.parting.b is not None
    assert report.parting.b.message == 1
    first, second = report.prompts
    assert (first.reused_tokens, first.missed) == (0, {})
    assert second.reused_tokens == report.parting.block * 32 > 0
    assert second.reused_tokens + sum(second.missed.values()) == second.tokens
    assert [each.kind for each in report.changes] == ["changed"]
    text = run(*files, "--model", model)
    assert "messages[1].content" in text
    assert "No fleet was asked" in text


def test_met_06_a_shared_part_shorter_than_a_block_is_named_as_that(tmp_path: Path, model: str) -> None:
    files = write(tmp_path, a=chat("Hello"), b=chat("Hello"))
    (_, second) = decode(run(*files, "--model", model, "-o", "json").encode()).prompts
    assert (second.reused_tokens, list(second.missed)) == (0, ["partial_block"])
    (_, second) = decode(run(*files, "--model", model, "--block-size", "4", "-o", "json").encode()).prompts
    assert second.reused_tokens > 0


def test_one_file_shows_its_segments(tmp_path: Path, model: str) -> None:
    (file,) = write(tmp_path, a=chat("Hello"))
    report = decode(run(file, "--model", model, "-o", "json").encode())
    assert report.parting is None
    assert {piece.origin for piece in report.prompts[0].pieces} == {"template", "messages[0].content"}


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.stack: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if "pre" in self.stack:
            self.text.append(data)


HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></body><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "&lt;b&gt; &amp; <!-- --> ]]>",
    "</style><style>*{display:none}",
    "<|im_end|>\u202e\u0000",
]


@given(st.lists(st.sampled_from(HOSTILE) | st.text(max_size=20), min_size=1, max_size=4))
def test_markup_in_a_prompt_stays_text(texts: list[str]) -> None:
    pieces = [
        Piece(start=at, end=at + 1, origin=f"messages[0].{text}", message=0, tier="", reason="new", text=text)
        for at, text in enumerate(texts)
    ]
    view = PromptView(
        model=texts[0], namespace="", generation="", tokens=len(texts), block_size=1, node=texts[-1], reused_tokens=0,
        missed={texts[0]: 1}, pieces=pieces, nodes=[NodeView(node=texts[0], problem=texts[-1])] * 2,
    )  # fmt: skip
    made = page(Report(prompts=[view], changes=[Change(kind="moved", what=texts[0], a=texts[0], b=texts[-1])]))
    seen = Seen()
    seen.feed(made)
    seen.close()
    assert seen.tags <= TAGS
    assert seen.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class", "title"}
    assert not seen.stack
    whole = "".join(texts)
    if "\0" not in whole and "\r" not in whole:  # which HTML itself replaces
        assert "".join(seen.text) == whole


def test_the_page_needs_nothing_from_elsewhere_and_colours_by_fate(tmp_path: Path, model: str) -> None:
    files = write(tmp_path, a=chat(LONG), b=chat(LONG + "<b>more</b>"))
    made = run(*files, "--model", model, "-o", "html")
    assert not re.search(r"(src|href|url)\s*[=(]|@import|<script|<link|<iframe", made)
    assert "default-src 'none'" in made
    for fate in ("reused", "new", "partial_block"):
        assert f'class="{fate}' in made
    assert "&lt;b&gt;more&lt;/b&gt;" in made


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ({"model": "m"}, "messages"),
        (chat("x", temperature=9), "temperature"),
        (chat("x", kvgrove={"prefix": "rules"}), "--url"),
    ],
)
def test_a_body_that_cannot_be_explained_is_one_line(
    tmp_path: Path, model: str, body: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = write(tmp_path, bad=body)
    code = console.run(lambda: kvgrove.main(["explain", file, "--model", model], standalone_mode=False))
    said = capsys.readouterr().err
    assert code == console.EXIT_USAGE
    assert message in said
    assert "bad.json" in said
    assert said.count("\n") == 1


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = write(tmp_path, a=chat("x"))
    code = console.run(lambda: kvgrove.main(["explain", file, "--model", str(tmp_path)], standalone_mode=False))
    assert code == console.EXIT_USAGE
    assert "tokenizer.json" in capsys.readouterr().err


TOOLS = """\
{%- if tools %}{{ '<|im_start|>system\n' }}
{%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def test_pro_09_tools_that_appear_are_named_and_are_where_the_prompts_part(tmp_path: Path, model: str) -> None:
    directory = tmp_path / "with-tools"
    shutil.copytree(model, directory)
    for file in directory.glob("chat_template*"):
        file.unlink()
    (directory / "chat_template.jinja").write_text(TOOLS)
    tools = [
        {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {"type": "object"}}}
        for name in ("read_file", "write_file")
    ]
    files = write(tmp_path, a=chat(LONG, tools=tools[:1]), b=chat(LONG, tools=tools))
    report = decode(run(*files, "--model", str(directory), "-o", "json").encode())
    assert [(each.kind, each.what) for each in report.changes] == [("appeared", "tool write_file")]
    assert report.parting is not None
    ends = {piece.origin: piece.end for piece in report.prompts[1].pieces}
    begins = next(piece.start for piece in report.prompts[1].pieces if piece.origin == "tools[1]")
    assert ends["tools[0]"] < report.parting.token <= begins, "after the first tool, no later than at the second"
