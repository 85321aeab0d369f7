"""What is to be explained: one or two request bodies in either dialect, as prompts to assemble. Pure.

OpenAI's chat bodies are read by the parser that serves them. Anthropic's are told by what only they have, and taken for
the chat they stand for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvgrove_gateway.api.openai import ChatRequest, parse_chat
from kvgrove_gateway.errors import BadRequest
from kvgrove_prompt.assembly import Message
from kvgrove_protocol.identity import Caller

MAX_REQUESTS = 2
_ANTHROPIC_ONLY = frozenset({"system", "stop_sequences", "anthropic_version", "thinking", "top_k"})
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "document"})


@dataclass(frozen=True)
class AskedPrompt:
    """One request body: as it came, and as it is served."""

    body: Mapping[str, Any]
    request: ChatRequest

    @property
    def messages(self) -> list[Message]:
        return [Message(role=each.role, content=each.text) for each in self.request.messages]


@dataclass(frozen=True)
class Asked:
    prompts: tuple[AskedPrompt, ...]
    callers: tuple[Caller | None, ...]
    """On whose behalf each is explained; None: the caller's own."""


class _CallerFields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: str = Field(min_length=1, max_length=256)
    user: str | None = Field(None, max_length=256)
    scopes: list[str] = Field([], max_length=256)


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    requests: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_REQUESTS)
    callers: list[_CallerFields | None] = Field([], max_length=MAX_REQUESTS)


def parse_asked(body: bytes, *, on_behalf: bool) -> Asked:
    """``{"requests": [A, B?], "callers": [...]?}``; ``callers`` only where ``on_behalf``.

    Raises BadRequest, naming the field and never quoting its value.
    """
    try:
        envelope = _Envelope.model_validate(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("The body is not valid JSON.", code="invalid_json") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(str(part)[:64] for part in first["loc"])
        raise BadRequest(f"'{field or 'body'}': {first['msg']}.", field=field or None) from None
    if envelope.callers and not on_behalf:
        raise BadRequest("'callers' is for operators: leave it out.", field="callers", code="unknown_parameter")
    if envelope.callers and len(envelope.callers) != len(envelope.requests):
        raise BadRequest("'callers' must have one entry for each of 'requests'.", field="callers")
    callers = [
        None if each is None else Caller(tenant=each.tenant, user=each.user, scopes=tuple(sorted(set(each.scopes))))
        for each in envelope.callers
    ]
    return Asked(
        tuple(parse_prompt(each, f"requests[{at}]") for at, each in enumerate(envelope.requests)),
        tuple(callers) or (None,) * len(envelope.requests),
    )


def parse_prompt(fields: Mapping[str, Any], path: str) -> AskedPrompt:
    """One body; raises BadRequest whose field begins with ``path``."""
    try:
        chat = _as_chat(fields) if is_anthropic(fields) else fields
        return AskedPrompt(fields, parse_chat(msgspec.json.encode(chat)))
    except BadRequest as error:
        field = f"{path}.{error.field}" if error.field else path
        raise BadRequest(f"{path}: {error.message}", field=field, code=error.code) from None


def is_anthropic(fields: Mapping[str, Any]) -> bool:
    """Whether a body can only be one of Anthropic's messages API."""
    if not _ANTHROPIC_ONLY.isdisjoint(fields):
        return True
    tools = fields.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, Mapping) and "input_schema" in tool for tool in tools):
        return True
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and ("cache_control" in part or part.get("type") in _ANTHROPIC_BLOCKS):
                return True
    return False


def _as_chat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same prompt as a chat body: the system text leads, cache marks say nothing about tokens."""
    system = fields.get("system")
    messages = fields.get("messages")
    lead = [] if system in (None, "", []) else [{"role": "system", "content": _without_marks(system)}]
    rest = [
        {**message, "content": _without_marks(message.get("content"))} if isinstance(message, Mapping) else message
        for message in (messages if isinstance(messages, list) else [])
    ]
    chat = {name: fields[name] for name in ("model", "max_tokens", "kvgrove", "tools") if name in fields}
    return chat | {"messages": [*lead, *rest]}


def _without_marks(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {name: value for name, value in part.items() if name != "cache_control"} if isinstance(part, Mapping) else part
        for part in content
    ]
