"""Several answers to one request: begun together, read together, closed together, whatever ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scripted_node import run

from kvgrove_gateway.answer import Answer, AnswerPiece, Origin
from kvgrove_gateway.answer_stream import AnswerStream
from kvgrove_gateway.answers import Answers, begin_all
from kvgrove_gateway.ask import Ask, RawPrompt
from kvgrove_gateway.chat import Call
from kvgrove_gateway.errors import ApiError, Busy, NodeLost
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.output import AnswerText
from kvgrove_protocol.data import Done, Sampling, Token, Usage
from kvgrove_protocol.identity import Caller
from kvgrove_protocol.reasons import MissReason

CALLER = Identity(key_id="k", caller=Caller(tenant="t"), namespaces=None)


class Rig:
    """Answers over streams that a test fills."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.streams: dict[str, AnswerStream] = {}
        self.released: list[str] = []
        self.calls: list[Call] = []

    def answer(self, call: Call) -> Answer:
        stream = self.streams[call.id] = AnswerStream(call.id, 100)
        origin = Origin(
            namespace="n", node="node", tier="", ttft_s=0.0, prompt_tokens=10, reused=4,
            missed={MissReason.NEW: 6}, route=None, sibling=call.sibling, prefill_tokens_per_s=0.0,
        )  # fmt: skip
        text = AnswerText(chr, lambda: "", stop=[], skip=frozenset())
        made: Any = {"scored": None, "ended": lambda *_: None, "one_call": False, "prompt_text": str, "token_text": chr}
        made |= {"release": lambda: self.released.append(call.id), "metrics": self.metrics}
        return Answer(origin, Token(request_id=call.id, token_ids=[ord("a")]), stream, text, None, **made)

    async def begin(self, call: Call) -> Answer:
        await asyncio.sleep(0)
        self.calls.append(call)
        return self.answer(call)

    def end(self, name: str, reused: int = 4) -> None:
        usage = Usage(prompt=10, reused=reused, completion=1, missed={MissReason.NEW: 10 - reused})
        self.streams[name].push(Done(request_id=name, finish_reason="length", usage=usage))

    def value(self, name: str) -> float:
        found = self.metrics.registry.get_sample_value(name, {"namespace": "n"})
        return found or 0.0


def call(name: str, seed: int | None = None) -> Call:
    ask = Ask(
        model="m", prompt=RawPrompt("x"), prompt_field="prompt", limit=1, limit_field="max_tokens",
        sampling=Sampling(seed=seed),
    )  # fmt: skip
    return Call(id=name, identity=CALLER, ask=ask, arrived=0.0)


def test_answers_are_read_as_they_come_and_the_prompt_counts_once() -> None:
    async def check() -> None:
        rig = Rig()
        answers = await begin_all(rig.begin, [call("p", seed=2**63 - 1), call("q")], 2)
        assert [each.id for each in rig.calls] == ["p", "q", "p.1", "q.1"]
        assert [each.ask.sampling.seed for each in rig.calls] == [2**63 - 1, None, -(2**63), None]
        told: list[tuple[int, AnswerPiece | None]] = []

        async def read() -> None:
            told.extend([each async for each in answers.pieces()])

        reading = asyncio.create_task(read())
        for name in ("q.1", "p", "q", "p.1"):
            await asyncio.sleep(0.01)
            rig.end(name)
        await reading
        assert sorted(index for index, piece in told if piece is None) == [0, 1, 2, 3]
        assert [index for index, piece in told if piece is None] == [3, 0, 2, 1]
        assert (answers.account.usage.prompt, answers.account.usage.completion) == (20, 4)
        answers.close()
        answers.close()
        assert sorted(rig.released) == ["p", "p.1", "q", "q.1"]
        assert rig.value("kvgrove_prompt_tokens_total") == 20
        assert rig.value("kvgrove_completion_tokens_total") == 4

    run(check)


@pytest.mark.parametrize("fails", ["p", "q", "p.1", "q.1"])
def test_one_that_cannot_begin_closes_all_others(fails: str) -> None:
    async def check() -> None:
        rig = Rig()

        async def begin(asked: Call) -> Answer:
            if asked.id == fails:
                await asyncio.sleep(0.01)
                raise Busy("full")
            return await rig.begin(asked)

        with pytest.raises(ApiError):
            await begin_all(begin, [call("p"), call("q")], 2)
        assert sorted(rig.released) == sorted(rig.streams)

    run(check)


def test_a_caller_that_leaves_while_they_begin_closes_what_has_begun() -> None:
    async def check() -> None:
        rig = Rig()
        never = asyncio.Event()

        async def begin(asked: Call) -> Answer:
            if asked.id == "q":
                await never.wait()
            return await rig.begin(asked)

        beginning = asyncio.create_task(begin_all(begin, [call("p"), call("q")], 1))
        await asyncio.sleep(0.01)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        assert rig.released == ["p"]

    run(check)


async def _no_other_tasks() -> None:
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - tasks announce their end nowhere else
            await asyncio.sleep(0)


@pytest.mark.parametrize("ends", ["breaks", "leaves"])
def test_nothing_goes_on_when_one_breaks_off_or_nobody_reads(ends: str) -> None:
    async def check() -> None:
        rig = Rig()
        answers = Answers([rig.answer(call(name)) for name in ("p", "q")])
        reader: Callable[[], Awaitable[Any]] = answers.pieces().__anext__
        await reader()
        await reader()
        if ends == "breaks":
            rig.streams["q"].fail(NodeLost("gone"))
            with pytest.raises(ApiError):
                await reader()
        del reader
        answers.close()
        await _no_other_tasks()
        assert rig.value("kvgrove_prompt_tokens_total") == 20

    asyncio.run(check())
