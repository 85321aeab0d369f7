"""Whatever a body holds, a parser makes a request of it or a 400 that names the field: nothing else, ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgrove_gateway.api.anthropic import parse_count, parse_message
from kvgrove_gateway.api.completions import parse_completion
from kvgrove_gateway.api.endpoints import CHAT, COMPLETIONS, MESSAGES
from kvgrove_gateway.api.openai import parse_chat
from kvgrove_gateway.errors import BadRequest
from kvgrove_gateway.explain.bodies import parse_asked

TEXT_PART = {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "r", "tool_call_id": "c", "name": "f"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "stop": ["a"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 1,
    "max_tokens": 3,
    "n": 2,
    "seed": 1,
    "kvgrove": {"prefix": "p", "documents": ["d"], "session": "s"},
}
COMPLETION_BODY: dict[str, Any] = {"model": "m", "prompt": ["a", [1, 2]], "echo": True, "logprobs": 1, "max_tokens": 0}
MESSAGE_BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 3,
    "system": [TEXT_PART],
    "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "messages": [
        {"role": "user", "content": [TEXT_PART]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT_PART]}]},
    ],
}
COUNT_BODY = {name: value for name, value in MESSAGE_BODY.items() if name != "max_tokens"}
PARSERS: dict[str, tuple[Callable[[bytes], Any], dict[str, Any]]] = {
    "chat": (lambda body: parse_chat(body).ask(), CHAT_BODY),
    "completions": (lambda body: parse_completion(body).asks(), COMPLETION_BODY),
    "messages": (lambda body: parse_message(body).ask(), MESSAGE_BODY),
    "count": (lambda body: parse_count(body).ask(), COUNT_BODY),
    "explain": (lambda body: parse_asked(body, on_behalf=True), {"requests": [CHAT_BODY, MESSAGE_BODY]}),
}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)


def places(value: Any, path: tuple[int | str, ...] = ()) -> list[tuple[int | str, ...]]:
    """Where something could be put in ``value``'s place, or beside it."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        found += places(each, (*path, key))
    return found


def changed(value: Any, path: tuple[int | str, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def judge(parse: Callable[[bytes], Any], body: bytes) -> None:
    refusal: BadRequest | None = None
    try:
        parse(body)
    except BadRequest as error:
        refusal = error
    if refusal is not None and refusal.code != "invalid_json":
        assert refusal.field is not None or "'body'" in refusal.message


@pytest.mark.parametrize("name", PARSERS)
def test_every_base_is_taken(name: str) -> None:
    parse, base = PARSERS[name]
    parse(json.dumps(base).encode())


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_body_with_something_else_at_one_place_is_taken_or_named(name: str, data: st.DataObject) -> None:
    parse, base = PARSERS[name]
    path = data.draw(st.sampled_from(places(base)))
    body = changed(base, path, data.draw(VALUES))
    if isinstance(body, dict) and data.draw(st.booleans()):
        body |= data.draw(st.dictionaries(st.text(max_size=8), VALUES, max_size=2))
    judge(parse, json.dumps(body).encode())


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_taken_or_refused(name: str, body: bytes) -> None:
    judge(PARSERS[name][0], body)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, MESSAGES])
def test_depth_is_no_way_in(endpoint: Any) -> None:
    for nested in (b"[" * 100_000, b'{"model":' * 100_000, b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}"):
        with pytest.raises(BadRequest):
            endpoint.parse(nested)
