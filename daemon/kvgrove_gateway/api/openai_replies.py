"""OpenAI's chat answer, plain and in chunks, with kvgrove's extension. Pure.

Both forms are made from the same facts, so that usage is the same either way (API-02); ``cached_tokens`` is there also
when it is 0 (API-01).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvgrove_gateway.route import Route
from kvgrove_protocol.data import TokenLogprob, Usage

NEVER = -9999.0
"""OpenAI's figure for a log probability that is no finite number."""


@dataclass(frozen=True)
class LogprobText:
    """A token's log probability with texts instead of ids: (text, bytes, logprob) of the token and its alternatives."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Account:
    """What a request cost and where it ran: the extension's content."""

    usage: Usage
    node: str
    tier: str
    ttft_s: float
    route: Route | None = None
    """Only for a caller who may know."""

    def usage_body(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.reused},
        }

    def extension(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "reused_tokens": self.usage.reused,
            "missed": {reason.value: count for reason, count in sorted(self.usage.missed.items())},
            "tier": self.tier,
            "ttft_s": round(self.ttft_s, 6),
            **({} if self.route is None else {"route": self.route.body()}),
        }


@dataclass(frozen=True)
class Replies:
    """The bodies of one answer."""

    id: str
    created: int
    model: str

    def plain(self, text: str, logprobs: Sequence[LogprobText] | None, finish_reason: str, account: Account) -> bytes:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None if logprobs is None else _logprobs(logprobs),
            "finish_reason": finish_reason,
        }
        body = self._head("chat.completion", [choice])
        return msgspec.json.encode(body | {"usage": account.usage_body(), "kvgrove": account.extension()})

    def first(self, *, include_usage: bool) -> bytes:
        """Names the role, before any text."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None}, None, None, include_usage)

    def text(self, text: str, logprobs: Sequence[LogprobText] | None, *, include_usage: bool) -> bytes:
        return self._chunk({"content": text}, logprobs, None, include_usage)

    def last(self, finish_reason: str, account: Account, *, include_usage: bool) -> bytes:
        """Carries the reason of the end; the extension too, where no usage chunk follows."""
        extension = {} if include_usage else {"kvgrove": account.extension()}
        return self._chunk({}, None, finish_reason, include_usage, extension)

    def usage(self, account: Account) -> bytes:
        """The closing chunk of ``stream_options.include_usage``: no choices."""
        body = self._head("chat.completion.chunk", [])
        return _event(body | {"usage": account.usage_body(), "kvgrove": account.extension()})

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: Sequence[LogprobText] | None,
        finish_reason: str | None,
        include_usage: bool,
        extension: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None if not logprobs else _logprobs(logprobs),
            "finish_reason": finish_reason,
        }
        body = self._head("chat.completion.chunk", [choice])
        if include_usage:
            body["usage"] = None  # OpenAI: present and null in all chunks but the last
        return _event(body | (extension or {}))

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


END = b"data: [DONE]\n\n"


def error_event(body: dict[str, Any]) -> bytes:
    """An error after the stream has begun: OpenAI's shape as one event."""
    return _event(body)


def models(names: Sequence[str], created: int) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_model(name, created) for name in names]})


def model(name: str, created: int) -> bytes:
    return msgspec.json.encode(_model(name, created))


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "kvgrove"}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _logprobs(entries: Sequence[LogprobText]) -> dict[str, Any]:
    return {
        "content": [
            _entry(each.token, each.logprob) | {"top_logprobs": [_entry(text, logprob) for text, logprob in each.top]}
            for each in entries
        ],
        "refusal": None,
    }


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, NEVER), "bytes": list(text.encode())}


def with_text(entry: TokenLogprob, texts: dict[int, str]) -> LogprobText:
    """``entry`` with the texts of its ids, which ``texts`` must have."""
    return LogprobText(
        token=texts[entry.token_id],
        logprob=entry.logprob,
        top=tuple((texts[token_id], logprob) for token_id, logprob in entry.top),
    )
