"""OpenAI's chat answers, plain and in chunks, with kvgrove's extension. Pure but for reading the answers.

Both forms are made from the same facts, so that usage is the same either way (API-02); ``cached_tokens`` is there also
when it is 0 (API-01).
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvgrove_gateway.account import Account
from kvgrove_gateway.answer import AnswerPiece, LogprobText
from kvgrove_gateway.answers import Answers
from kvgrove_gateway.errors import ApiError
from kvgrove_prompt.assembly import ToolCall

NEVER = -9999.0
"""OpenAI's figure for a log probability that is no finite number."""

END = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ChatReplies:
    """The bodies of one request's answers."""

    id: str
    created: int
    model: str
    include_usage: bool
    """A chunk with the usage closes the stream."""
    logprobs: bool

    async def whole(self, answers: Answers) -> bytes:
        """All of it in one body. Raises ApiError if an answer breaks off."""
        texts: list[list[AnswerPiece]] = [[] for _ in answers.all]
        async for index, piece in answers.pieces():
            if piece is not None:
                texts[index].append(piece)
        choices = [
            {
                "index": index,
                "message": _message(pieces),
                "logprobs": _logprobs([each for piece in pieces for each in piece.logprobs]) if self.logprobs else None,
                "finish_reason": answers.all[index].finish_reason,
            }
            for index, pieces in enumerate(texts)
        ]
        body = self._head("chat.completion", choices)
        account = answers.account
        return msgspec.json.encode(body | {"usage": usage_body(account), "kvgrove": account.extension()})

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """Chunk by chunk: for each choice a role, texts, a reason of the end; then the usage if asked for, and the end.

        An error travels as an event: the status line is long gone.
        """
        for index in range(len(answers.all)):
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})
        left, calls = len(answers.all), [0] * len(answers.all)
        try:
            async for index, piece in answers.pieces():
                if piece is not None and piece.call is not None:
                    for call in _call_deltas(piece.call, calls[index]):
                        yield self._chunk(index, {"tool_calls": [call]})
                    calls[index] += 1
                    continue
                if piece is not None:
                    yield self._chunk(index, {"content": piece.text}, piece.logprobs if self.logprobs else ())
                    continue
                left -= 1
                closing = not left and not self.include_usage
                extension = {"kvgrove": answers.account.extension()} if closing else {}
                yield self._chunk(index, {}, finish_reason=answers.all[index].finish_reason, more=extension)
        except ApiError as error:
            yield event(error.body())
            return
        if self.include_usage:
            account = answers.account
            body = self._head("chat.completion.chunk", [])
            yield event(body | {"usage": usage_body(account), "kvgrove": account.extension()})
        yield END

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[LogprobText] = (),
        *,
        finish_reason: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        body = self._head("chat.completion.chunk", [choice])
        if self.include_usage:
            body["usage"] = None  # OpenAI: present and null in all chunks but the last
        return event(body | (more or {}))

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _message(pieces: Sequence[AnswerPiece]) -> dict[str, Any]:
    text = "".join(piece.text for piece in pieces)
    calls = [piece.call for piece in pieces if piece.call is not None]
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _call_deltas(call: ToolCall, number: int) -> Iterator[dict[str, Any]]:
    """Who is called, then with what."""
    function = {"name": call.name, "arguments": ""}
    yield {"index": number, "id": call.id, "type": "function", "function": function}
    yield {"index": number, "function": {"arguments": call.arguments}}


def usage_body(account: Account) -> dict[str, Any]:
    usage = account.usage
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.reused},
    }


def event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def models(names: Sequence[str], created: int) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_model(name, created) for name in names]})


def model(name: str, created: int) -> bytes:
    return msgspec.json.encode(_model(name, created))


def finite(logprob: float) -> float:
    return max(logprob, NEVER)


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "kvgrove"}


def _logprobs(entries: Sequence[LogprobText]) -> dict[str, Any]:
    return {
        "content": [
            _entry(each.token, each.logprob) | {"top_logprobs": [_entry(text, logprob) for text, logprob in each.top]}
            for each in entries
        ],
        "refusal": None,
    }


def _entry(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": NEVER if logprob is None else finite(logprob), "bytes": list(text.encode())}
