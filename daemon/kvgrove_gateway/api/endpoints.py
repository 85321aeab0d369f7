"""The three ways to ask for text, each as one value: how a body is read, and how answers are told.

What lies between the two is the same for all of them (`answers`, `chat`).
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from kvgrove_gateway.answers import Answers
from kvgrove_gateway.api.anthropic import parse_message
from kvgrove_gateway.api.anthropic_replies import MessageReplies
from kvgrove_gateway.api.completion_replies import CompletionReplies
from kvgrove_gateway.api.completions import parse_completion
from kvgrove_gateway.api.openai import parse_chat
from kvgrove_gateway.api.openai_replies import ChatReplies
from kvgrove_gateway.ask import Ask


class Replies(Protocol):
    """Answers in a dialect."""

    async def whole(self, answers: Answers) -> bytes:
        """One body; raises ApiError if an answer breaks off."""

    def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """Server-sent events; an answer that breaks off ends in one that says so."""


@dataclass(frozen=True)
class Parsed:
    """A checked request."""

    asks: tuple[Ask, ...]
    """One for each prompt."""
    choices: int
    """Answers to each of them."""
    stream: bool
    replies: Callable[[str, int], Replies]
    """By the answer's id and the time, in seconds since 1970."""


@dataclass(frozen=True)
class Endpoint:
    id_prefix: str
    parse: Callable[[bytes], Parsed]
    """Raises BadRequest."""


def _chat(body: bytes) -> Parsed:
    request = parse_chat(body)

    def replies(call_id: str, now: int) -> Replies:
        return ChatReplies(call_id, now, request.model, include_usage=request.include_usage, logprobs=request.logprobs)

    return Parsed((request.ask(),), request.n, request.stream, replies)


def _completions(body: bytes) -> Parsed:
    request = parse_completion(body)

    def replies(call_id: str, now: int) -> Replies:
        return CompletionReplies(
            call_id,
            now,
            request.model,
            include_usage=request.include_usage,
            logprobs=request.logprobs is not None,
            echo=request.echo,
        )

    return Parsed(tuple(request.asks()), request.n, request.stream, replies)


def _messages(body: bytes) -> Parsed:
    request = parse_message(body)
    return Parsed((request.ask(),), 1, request.stream, lambda call_id, _now: MessageReplies(call_id, request.model))


CHAT = Endpoint("chatcmpl-", _chat)
COMPLETIONS = Endpoint("cmpl-", _completions)
MESSAGES = Endpoint("msg_", _messages)
