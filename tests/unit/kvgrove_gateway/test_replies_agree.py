"""API-02: streamed or not, in each dialect, an answer says the same: text, calls, reason of the end, usage."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
from scripted_node import run

from kvgrove_gateway.account import Mark
from kvgrove_gateway.answer import Answer, Origin
from kvgrove_gateway.answer_stream import AnswerStream
from kvgrove_gateway.answers import Answers
from kvgrove_gateway.api.anthropic_replies import MessageReplies
from kvgrove_gateway.api.openai_replies import ChatReplies
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.output import AnswerText
from kvgrove_gateway.tool_calls import ToolFormat, tool_reader
from kvgrove_protocol.data import Done, Token, TokenLogprob, Usage
from kvgrove_protocol.reasons import MissReason

WORDS = [
    "a", " b", "\n", "STOP", "ST", "é", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"x": 1}}', "{", " ",
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
]  # fmt: skip


def answers(tokens: list[int], *, tools: bool, one_call: bool) -> Answers:
    stream = AnswerStream("r", 1000)
    usage = Usage(prompt=100, reused=32, completion=len(tokens), missed={MissReason.NEW: 68})
    for token in tokens[1:]:
        stream.push(Token(request_id="r", token_ids=[token], logprobs=[TokenLogprob(token, -1.0)]))
    stream.push(Done(request_id="r", finish_reason="stop", usage=usage))
    numbers = itertools.count()
    origin = Origin(
        namespace="n", node="node", tier="host", ttft_s=0.0, prefill_tokens_per_s=0.0, prompt_tokens=100, reused=32,
        missed=usage.missed, route=None, marks=(Mark(64, "1h"), Mark(96, "5m")),
    )  # fmt: skip
    made: Any = {"scored": None, "one_call": one_call, "prompt_text": str, "token_text": WORDS.__getitem__}
    made |= {"release": lambda: None, "metrics": Metrics(), "ended": lambda *_: None}
    text = AnswerText(WORDS.__getitem__, lambda: "", stop=["STOP"], skip=frozenset())
    reader = tool_reader(ToolFormat.HERMES, lambda: f"{next(numbers):024x}", "c_") if tools else None
    first = Token(request_id="r", token_ids=tokens[:1], logprobs=[TokenLogprob(tokens[0], -1.0)])
    return Answers([Answer(origin, first, stream, text, reader, **made)])


def openai_folded(events: list[bytes]) -> dict[str, Any]:
    assert events[-1] == b"data: [DONE]\n\n"
    chunks = [json.loads(each.removeprefix(b"data: ")) for each in events[:-1]]
    text, calls, reasons, logprobs = "", {}, [], []
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        assert chunk["usage"] is None
        text += choice["delta"].get("content") or ""
        logprobs += (choice["logprobs"] or {}).get("content", [])
        for delta in choice["delta"].get("tool_calls", []):
            call = calls.setdefault(delta["index"], {"id": delta.get("id"), "name": "", "arguments": ""})
            call["name"] += delta["function"].get("name", "")
            call["arguments"] += delta["function"]["arguments"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert chunks[-1]["choices"] == []
    return {
        "text": text,
        "calls": list(calls.values()),
        "reasons": reasons,
        "usage": chunks[-1]["usage"],
        "lp": logprobs,
    }


def openai_plain(body: dict[str, Any]) -> dict[str, Any]:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [{"id": each["id"]} | each["function"] for each in message.get("tool_calls", [])]
    reasons = [choice["finish_reason"]]
    found = {"text": message["content"] or "", "calls": calls, "reasons": reasons, "usage": body["usage"]}
    return found | {"lp": choice["logprobs"]["content"]}


def anthropic_folded(events: list[bytes]) -> dict[str, Any]:
    told = [json.loads(re.sub(rb"^event: \w+\ndata: ", b"", each)) for each in events]
    assert [each["type"] for each in told[:2]] == ["message_start", "ping"]
    assert [each["type"] for each in told[-2:]] == ["message_delta", "message_stop"]
    blocks: list[Any] = []
    is_open = False
    for each in told[2:-2]:
        assert each["index"] == len(blocks) - (each["type"] != "content_block_start")
        if each["type"] == "content_block_start":
            assert not is_open
            is_open = True
            blocks.append(each["content_block"] | {"input_text": ""})
        elif each["type"] == "content_block_delta" and "text" in each["delta"]:
            blocks[-1]["text"] += each["delta"]["text"]
        elif each["type"] == "content_block_delta":
            blocks[-1]["input_text"] += each["delta"]["partial_json"]
        else:
            is_open = False
    assert not is_open
    for block in blocks:
        inputs = block.pop("input_text")
        if block["type"] == "tool_use":
            block["input"] = json.loads(inputs)
    return {"content": blocks, "usage": told[-2]["usage"]} | told[-2]["delta"]


@pytest.mark.parametrize("tools", [False, True])
def test_api_02_streamed_and_plain_answers_say_the_same(tools: bool) -> None:
    draw = random.Random(2)

    async def check() -> None:
        for number in range(250):
            tokens = draw.choices(range(len(WORDS)), k=draw.randint(1, 9))
            options: Any = {"tools": tools, "one_call": number % 3 == 0}
            replies = ChatReplies("id", 1, "m", include_usage=True, logprobs=True)
            plain = openai_plain(json.loads(await replies.whole(answers(tokens, **options))))
            streamed = openai_folded([each async for each in replies.events(answers(tokens, **options))])
            assert streamed == plain
            messages = MessageReplies("id", "m")
            message = json.loads(await messages.whole(answers(tokens, **options)))
            folded = anthropic_folded([each async for each in messages.events(answers(tokens, **options))])
            assert folded == {name: message[name] for name in folded}
            said = "".join(block["text"] for block in message["content"] if block["type"] == "text")
            calls = [block for block in message["content"] if block["type"] == "tool_use"]
            assert (said, len(calls)) == (plain["text"], len(plain["calls"]))
            assert (message["stop_reason"] == "stop_sequence") == (message["stop_sequence"] is not None)
            assert message["usage"]["output_tokens"] == plain["usage"]["completion_tokens"]
            if options["one_call"]:
                assert len(calls) <= 1

    run(check)
