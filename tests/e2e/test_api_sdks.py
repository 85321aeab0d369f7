"""Both official SDKs, unmodified, against a real gateway and a real daemon: text, streams, tools, usage, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from gateway_rig import PATIENCE_S, Stage, client, metrics, stage, wait_ready, wait_until
from parrot_model import ARGUMENTS, build_parrot

from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

pytestmark = pytest.mark.e2e

MINIMUM = 64
LONG = "Every tenant remembers a longer prefix after 7 days. " * 12
GREEDY = {"temperature": 0}
"""By the body: the newest SDK of Anthropic's has no argument for it."""
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
OPENAI_TOOLS: Any = [{"type": "function", "function": {"name": "look", "description": "looks", "parameters": SCHEMA}}]
ANTHROPIC_TOOLS: Any = [{"name": "look", "description": "looks", "input_schema": SCHEMA}]


@dataclass
class Api:
    stage: Stage
    base: str
    anthropic: anthropic.Anthropic

    @property
    def openai(self) -> openai.OpenAI:
        return client(self.base)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.base}{path}", json=body, headers={"x-api-key": "ann"} | headers, timeout=PATIENCE_S)

    def counted(self, name: str) -> float:
        """The sum of a counter's series."""
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? ([0-9.e+]+)$", metrics(self.base), re.MULTILINE)
        return sum(float(value) for value in found)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("sdks")
    with stage(folder) as rig:
        rig.daemon("node-0")
        base = rig.gateway("gateway-0", "--cacheable-minimum", str(MINIMUM))
        rig.wait_daemons(1)
        models = [
            ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 64 << 20}),
            ModelPlan(name="parrot", path=str(build_parrot(folder / "parrot")), pool_bytes={"host": 32 << 20}),
        ]
        rig.planner.issue(models, [], wait=False)
        rig.planner.wait_named()
        wait_ready(base)
        spaces = [
            NamespacePlan(
                uid=f"uid-{model}",
                name=f"team/{name}",
                model=model,
                tenants=["acme"],
                purge=Purge(1, b"n" * 16),
                fence=Fence(1, 1, 1),
                lease_seconds=30.0,
            )
            for name, model in (("bot", "tiny"), ("parrot", "parrot"))
        ]
        rig.planner.wait_leased(rig.planner.issue(list(rig.planner.models), spaces))
        with anthropic.Anthropic(base_url=base, api_key="ann", max_retries=0, timeout=PATIENCE_S) as made:
            yield Api(rig, base, made)


def say(text: str) -> Any:
    return [{"role": "user", "content": text}]


def openai_split(usage: Any) -> tuple[int, int, int]:
    """Prompt, cached, completion."""
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens


def anthropic_split(usage: Any) -> tuple[int, int, int]:
    made = usage.cache_creation
    assert usage.cache_creation_input_tokens == made.ephemeral_5m_input_tokens + made.ephemeral_1h_input_tokens
    prompt = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    return prompt, usage.cache_read_input_tokens, usage.output_tokens


# -- usage ---------------------------------------------------------------------------------------------------------


def test_api_01_api_02_usage_is_there_and_equal_in_every_form(api: Api) -> None:
    question = "API-02: " + LONG
    common: Any = {"model": "team/bot", "messages": say(question), "max_tokens": 5, "extra_body": GREEDY}
    cold = api.openai.chat.completions.create(**common)
    assert openai_split(cold.usage)[1] == 0  # API-01: there, and 0
    warm = openai_split(api.openai.chat.completions.create(**common).usage)
    assert warm[1] > 100
    chunks = list(api.openai.chat.completions.create(**common, stream=True, stream_options={"include_usage": True}))
    assert openai_split(chunks[-1].usage) == warm
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    plain = api.anthropic.messages.create(**common)
    assert anthropic_split(plain.usage) == warm
    with api.anthropic.messages.stream(**common) as stream:
        streamed = stream.get_final_message()
    assert anthropic_split(streamed.usage) == warm
    assert [block.text for block in streamed.content] == [block.text for block in plain.content]
    assert plain.content[0].text == cold.choices[0].message.content
    assert api.anthropic.messages.count_tokens(model="team/bot", messages=say(question)).input_tokens == warm[0]
    assert plain.model_extra["kvgrove"]["reused_tokens"] == warm[1]


def test_api_04_what_was_marked_is_written_once_and_read_afterwards(api: Api) -> None:
    """An hour's mark ahead of a five minutes' one; what is neither read nor written is the rest."""
    body: Any = {
        "model": "team/bot",
        "max_tokens": 3,
        "system": [
            {"type": "text", "text": "API-04: " + LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "text", "text": LONG},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "And not marked: " + LONG},
        ],
    }
    cold = api.anthropic.messages.create(**body).usage
    prompt, read, _ = anthropic_split(cold)
    assert read == 0
    assert cold.cache_creation.ephemeral_1h_input_tokens > 100
    assert cold.cache_creation.ephemeral_5m_input_tokens > cold.cache_creation.ephemeral_1h_input_tokens
    assert cold.input_tokens > 100
    assert cold.cache_creation_input_tokens % 32 == 0  # whole blocks are stored
    warm = api.anthropic.messages.create(**body).usage
    assert anthropic_split(warm)[:2] == (prompt, warm.cache_read_input_tokens)
    assert warm.cache_creation_input_tokens == 0
    assert warm.cache_read_input_tokens > cold.cache_creation_input_tokens  # the cache is automatic
    short = api.anthropic.messages.create(
        model="team/bot", max_tokens=1, messages=say("hm"), cache_control={"type": "ephemeral"}
    ).usage
    assert short.cache_creation_input_tokens == 0  # below the model's minimum


def test_more_than_twenty_blocks_behind_a_mark_are_still_found(api: Api) -> None:
    talk: list[Any] = [{"role": "user", "content": "Look back: " + LONG}]
    api.anthropic.messages.create(model="team/bot", max_tokens=1, messages=talk)
    for number in range(13):
        talk += [{"role": "assistant", "content": f"yes {number}"}, {"role": "user", "content": f"and {number}?"}]
    talk[-1]["content"] = [{"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}}]
    usage = api.anthropic.messages.create(model="team/bot", max_tokens=1, messages=talk).usage
    assert usage.cache_read_input_tokens > 100
    assert usage.cache_creation_input_tokens > 0


def test_an_aborted_stream_is_accounted_for_and_frees_the_node(api: Api) -> None:
    """The prompt's tokens are all reused or missed for a reason; the answer's are those that were made."""
    names = ("kvgrove_prompt_tokens_total", "kvgrove_reused_tokens_total", "kvgrove_missed_tokens_total")
    before = [api.counted(name) for name in names]
    said = api.counted("kvgrove_completion_tokens_total")
    cancelled = re.compile(r'^kvgrove_node_requests_total\{code="cancelled"[^}]*\} ([0-9.]+)$', re.MULTILINE)

    def freed() -> float:
        return sum(float(found) for found in cancelled.findall(api.stage.node_metrics("node-0")))

    gone = freed()
    prompt = api.anthropic.messages.count_tokens(model="team/bot", messages=say("Abort: " + LONG)).input_tokens
    stream = api.anthropic.messages.create(
        model="team/bot", max_tokens=1200, messages=say("Abort: " + LONG), stream=True, extra_body=GREEDY
    )
    for event in stream:
        if event.type == "content_block_delta":
            break
    stream.close()
    wait_until(lambda: freed() == gone + 1, "the node was told, between two steps")
    wait_until(lambda: api.counted("kvgrove_completion_tokens_total") > said, "the stream is accounted for")
    after = [api.counted(name) for name in names]
    total, reused, missed = (now - then for now, then in zip(after, before, strict=True))
    assert total == reused + missed == prompt
    assert 0 < api.counted("kvgrove_completion_tokens_total") - said < 1200


# -- tools ---------------------------------------------------------------------------------------------------------


def test_openai_tools_plain_and_streamed(api: Api) -> None:
    common: Any = {"model": "team/parrot", "messages": say("Look!"), "tools": OPENAI_TOOLS, "temperature": 0}
    choice = api.openai.chat.completions.create(**common).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "look", ARGUMENTS)
    chunks = list(api.openai.chat.completions.create(**common, stream=True))
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    assert {delta.index for delta in deltas} == {0}
    assert (deltas[0].function.name, deltas[0].type) == ("look", "function")
    assert json.loads("".join(delta.function.arguments or "" for delta in deltas)) == ARGUMENTS
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    told = api.openai.chat.completions.create(
        **common
        | {"messages": [*say("Look!"), choice.message, {"role": "tool", "tool_call_id": call.id, "content": "x"}]}
    )
    assert told.usage.prompt_tokens > 60
    silent = api.openai.chat.completions.create(**common | {"tool_choice": "none"}).choices[0]
    assert silent.message.tool_calls is None
    assert silent.message.content.startswith("<tool_call>")  # what it says is told as it is
    assert silent.finish_reason == "stop"


def test_anthropic_tools_plain_and_streamed_in_order(api: Api) -> None:
    common: Any = {"model": "team/parrot", "max_tokens": 50, "messages": say("Look!"), "tools": ANTHROPIC_TOOLS}
    common |= {"extra_body": GREEDY}
    plain = api.anthropic.messages.create(**common)
    (block,) = plain.content
    assert (block.type, block.name, block.input, plain.stop_reason) == ("tool_use", "look", ARGUMENTS, "tool_use")
    assert block.id.startswith("toolu_")
    kinds = [event.type for event in api.anthropic.messages.create(**common, stream=True)]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    with api.anthropic.messages.stream(**common) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == ARGUMENTS
    assert final.usage.output_tokens == plain.usage.output_tokens
    answered = [
        *say("Look!"),
        {"role": "assistant", "content": [block.model_dump(include={"type", "id", "name", "input"})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "a garden"}]},
    ]
    assert api.anthropic.messages.create(**common | {"messages": answered}).stop_reason == "tool_use"
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[2\]"):  # the field that the caller sent
        api.anthropic.messages.create(
            **common
            | {"messages": [*answered[:2], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "?"}]}]}
        )


def test_pro_04_roles_that_do_not_fit_are_refused_by_field_in_both_dialects(api: Api) -> None:
    twice = [*say("One."), *say("Two.")]
    both = [
        api.openai.chat.completions.create(model="team/bot", messages=twice, max_tokens=1).usage.prompt_tokens,
        anthropic_split(api.anthropic.messages.create(model="team/bot", messages=twice, max_tokens=1).usage)[0],
    ]
    assert both[0] == both[1]
    longer = api.anthropic.messages.count_tokens(model="team/bot", messages=[*twice, *say("Three.")]).input_tokens
    assert longer > both[0]  # appending a turn appends
    with pytest.raises(openai.BadRequestError) as caught:
        api.openai.chat.completions.create(
            model="team/parrot",
            messages=[*say("x"), {"role": "tool", "tool_call_id": "c", "content": "y"}],
        )
    assert caught.value.param == "messages[1].role"
    result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "y"}]}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[1\]"):
        api.anthropic.messages.create(model="team/parrot", max_tokens=1, system="s", messages=[*say("x"), result])
    with pytest.raises(openai.BadRequestError) as unknown:
        api.openai.chat.completions.create(model="team/bot", messages=[{"role": "narrator", "content": "x"}])
    assert unknown.value.param == "messages[0].role"


def test_a_model_without_tools_says_so_by_field(api: Api) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        api.openai.chat.completions.create(model="team/bot", messages=say("x"), tools=OPENAI_TOOLS)
    assert caught.value.param == "tools"
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        api.anthropic.messages.create(model="team/bot", max_tokens=1, messages=say("x"), tools=ANTHROPIC_TOOLS)


# -- text ----------------------------------------------------------------------------------------------------------


def test_anthropic_events_come_in_order_and_say_where_they_stopped(api: Api) -> None:
    body: Any = {"model": "team/bot", "max_tokens": 24, "messages": say("In order: " + LONG)} | GREEDY
    whole = anthropic.types.Message.model_validate(api.post("/v1/messages", body).json())
    assert whole.stop_reason == "max_tokens"
    text = whole.content[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    reply = api.post("/v1/messages", body | {"stream": True, "stop_sequences": [stop]})
    names = re.findall(r"^event: (\w+)$", reply.text, re.MULTILINE)
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}
    assert "".join(each["delta"]["text"] for each in events[3:-3]) == text[: text.index(stop)]
    begun = api.anthropic.messages.create(
        model="team/bot", max_tokens=3, messages=[*body["messages"], {"role": "assistant", "content": text[:40]}]
    )
    assert begun.usage.output_tokens > 0  # a last reply is continued


def test_several_choices_share_a_prompt_and_differ(api: Api) -> None:
    common: Any = {"model": "team/bot", "messages": say("Choose: " + LONG), "max_tokens": 12, "seed": 5, "n": 3}
    first = api.openai.chat.completions.create(**common, temperature=1.5)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    one = api.openai.chat.completions.create(**common | {"n": 1}, temperature=1.5)
    assert one.choices[0].message.content == texts[0]
    assert one.usage.prompt_tokens == first.usage.prompt_tokens  # counted once
    assert 3 <= first.usage.completion_tokens <= 36
    streamed = ["", "", ""]
    for chunk in api.openai.chat.completions.create(**common, temperature=1.5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_penalties_keep_an_answer_from_repeating_itself(api: Api) -> None:
    common: Any = {"model": "team/bot", "messages": say("Again"), "max_tokens": 40, "temperature": 0, "logprobs": True}
    answers = {}
    for penalty in (0.0, 2.0):
        reply = api.openai.chat.completions.create(**common, frequency_penalty=penalty, presence_penalty=penalty)
        answers[penalty] = [entry.token for entry in reply.choices[0].logprobs.content]
    assert len(set(answers[2.0])) > len(set(answers[0.0]))


def test_cor_11_a_prompt_s_own_log_probabilities_bypass_the_cache(api: Api) -> None:
    common: Any = {"model": "team/bot", "prompt": "COR-11 " + LONG, "max_tokens": 4, "temperature": 0, "logprobs": 2}
    cold = api.openai.completions.create(**common, echo=True)
    warm = [api.openai.completions.create(**common) for _ in range(2)][-1]
    assert warm.usage.prompt_tokens_details.cached_tokens > 100
    again = api.openai.completions.create(**common, echo=True)
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert again.model_extra["kvgrove"]["missed"] == {"bypassed": again.usage.prompt_tokens}
    assert again.choices[0].text == common["prompt"] + warm.choices[0].text
    one, other = cold.choices[0].logprobs, again.choices[0].logprobs
    assert one.tokens == other.tokens
    assert len(one.tokens) == cold.usage.prompt_tokens + 4
    assert one.token_logprobs[0] is None
    assert one.token_logprobs[1:] == pytest.approx(other.token_logprobs[1:], abs=1e-4)
    assert other.token_logprobs[-4:] == pytest.approx(warm.choices[0].logprobs.token_logprobs, abs=1e-4)
    assert "".join(one.tokens) == cold.choices[0].text
    chunks = list(api.openai.completions.create(**common, echo=True, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == again.choices[0].text


def test_completions_take_every_shape_of_prompt(api: Api) -> None:
    common: Any = {"model": "team/bot", "max_tokens": 3, "temperature": 0}
    several = api.openai.completions.create(**common, prompt=["one prompt", "two prompts"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text
    single = [api.openai.completions.create(**common, prompt=each) for each in ("one prompt", "two prompts")]
    assert several.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in single)
    assert several.choices[2].text == single[1].choices[0].text
    chunks = list(
        api.openai.completions.create(
            **common, prompt="one prompt", stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].usage == single[0].usage  # API-02
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == single[0].choices[0].text
    tokens = api.openai.completions.create(**common, prompt=[[5, 6, 7], [8, 9]])
    assert (len(tokens.choices), tokens.usage.prompt_tokens) == (2, 5)
    scored = api.openai.completions.create(model="team/bot", prompt="score me", max_tokens=0, echo=True, logprobs=0)
    assert scored.usage.completion_tokens == 0
    assert scored.choices[0].text == "score me"
    with pytest.raises(openai.BadRequestError) as caught:
        api.openai.completions.create(**common, prompt=[10**6])
    assert caught.value.param == "prompt"


# -- errors --------------------------------------------------------------------------------------------------------


def test_errors_are_in_each_dialect_s_own_shape(api: Api) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        api.anthropic.messages.create(model="team/nowhere", max_tokens=1, messages=say("x"))
    body: Any = unknown.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert body["request_id"] == unknown.value.request_id
    wrong = anthropic.Anthropic(base_url=api.base, api_key="nobody", max_retries=0)
    with wrong, pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(model="team/bot", max_tokens=1, messages=say("x"))
    outside = anthropic.Anthropic(base_url=api.base, api_key="eve", max_retries=0)
    with outside, pytest.raises(anthropic.PermissionDeniedError):
        outside.messages.create(model="team/bot", max_tokens=1, messages=say("x"))
    with pytest.raises(anthropic.BadRequestError, match="shorten the messages"):
        api.anthropic.messages.create(model="team/bot", max_tokens=1, messages=say("word " * 5000))
    assert api.post("/v1/messages/nowhere", {}).json()["error"]["type"] == "not_found_error"
    assert api.post("/v1/messages", {"model": "x" * (9 << 20)}).json()["error"]["type"] == "request_too_large"
    assert api.post("/v1/completions", {"model": "team/bot"}).json()["error"]["param"] == "prompt"
    assert api.anthropic.messages.create(model="team/bot", max_tokens=1, messages=say("x"))._request_id is not None
