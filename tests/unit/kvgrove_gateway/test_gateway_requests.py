"""The request model is closed: what is accepted works, the rest is refused by name."""

import json
from typing import Any

import pytest

from kvgrove_gateway.api.openai import parse_chat
from kvgrove_gateway.errors import BadRequest

BASE: dict[str, Any] = {"model": "team/bot", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any) -> Any:
    return parse_chat(json.dumps(BASE | fields).encode())


def refusal(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    return caught.value


def test_every_accepted_field_is_carried() -> None:
    request = parse(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
            {"role": "user", "content": ""},
        ],
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=-3,
        stop="END",
        n=1,
        logprobs=True,
        top_logprobs=2,
        user="whoever",
        kvgrove={"prefix": "rules", "documents": ["b", "a"], "session": "s"},
    )
    assert [message.text for message in request.ask().prompt.messages] == ["be brief", "a\nb", "c", ""]
    assert request.include_usage
    assert request.ask().limit == 7
    assert (request.temperature, request.top_p, request.seed) == (0, 0.5, -3)
    assert request.stop == ["END"]
    assert (request.logprobs, request.top_logprobs) == (True, 2)
    assert (request.kvgrove.prefix, request.kvgrove.documents, request.kvgrove.session) == ("rules", ["b", "a"], "s")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"store": True}, "store"),
        ({"prompt_cache_key": "x"}, "prompt_cache_key"),
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": 3}, "stop"),
        ({"seed": "1"}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "x", "tenant": "b"}]}, "messages[0].tenant"),
        ({"kvgrove": {"tenant": "b"}}, "kvgrove.tenant"),
        ({"kvgrove": {"documents": "a"}}, "kvgrove.documents"),
        ({"kvgrove": {"session": ""}}, "kvgrove.session"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "{{ x }}"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"bool": {"bool": 1}}}, "chat_template_kwargs.bool"),
        ({"chat_template_kwargs": {"enable_thinking": [1]}}, "chat_template_kwargs.enable_thinking"),
        ({"tenant": "b"}, "tenant"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert error.field == param
    assert param in error.message
    assert error.status == 400


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "text2", "text": "hi"},
        {"type": "", "text": "hi"},
        {"type": "image_url", "text": "the same words as a text part"},
    ],
)
def test_cor_08_a_part_that_is_no_text_is_refused_by_name_and_never_left_out(part: dict[str, Any]) -> None:
    text = {"type": "text", "text": "What does the picture show?"}
    assert parse(messages=[{"role": "user", "content": [text]}]).ask().prompt.messages[0].text == text["text"]  # warm
    error = refusal(messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": [text, part]}])
    assert (error.status, error.code) == (400, "unsupported_content")
    assert error.field == "messages[1].content[1].type"
    assert "AAAA" not in error.message


@pytest.mark.parametrize(
    ("name", "value"), [("echo", True), ("prompt_logprobs", 0), ("prompt_logprobs", 5), ("prompt_logprobs", True)]
)
def test_cor_11_what_is_asked_about_the_prompts_own_tokens_is_refused_by_name(name: str, value: object) -> None:
    error = refusal(**{name: value})
    assert (error.status, error.field, error.code) == (400, name, "unsupported_parameter")


@pytest.mark.parametrize("fields", [{"echo": False}, {"echo": None}, {"prompt_logprobs": None}])
def test_cor_11_asking_for_nothing_about_the_prompt_is_taken(fields: dict[str, object]) -> None:
    assert parse(**fields).model == "team/bot"


def test_refusals_never_quote_the_value() -> None:
    assert "secret" not in refusal(temperature="secret").message
    assert "secret" not in refusal(messages=[{"role": "secret", "content": "x"}]).message


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None},
        {"response_format": {"type": "text"}},
        {"frequency_penalty": 0, "presence_penalty": 0.0},
        {"logit_bias": {}},
        {"temperature": None, "seed": None, "stop": None, "stream_options": None},
    ],
)
def test_values_that_say_nothing_are_taken(fields: dict[str, Any]) -> None:
    assert parse(**fields).model == "team/bot"


def test_false_is_not_a_zero_penalty() -> None:
    assert refusal(frequency_penalty=False).field == "frequency_penalty"


@pytest.mark.parametrize("name", ["model", "messages"])
def test_missing_fields_are_named(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(json.dumps({key: value for key, value in BASE.items() if key != name}).encode())
    assert (caught.value.field, caught.value.code) == (name, "missing_required_parameter")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"nul", b'{"model": \xff}', b'{"model": NaN}', b"[" * 100_000, b'{"model": "\\ud800"}', b"\x00"],
)
def test_broken_json_is_a_400(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(body)
    assert caught.value.status == 400
