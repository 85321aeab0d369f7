"""Tool calls out of an answer's text, in the formats whose chat templates are known.

===========  =======================================================  ==================================
format       a call reads                                             known by its template's
===========  =======================================================  ==================================
hermes       ``<tool_call>{"name": n, "arguments": {}}</tool_call>``  ``<tool_call>`` (Hermes, Qwen)
llama3_json  the whole answer is ``{"name": n, "parameters": {}}``    ``"parameters"`` in Llama 3's turns
mistral      ``[TOOL_CALLS][{"name": n, "arguments": {}}]``           ``[TOOL_CALLS]``
===========  =======================================================  ==================================

A call is told when it is complete. What looks like one and cannot be read stays text, to the last character: nothing
of an answer is lost. Text is held back only while it may belong to a call. Pure but for the ids of calls.
"""

import json
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from kvgrove_prompt.assembly import ToolCall

Told: TypeAlias = str | ToolCall


class ToolFormat(StrEnum):
    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"


MARKERS = {
    ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
    ToolFormat.LLAMA3_JSON: ("<|python_tag|>",),
    ToolFormat.MISTRAL: ("[TOOL_CALLS]",),
}
"""What a call's text holds and a decoder may leave out, being a special token."""

_OTHER_WAYS = ("<function=", "[ARGS]", "[CALL_ID]")
"""Templates with these write calls in ways that share a marker with the known ones and are not read here."""

MISTRAL_ID_CHARS = 9
"""Mistral's templates take no other ids."""


def tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template asks for; None if it is none of those known."""
    if any(way in template for way in _OTHER_WAYS):
        return None
    if "<tool_call>" in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL
    if '"parameters"' in template and "<|eot_id|>" in template:
        return ToolFormat.LLAMA3_JSON
    return None


class ToolReader(Protocol):
    """Reads one answer."""

    def add(self, text: str) -> list[Told]:
        """Take more text; returns what is certain by now, in order."""
        ...

    def finish(self) -> list[Told]:
        """The rest, once no text follows."""
        ...


def tool_reader(kind: ToolFormat, new_id: Callable[[], str], prefix: str) -> ToolReader:
    """``new_id``: unique lower-case hex. ``prefix``: what the dialect's ids begin with."""
    match kind:
        case ToolFormat.HERMES:
            return HermesReader(lambda: prefix + new_id())
        case ToolFormat.LLAMA3_JSON:
            return Llama3Reader(lambda: prefix + new_id())
        case ToolFormat.MISTRAL:
            return MistralReader(lambda: new_id()[-MISTRAL_ID_CHARS:])


class HermesReader:
    OPEN, CLOSE = MARKERS[ToolFormat.HERMES]

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._held = ""
        self._gap = ""
        """Blanks before the call that is being read."""
        self._inside = self._called = False

    def add(self, text: str) -> list[Told]:
        told: list[Told] = []
        searched = max(len(self._held) - len(self.CLOSE), 0)
        self._held += text
        while True:
            if self._inside:
                end = self._held.find(self.CLOSE, searched)
                if end < 0:
                    return told
                told += self._read(self._held[:end], self.CLOSE)
                self._held, self._inside = self._held[end + len(self.CLOSE) :], False
            start = self._held.find(self.OPEN)
            if start < 0:
                return told + self._certain()
            said = self._held[:start].rstrip()
            told += [said] if said else []
            self._gap = self._held[len(said) : start]
            self._held, self._inside, searched = self._held[start + len(self.OPEN) :], True, 0

    def finish(self) -> list[Told]:
        held, self._held = self._held, ""
        if self._inside:  # the model ended its turn in place of closing the call
            return self._read(held, "")
        return [held] if held and not (self._called and held.isspace()) else []

    def _read(self, body: str, close: str) -> list[Told]:
        call = _call_of(_json(body), self._new_id)
        self._called = self._called or call is not None
        return [self._gap + self.OPEN + body + close if call is None else call]

    def _certain(self) -> list[Told]:
        """All but what may be the beginning of a call, with the blanks before it."""
        kept = len(self._held) - _possible(self._held, self.OPEN)
        said = self._held[:kept].rstrip()
        self._held = self._held[len(said) :]
        return [said] if said else []


class Llama3Reader:
    TAG = MARKERS[ToolFormat.LLAMA3_JSON][0]

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._held = ""
        self._plain: bool | None = None
        """Whether the answer is ordinary text; None while that is open."""

    def add(self, text: str) -> list[Told]:
        self._held += text
        if self._plain is None and (begun := self._held.lstrip()):
            if begun[0] == "{" or begun.startswith(self.TAG):
                self._plain = False
            elif not self.TAG.startswith(begun):
                self._plain = True
        return self._all() if self._plain else []

    def finish(self) -> list[Told]:
        found = [_call_of(each, self._new_id) for each in _objects(self._held.strip().removeprefix(self.TAG))]
        calls = [call for call in found if call is not None]
        return [*calls] if calls and len(calls) == len(found) and not self._plain else self._all()

    def _all(self) -> list[Told]:
        text, self._held = self._held, ""
        return [text] if text else []


class MistralReader:
    MARKER = MARKERS[ToolFormat.MISTRAL][0]

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._held = ""
        self._calling = False

    def add(self, text: str) -> list[Told]:
        self._held += text
        if self._calling:
            return []
        start = self._held.find(self.MARKER)
        self._calling = start >= 0
        certain = start if self._calling else len(self._held) - _possible(self._held, self.MARKER)
        said, self._held = self._held[:certain], self._held[certain:]
        return [said] if said else []

    def finish(self) -> list[Told]:
        held, self._held = self._held, ""
        listed = _json(held.removeprefix(self.MARKER)) if self._calling else None
        found = [_call_of(each, self._new_id) for each in listed] if isinstance(listed, list) else []
        calls = [call for call in found if call is not None]
        if calls and len(calls) == len(found):
            return [*calls]
        return [held] if held else []


def _possible(text: str, marker: str) -> int:
    """Length of the longest tail of ``text`` that ``marker`` begins with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def _call_of(value: Any, new_id: Callable[[], str]) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return ToolCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False), id=new_id())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _objects(text: str) -> Iterator[Any]:
    """JSON values one after the other, with ``;`` or blanks between; None for what is none, which is the last."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        while position < len(text) and (text[position] == ";" or text[position].isspace()):
            position += 1
