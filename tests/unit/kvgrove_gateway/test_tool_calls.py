"""Calls of tools out of an answer's text, however it is cut, and nothing of an answer lost."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from kvgrove_gateway.tool_calls import Told, ToolFormat, tool_format, tool_reader
from kvgrove_prompt.assembly import ToolCall

CALL = '{"name": "look", "arguments": {"place": "bac\\"k {yard}", "n": [1, {"x": null}]}}'
LLAMA_CALL = CALL.replace("arguments", "parameters")


def read(kind: ToolFormat, text: str, cuts: list[int]) -> tuple[str, list[ToolCall]]:
    numbers = itertools.count(1)
    reader = tool_reader(kind, lambda: f"{next(numbers):024x}", "call_")
    told: list[Told] = []
    for begin, end in itertools.pairwise([0, *sorted(cuts), len(text)]):
        told += reader.add(text[begin:end])
    told += reader.finish()
    return "".join(each for each in told if isinstance(each, str)), [e for e in told if isinstance(e, ToolCall)]


@pytest.mark.parametrize(
    ("kind", "text", "said", "calls"),
    [
        (ToolFormat.HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", 1),
        (ToolFormat.HERMES, f"I look.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n", "I look.", 2),
        (ToolFormat.HERMES, f"<tool_call>{CALL}", "", 1),
        (ToolFormat.HERMES, f"a <tool_call>{CALL}</tool_call> b", "a b", 1),
        (ToolFormat.HERMES, "a <tool_call>{broken</tool_call> b ", "a <tool_call>{broken</tool_call> b ", 0),
        (ToolFormat.HERMES, "a <tool_call>", "a <tool_call>", 0),
        (ToolFormat.HERMES, "1 < 2 <tool_cal", "1 < 2 <tool_cal", 0),
        (ToolFormat.HERMES, ' <tool_call>["x"]</tool_call>', ' <tool_call>["x"]</tool_call>', 0),
        (ToolFormat.LLAMA3_JSON, LLAMA_CALL, "", 1),
        (ToolFormat.LLAMA3_JSON, f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", "", 2),
        (ToolFormat.LLAMA3_JSON, f"I say {LLAMA_CALL}", f"I say {LLAMA_CALL}", 0),
        (ToolFormat.LLAMA3_JSON, "{not json", "{not json", 0),
        (ToolFormat.LLAMA3_JSON, f"{LLAMA_CALL} and more", f"{LLAMA_CALL} and more", 0),
        (ToolFormat.MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", "", 2),
        (ToolFormat.MISTRAL, f"so [TOOL_CALLS] [{CALL}]", "so ", 1),
        (ToolFormat.MISTRAL, "so [TOOL_CALLS] no", "so [TOOL_CALLS] no", 0),
        (ToolFormat.MISTRAL, "a [TOOL", "a [TOOL", 0),
    ],
)
def test_a_call_is_read_however_it_is_cut(kind: ToolFormat, text: str, said: str, calls: int) -> None:
    draw = random.Random(7)
    ways = [[], list(range(1, len(text)))] + [
        draw.sample(range(1, len(text)), min(3, len(text) - 1)) for _ in range(60)
    ]
    for cuts in ways:
        found_text, found = read(kind, text, cuts)
        assert (found_text, len(found)) == (said, calls), cuts
        for call in found:
            assert call.name == "look"
            assert json.loads(call.arguments) == json.loads(CALL)["arguments"]
        assert len({call.id for call in found}) == calls


def test_text_is_told_at_once_where_it_can_be_no_call() -> None:
    reader = tool_reader(ToolFormat.HERMES, lambda: "0" * 24, "call_")
    assert reader.add("Hello") == ["Hello"]
    assert reader.add(" there <") == [" there"]
    assert reader.add("b>") == [" <b>"]


def test_ids_are_what_the_format_takes() -> None:
    assert read(ToolFormat.HERMES, f"<tool_call>{CALL}</tool_call>", [])[1][0].id == f"call_{1:024x}"
    assert read(ToolFormat.MISTRAL, f"[TOOL_CALLS][{CALL}]", [])[1][0].id == f"{1:09x}"


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ('{{ "<tool_call>" }}', ToolFormat.HERMES),
        ('{{ "<tool_call>\\n<function=" }}', None),
        ('{{ "[TOOL_CALLS]" }}', ToolFormat.MISTRAL),
        ('{{ "[TOOL_CALLS]" + name + "[ARGS]" }}', None),
        ('{{ \'"parameters": dictionary\' }}{{ "<|eot_id|>" }}', ToolFormat.LLAMA3_JSON),
        ("{{ messages }}", None),
    ],
)
def test_formats_are_known_by_their_templates(template: str, kind: ToolFormat | None) -> None:
    assert tool_format(template) is kind
