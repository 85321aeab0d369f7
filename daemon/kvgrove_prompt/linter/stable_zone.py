"""What of a request ought to be the same each time: its tools, its system texts, the declared text it names.

Reads a request in OpenAI's or Anthropic's form, or the parts of an assembled one. Pure.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.roles import ROLES, SYSTEM, Message


class Zone(msgspec.Struct, frozen=True):
    """A text that ought to be stable, and what to call it: ``tools``, ``system``, ``messages[0].content``."""

    name: str
    text: str


def zones_of_request(request: object) -> list[Zone]:
    """The stable zone of a parsed JSON body; raises InvalidMessages for what is no request."""
    if not isinstance(request, Mapping):
        raise InvalidMessages("body", "must be a JSON object: a request, as its client sends it")
    messages = request.get("messages", [])
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidMessages("messages", "must be a list")
    if not messages and "system" not in request and "tools" not in request:
        raise InvalidMessages("messages", "are missing: send a chat request, as its client sends it")
    found = [Zone("tools", _dumped(request["tools"]))] if request.get("tools") else []
    if "system" in request:
        found.append(Zone("system", _text(request["system"])))
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not _leads(message.get("role")):
            break
        found.append(Zone(f"messages[{index}].content", _text(message.get("content"))))
    return found


def zones_of_messages(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Zone]:
    """The stable zone of a request that was parsed already."""
    found = [Zone("tools", _dumped(tools))] if tools else []
    for index, message in enumerate(messages):
        if not _leads(message.role):
            break
        found.append(Zone(f"messages[{index}].content", message.text))
    return found


def _leads(role: object) -> bool:
    return isinstance(role, str) and ROLES.get(role) == SYSTEM


def _dumped(tools: object) -> str:
    return json.dumps(tools, ensure_ascii=False, default=str)


def _text(content: object) -> str:
    """The words of a content, in whatever shape it came."""
    return "\n".join(_words(content))


def _words(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        yield from _words(content.get("text"))
    elif isinstance(content, Sequence):
        for each in content:
            yield from _words(each)
