"""What is to be explained: one or two request bodies in either dialect, as prompts to assemble. Pure.

Each is read by the parser that serves it. A body does not say which API it is for: a raw ``prompt`` is a completion's,
and Anthropic's are told by what only they have; whatever both could be means the same to both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from kvgrove_gateway.api.anthropic import parse_count, parse_message
from kvgrove_gateway.api.body import check, read_object
from kvgrove_gateway.api.completions import parse_completion
from kvgrove_gateway.api.openai import parse_chat
from kvgrove_gateway.ask import Ask
from kvgrove_gateway.errors import BadRequest
from kvgrove_protocol.identity import Caller

MAX_REQUESTS = 2
_ANTHROPIC_ONLY = frozenset({"system", "stop_sequences", "anthropic_version", "thinking"})
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "document"})


@dataclass(frozen=True, repr=False)
class AskedPrompt:
    """One request body: as it came, and as it is served. Has no ``repr``: it holds prompt text (I12)."""

    body: Mapping[str, Any]
    ask: Ask


@dataclass(frozen=True)
class Asked:
    prompts: tuple[AskedPrompt, ...]
    callers: tuple[Caller | None, ...]
    """On whose behalf each is explained; None: the caller's own."""


class OnBehalfOf(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: str = Field(min_length=1, max_length=256)
    user: str | None = Field(None, max_length=256)
    scopes: list[str] = Field([], max_length=256)


class ExplainRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    requests: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_REQUESTS)
    callers: list[OnBehalfOf | None] = Field([], max_length=MAX_REQUESTS)


def parse_asked(body: bytes, *, on_behalf: bool) -> Asked:
    """``{"requests": [A, B?], "callers": [...]?}``; ``callers`` only where ``on_behalf``.

    Raises BadRequest, naming the field and never quoting its value.
    """
    envelope = check(ExplainRequest, read_object(body))
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
        return AskedPrompt(fields, _ask(fields))
    except BadRequest as error:
        field = f"{path}.{error.field}" if error.field else path
        raise BadRequest(f"{path}: {error.message}", field=field, code=error.code) from None


def _ask(fields: Mapping[str, Any]) -> Ask:
    body = msgspec.json.encode(fields)
    if "prompt" in fields and "messages" not in fields:
        asks = parse_completion(body).asks()
        if len(asks) != 1:
            raise BadRequest("'prompt': one prompt at a time can be explained.", field="prompt")
        return asks[0]
    if is_anthropic(fields):
        return (parse_message(body) if "max_tokens" in fields else parse_count(body)).ask()
    return parse_chat(body).ask()


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
            if isinstance(part, Mapping) and ("cache_control" in part or str(part.get("type")) in _ANTHROPIC_BLOCKS):
                return True
    return False
