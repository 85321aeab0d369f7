"""Anthropic's messages, plain and as events, and its usage. Pure but for reading the answer.

``input_tokens + cache_creation_input_tokens + cache_read_input_tokens`` is the whole prompt, and the two classes add up
to ``cache_creation_input_tokens`` (API-04). What is read is what was reused, marked or not: the cache is automatic.
What is written is counted up to the caller's last breakpoint, as they asked for it (see `account.written`).
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from kvgrove_gateway.account import Account, written
from kvgrove_gateway.answer import Answer, AnswerPiece
from kvgrove_gateway.answers import Answers
from kvgrove_gateway.errors import ApiError
from kvgrove_prompt.assembly import ToolCall

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""HTTP status -> Anthropic's error type; any other is ``api_error``."""

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@dataclass(frozen=True)
class MessageReplies:
    """The bodies of one answer."""

    id: str
    model: str

    async def whole(self, answers: Answers) -> bytes:
        """All of it in one body. Raises ApiError if the answer breaks off."""
        content: list[dict[str, Any]] = []
        async for _, piece in answers.pieces():
            if piece is None:
                continue
            if piece.call is not None:
                content.append(_tool_use(piece.call) | {"input": msgspec.json.decode(piece.call.arguments)})
            elif piece.text and content and content[-1]["type"] == "text":
                content[-1]["text"] += piece.text
            elif piece.text:
                content.append({"type": "text", "text": piece.text})
        answer = answers.first
        body = self._message(content, answers.account)
        return msgspec.json.encode(
            body
            | {
                "stop_reason": _stop_reason(answer),
                "stop_sequence": answer.stopped_by,
                "kvgrove": answers.account.extension(),
            }
        )

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """In Anthropic's order: message_start, the blocks with their deltas one by one, message_delta, message_stop.

        An error travels as an event: the status line is long gone.
        """
        yield _event("message_start", message=self._message([], answers.account))
        yield _event("ping")
        blocks = _Blocks()
        try:
            async for _, piece in answers.pieces():
                if piece is not None:
                    for event in blocks.take(piece):
                        yield event
        except ApiError as error:
            yield _event("error", error=_error(error.status, error.message))
            return
        for event in blocks.end():
            yield event
        answer = answers.first
        yield _event(
            "message_delta",
            delta={"stop_reason": _stop_reason(answer), "stop_sequence": answer.stopped_by},
            usage=usage_body(answers.account),
            kvgrove=answers.account.extension(),
        )
        yield _event("message_stop")

    def _message(self, content: list[dict[str, Any]], account: Account) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_body(account),
        }


@dataclass
class _Blocks:
    """Content blocks of a stream: at most one is open."""

    index: int = -1
    in_text: bool = False

    def take(self, piece: AnswerPiece) -> Iterator[bytes]:
        if piece.call is not None:
            yield from self.end()
            self.index += 1
            yield _event("content_block_start", index=self.index, content_block=_tool_use(piece.call) | {"input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": piece.call.arguments})
            yield _event("content_block_stop", index=self.index)
        elif piece.text:
            if not self.in_text:
                self.index, self.in_text = self.index + 1, True
                yield _event("content_block_start", index=self.index, content_block={"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})

    def end(self) -> Iterator[bytes]:
        if self.in_text:
            self.in_text = False
            yield _event("content_block_stop", index=self.index)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self.index, delta=delta)


def usage_body(account: Account) -> dict[str, Any]:
    usage, kept = account.usage, written(account.usage, account.marks)
    return {
        "input_tokens": usage.prompt - usage.reused - kept.total,
        "cache_creation_input_tokens": kept.total,
        "cache_read_input_tokens": usage.reused,
        "cache_creation": {"ephemeral_5m_input_tokens": kept.short, "ephemeral_1h_input_tokens": kept.long},
        "output_tokens": usage.completion,
        "service_tier": "standard",
    }


def error_body(status: int, message: str, request_id: str) -> dict[str, Any]:
    return {"type": "error", "error": _error(status, message), "request_id": request_id}


def token_count(tokens: int) -> bytes:
    return msgspec.json.encode({"input_tokens": tokens})


def _error(status: int, message: str) -> dict[str, str]:
    return {"type": KINDS.get(status, "api_error"), "message": message}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _stop_reason(answer: Answer) -> str:
    return "stop_sequence" if answer.stopped_by is not None else STOP_REASONS[answer.finish_reason]


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind} | fields) + b"\n\n"
