"""Segment by segment equals the whole, wherever a text is cut at a seam (PRO-11); parsers take whatever comes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_fixtures import (
    ALL_TEMPLATES,
    EXTRA_MARKERS,
    MARKERS,
    byte_level_json,
    corpus,
    prompt_tokenizer,
    write_tokenizer,
)

from kvgrove_prompt.assembly import Message, ToolCall, assemble
from kvgrove_prompt.bundle import pack
from kvgrove_prompt.conversation import check_options
from kvgrove_prompt.divergence import parting
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.layout import Part
from kvgrove_prompt.prompt import TEMPLATE_ORIGIN
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_prompt.toolset import canonical
from kvgrove_prompt.units import tokenise
from kvgrove_protocol.chain import SpanKind

SPLITS = 10_000

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


def _named(error: InvalidMessages | TemplateUnsupported, beginning: str) -> None:
    """The refusal says which field is off."""
    assert error.field
    assert error.field.startswith(beginning)


def _texts(draw: random.Random) -> list[str]:
    """A template's text, cut anywhere: markers between words of every kind."""
    words = [
        *MARKERS,
        *EXTRA_MARKERS,
        "\n",
        " ",
        "  ",
        "    ",
        "user\n",
        "naïve",
        "你好",
        "🙂",
        "the cache",
        " of",
        ".",
    ]
    words += draw.choice(corpus()).split(" ")[:3]
    return [draw.choice(words) for _ in range(draw.randrange(1, 12))]


@pytest.mark.parametrize("sentencepiece", [False, True])
def test_pro_11_unit_by_unit_equals_the_whole_on_ten_thousand_splits(sentencepiece: bool) -> None:
    tokenizer = prompt_tokenizer(sentencepiece=sentencepiece)
    draw = random.Random(11)
    control = {tokenizer.encode_control(marker)[0] for marker in tokenizer.markers}
    moved = 0
    for _ in range(SPLITS // 2):
        texts = _texts(draw)
        whole = "<|im_start|>" + "".join(texts)
        pieces = [Part("<|im_start|>", TEMPLATE_ORIGIN, SpanKind.TEMPLATE, scaffold=True)]
        pieces += [Part(text, TEMPLATE_ORIGIN, SpanKind.TEMPLATE, scaffold=True) for text in texts]
        expected = tokenizer.encode_control(whole)
        prompt = tokenise(tokenizer, pieces)
        assert prompt.ids == expected
        # A cut at a random place lies within a unit as a rule: tokenised apart it would differ, so the seam moves.
        at = draw.randrange(len(whole) + 1)
        apart = tokenizer.encode_control(whole[:at]) + tokenizer.encode_control(whole[at:])
        moved += apart != expected
        assert control.isdisjoint(tokenizer.encode_text(whole))
    assert moved > SPLITS // 100


@settings(max_examples=150, deadline=None)
@given(tools=st.lists(json_values, max_size=3), extra=json_values)
def test_any_json_is_a_tool_or_refused_by_name(tools: list[Any], extra: Any) -> None:
    for value in (tools, [{"type": "function", "function": {"name": "f", "parameters": extra, "x": tools}}]):
        try:
            made = canonical(value)
        except InvalidMessages as error:
            _named(error, "tools")
        else:
            assert made == value  # equal as JSON, whatever the order
            assert json.dumps(canonical(made)) == json.dumps(made)


@settings(max_examples=80, deadline=None)
@given(
    options=st.dictionaries(st.text(max_size=12) | st.sampled_from(["chat_template", "tools"]), json_values, max_size=4)
)
def test_any_options_are_switches_or_refused_by_name(options: dict[str, Any]) -> None:
    try:
        made = check_options(options)
    except InvalidMessages as error:
        _named(error, "chat_template_kwargs.")
    else:
        assert "chat_template" not in made
        assert not any(isinstance(value, (str, list, dict)) for value in made.values())


roles = st.sampled_from(["system", "user", "human", "assistant", "bot", "tool", "function", "developer", "x", ""])
anything = st.builds(
    Message,
    roles,
    st.none() | st.text(max_size=8) | st.lists(st.text(max_size=4), max_size=3).map(tuple),
    st.lists(
        st.builds(
            ToolCall, st.text(max_size=6), json_values.map(json.dumps) | st.text(max_size=8), st.text(max_size=9)
        ),
        max_size=2,
    ).map(tuple),
    st.text(max_size=4),
    st.text(max_size=4),
    st.text(max_size=6),
)


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(anything, max_size=5), tools=st.booleans())
@pytest.mark.parametrize("family", ["qwen-thinking", "hermes", "mistral-tools", "gemma"])
def test_any_messages_are_a_prompt_or_refused_by_name(family: str, messages: list[Message], tools: bool) -> None:
    tokenizer = prompt_tokenizer(family)
    declared = [{"type": "function", "function": {"name": "f"}}] if tools else []
    try:
        prompt = assemble(tokenizer, messages, tools=declared)
    except (InvalidMessages, TemplateUnsupported) as error:
        _named(error, "")
    else:
        assert prompt.count == sum(segment.end - segment.start for segment in prompt.segments)
        assert parting(prompt, assemble(tokenizer, messages, tools=declared)) is None


@pytest.mark.parametrize("family", ALL_TEMPLATES)
@settings(max_examples=25, deadline=None)
@given(one=st.text(max_size=20), other=st.text(max_size=20))
def test_what_is_shared_never_depends_on_what_a_caller_says(family: str, one: str, other: str) -> None:
    """I2: in front of the first private token two callers have the same tokens, or the shorter has fewer."""
    tokenizer = prompt_tokenizer(family)
    shared = []
    for text in (one, other):
        prompt = assemble(tokenizer, [Message("user", f"{text}x")])
        first = next(span.start for span in prompt.spans if span.kind is SpanKind.PRIVATE)
        shared.append(prompt.slice(0, first))
    assert shared[0].startswith(shared[1]) or shared[1].startswith(shared[0])


def test_i2_where_words_move_the_templates_tokens_those_are_private(tmp_path: Path) -> None:
    """Two line breaks are one token before a blank, and two before a letter: one bit of what a caller says."""
    fields = json.loads(byte_level_json())
    ids = [*fields["model"]["vocab"].values(), *(token["id"] for token in fields["added_tokens"])]
    fields["model"]["vocab"]["ĊĊ"] = max(ids) + 1
    fields["model"]["merges"].append(["Ċ", "Ċ"])
    template = "{% for m in messages %}<|im_start|>user\n\n{{ m.content }}<|im_end|>{% endfor %}"
    files = write_tokenizer(tmp_path, template=template, tokenizer_json=json.dumps(fields))
    tokenizer = PromptTokenizer.from_bundle(pack(files))
    letter, blank = (assemble(tokenizer, [Message("user", text)]) for text in ("x", " x"))
    assert letter.ids[: blank.count] != blank.ids  # the breaks do differ
    shared = [
        prompt.slice(0, next(span.start for span in prompt.spans if span.kind is SpanKind.PRIVATE))
        for prompt in (letter, blank)
    ]
    assert shared[1].startswith(shared[0])
    assert len(shared[0]) < len(shared[1])
