"""Anthropic's request model is closed too, and becomes the same conversation as OpenAI's."""

import json
from typing import Any

import pytest

from kvgrove_gateway.api.anthropic import parse_count, parse_message
from kvgrove_gateway.api.openai import parse_chat
from kvgrove_gateway.ask import Breakpoint, ChatPrompt
from kvgrove_gateway.errors import BadRequest
from kvgrove_protocol.data import Sampling

BASE: dict[str, Any] = {"model": "team/bot", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
MARK = {"type": "ephemeral"}
HOUR = MARK | {"ttl": "1h"}
TOOL = {"name": "look", "description": "looks", "input_schema": {"type": "object"}}


def prompt(**fields: Any) -> ChatPrompt:
    found = parse_message(json.dumps(BASE | fields).encode()).ask().prompt
    assert isinstance(found, ChatPrompt)
    return found


def refusal(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse_message(json.dumps(BASE | fields).encode())
    return caught.value


def breakpoints(**fields: Any) -> list[tuple[str, str, str | None]]:
    found = parse_message(json.dumps(BASE | fields).encode()).ask().breakpoints
    return [(each.origin, each.kept, each.text) for each in found if isinstance(each, Breakpoint)]


def test_every_accepted_field_is_carried() -> None:
    body = BASE | {
        "system": [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "metadata": {"user_id": "whoever"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "kvgrove": {"session": "s"},
    }
    ask = parse_message(json.dumps(body).encode()).ask()
    assert ask.sampling == Sampling(temperature=0.5, top_p=0.25, top_k=3)
    assert (ask.limit, list(ask.stop), ask.session) == (5, ["END"], "s")
    assert isinstance(ask.prompt, ChatPrompt)
    assert [(each.role, each.text) for each in ask.prompt.messages] == [("system", "be brief\nbe kind"), ("user", "hi")]


def test_both_dialects_make_one_conversation() -> None:
    """Tool calls in parallel, their results, and words after them: order and meaning stay."""
    anthropic = prompt(
        tools=[TOOL],
        system="be brief",
        messages=[
            {"role": "user", "content": "where"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "wait"},
                    {"type": "tool_use", "id": "c1", "name": "look", "input": {"b": 1, "a": 2}},
                    {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "here"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "there"}]},
                    {"type": "text", "text": "so?"},
                ],
            },
        ],
    )
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"b": 1, "a": 2}'}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    openai = parse_chat(
        json.dumps(
            {
                "model": "m",
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "look", "description": "looks", "parameters": {"type": "object"}},
                    }
                ],
                "messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": "where"},
                    {"role": "assistant", "content": "wait", "tool_calls": calls},
                    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "here"},
                    {"role": "tool", "tool_call_id": "c2", "name": "look", "content": "there"},
                    {"role": "user", "content": "so?"},
                ],
            }
        ).encode()
    ).ask()
    assert isinstance(openai.prompt, ChatPrompt)
    assert anthropic.messages == openai.prompt.messages
    assert list(anthropic.tools) == list(openai.prompt.tools)
    assert anthropic.places == ("system", "messages[0]", "messages[1]", "messages[2]", "messages[2]", "messages[2]")


def test_a_result_that_is_an_error_says_so_and_a_last_reply_is_continued() -> None:
    failed = {"type": "tool_result", "tool_use_id": "c", "content": "no", "is_error": True}
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    found = prompt(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [failed]},
            {"role": "assistant", "content": "It"},
        ]
    )
    assert [each.text for each in found.messages] == ["a", "", "Error: no", "It"]
    assert found.open_ended


def test_breakpoints_come_in_the_order_of_the_prompt() -> None:
    text = {"type": "text", "text": "x", "cache_control": MARK}
    assert breakpoints(
        tools=[TOOL, TOOL | {"cache_control": HOUR}],
        system=[{"type": "text", "text": "s1", "cache_control": HOUR}, {"type": "text", "text": "s2"}],
        messages=[
            {"role": "user", "content": [text, {"type": "text", "text": "y"}]},
            {"role": "assistant", "content": "z"},
            {"role": "user", "content": [text]},
        ],
    ) == [
        ("tools[1]", "1h", None),
        ("messages[0].content", "1h", "s1"),
        ("messages[1].content", "5m", "x"),
        ("messages[3].content", "5m", None),
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "look"}}, "tool_choice.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "look"}]}, "tools[0].input_schema"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]},
            "messages[0].content",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "forever"}}]}
                ]
            },
            "messages[0].content[0].cache_control.type",
        ),
        ({"system": [{"type": "text", "text": "x", "cache_control": MARK}] * 5}, "cache_control"),
        (
            {
                "system": [
                    {"type": "text", "text": "x", "cache_control": MARK},
                    {"type": "text", "text": "x", "cache_control": HOUR},
                ]
            },
            "cache_control.ttl",
        ),
        ({"tenant": "b"}, "tenant"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.field) == (400, param)
    assert param in error.message


@pytest.mark.parametrize("kind", [["pineapple"] * 9, {"a": "pineapple"}, 12345678, None, True, 0.5])
def test_i12_a_block_of_no_known_type_is_refused_by_name_and_never_quoted(kind: Any) -> None:
    error = refusal(messages=[{"role": "user", "content": [{"type": kind, "text": "hi"}]}])
    assert error.field == "messages[0].content[0].type"
    assert error.message == ("'messages[0].content[0].type': Input should be one of 'text', 'tool_use', 'tool_result'.")


def test_a_block_without_a_type_is_told_so() -> None:
    error = refusal(messages=[{"role": "user", "content": [{"text": "hi"}]}])
    assert (error.field, error.code) == ("messages[0].content[0].type", "missing_required_parameter")


def test_counting_takes_the_prompt_alone() -> None:
    assert parse_count(b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}').model == "m"
    with pytest.raises(BadRequest) as caught:
        parse_count(json.dumps(BASE).encode())
    assert caught.value.field == "max_tokens"
