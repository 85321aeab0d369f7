"""What may be asked to be explained: both dialects by the parsers that serve them, anything else a named 400 (I12)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgrove_gateway.ask import ChatPrompt, RawPrompt
from kvgrove_gateway.errors import BadRequest
from kvgrove_gateway.explain.bodies import is_anthropic, parse_asked

CHAT = {"model": "m", "messages": [{"role": "user", "content": "pineapple"}]}


def asked(*requests: Any, on_behalf: bool = False, **more: Any) -> Any:
    return parse_asked(json.dumps({"requests": list(requests), **more}).encode(), on_behalf=on_behalf)


@pytest.mark.parametrize(
    ("body", "anthropic"),
    [
        (CHAT, False),
        (CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
        (CHAT | {"system": "You help."}, True),
        (CHAT | {"tools": [{"name": "f", "input_schema": {}}]}, True),
        ({"model": "m", "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, True),
        ({"messages": [{"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]}, True),
        ({"messages": "none"}, False),
    ],
)
def test_a_dialect_is_told_by_what_only_it_has(body: dict[str, Any], anthropic: bool) -> None:
    assert is_anthropic(body) is anthropic


def test_bodies_are_read_as_they_are_served() -> None:
    one, other = asked(CHAT, CHAT | {"system": "You help.", "max_tokens": 4}).prompts
    assert isinstance(one.ask.prompt, ChatPrompt)
    assert isinstance(other.ask.prompt, ChatPrompt)
    assert [message.role for message in other.ask.prompt.messages] == ["system", "user"]
    (raw,) = asked({"model": "m", "prompt": "pineapple"}).prompts
    assert isinstance(raw.ask.prompt, RawPrompt)
    with pytest.raises(BadRequest) as several:
        asked({"model": "m", "prompt": ["a", "b"]})
    assert several.value.field == "requests[0].prompt"


def test_callers_are_for_operators_and_one_for_each_request() -> None:
    caller = {"tenant": "acme", "user": "ann", "scopes": ["b", "a", "a"]}
    found = asked(CHAT, on_behalf=True, callers=[caller])
    assert (found.callers[0].tenant, found.callers[0].scopes) == ("acme", ("a", "b"))
    for on_behalf, callers in ((False, [caller]), (True, [caller, caller])):
        with pytest.raises(BadRequest) as refused:
            asked(CHAT, on_behalf=on_behalf, callers=callers)
        assert refused.value.field == "callers"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "requests"),
        ({"requests": [5]}, "requests[0]"),
        ({"requests": [CHAT], "callers": [{"tenant": 5}]}, "callers[0].tenant"),
        ({"requests": [CHAT], "callers": [{"tenant": "a", "scopes": [5]}]}, "callers[0].scopes[0]"),
        ({"requests": [CHAT], "why": 1}, "why"),
    ],
)
def test_refusals_name_the_field_as_the_other_paths_do(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_asked(json.dumps(fields).encode(), on_behalf=True)
    assert refused.value.field == param
    assert param in refused.value.message


NAMES = ["model", "messages", "role", "content", "type", "text", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.just("pineapple"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine is at times
@given(JSON | st.builds(lambda body: {"requests": [body]}, JSON), st.booleans())
def test_i12_quiet_anything_else_is_a_400_that_quotes_nothing(body: Any, on_behalf: bool) -> None:
    refusal = None
    try:
        parse_asked(json.dumps(body).encode(), on_behalf=on_behalf)
    except BadRequest as refused:
        refusal = refused
    assert refusal is None or "pineapple" not in f"{refusal.message} {refusal.field}"


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_parse_or_be_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_asked(body, on_behalf=True)
