"""What differs between two request bodies, block by block: what appeared, went, moved or changed (PRO-09). Pure.

A body is taken apart into *blocks* that a client composes a prompt from: tools, system texts, and the parts of each
message, in either dialect. Blocks are matched by content first, so that one that only stands elsewhere is named as
moved; then tools by name, and what is left by its place. Contents are compared, never repeated here.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from kvgrove_gateway.explain.report import Change

MAX_CHANGES = 64
"""More are not listed: prompts that differ in so much have little in common."""

MAX_NAME = 64


class Block(NamedTuple):
    path: str
    what: str
    content: bytes
    """Canonical."""
    place: tuple[str, int]
    """Within its kind: blocks of one kind and place are two states of one thing."""


class _Part(NamedTuple):
    suffix: str
    number: int
    value: Any


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Change]:
    """In the order of the second body, then what is gone; a message that only follows the others is no change."""
    a, b = list(blocks(one)), list(blocks(other))
    partners = _partners(a, b)
    taken = set(partners.values())
    kept = _in_order([partners[at] for at in range(len(b)) if at in partners])
    found: list[Change] = []
    gone = [at for at in range(len(a)) if at not in taken]
    by_place = {a[at].place: at for at in gone}
    follows = max(partners, default=-1) + 1 if len(a) - 1 in taken or not a else len(b)
    for at, block in enumerate(b):
        if at in partners:
            if partners[at] not in kept:
                found.append(Change(kind="moved", what=block.what, a=a[partners[at]].path, b=block.path))
        elif (before_at := by_place.pop(block.place, None)) is not None:
            gone.remove(before_at)
            found.append(Change(kind="changed", what=block.what, a=a[before_at].path, b=block.path))
        elif at < follows:
            found.append(Change(kind="appeared", what=block.what, a=None, b=block.path))
    found += [Change(kind="gone", what=a[at].what, a=a[at].path, b=None) for at in gone]
    return found[:MAX_CHANGES]


def blocks(body: Mapping[str, Any]) -> Iterator[Block]:
    """Tools, system, messages: the order in which both dialects put them before the model."""
    for at, tool in enumerate(_list(body.get("tools"))):
        name = _tool_name(tool)
        yield Block(
            f"tools[{at}]", f"tool {name}" if name else "tool", _content(tool), (f"tool {name}", 0 if name else at)
        )
    for part in _parts(body.get("system")):
        yield Block(f"system{part.suffix}", "system block", _content(part.value), ("system", part.number))
    for number, message in enumerate(_list(body.get("messages"))):
        if not isinstance(message, Mapping):
            continue
        path, role = f"messages[{number}]", str(message.get("role", ""))
        for part in _parts(message.get("content")):
            where = f"{path}.content{part.suffix}"
            yield Block(where, _kind(part.value), _content([role, part.value]), (path, part.number))
        for at, call in enumerate(_list(message.get("tool_calls"))):
            yield Block(f"{path}.tool_calls[{at}]", "tool call", _content([role, call]), (f"{path}.tool_calls", at))


def _partners(a: Sequence[Block], b: Sequence[Block]) -> dict[int, int]:
    """Index into ``b`` -> index into ``a`` of the block of equal content; of several, the next one in order."""
    waiting: dict[bytes, list[int]] = defaultdict(list)
    for at, block in enumerate(a):
        waiting[block.content].append(at)
    partners: dict[int, int] = {}
    for at, block in enumerate(b):
        if same := waiting.get(block.content):
            partners[at] = same.pop(0)
    return partners


def _in_order(numbers: Sequence[int]) -> set[int]:
    """A longest ascending run of ``numbers``: those that kept their order. The rest has moved."""
    tails: list[int] = []
    before: dict[int, int | None] = {}
    for number in numbers:
        low, high = 0, len(tails)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if tails[middle] < number else (low, middle)
        before[number] = tails[low - 1] if low else None
        tails[low : low + 1] = [number]
    kept: set[int] = set()
    at: int | None = tails[-1] if tails else None
    while at is not None:
        kept.add(at)
        at = before[at]
    return kept


def _parts(value: Any) -> Iterator[_Part]:
    """The parts of a content, a lone text being one without an index; equal texts in either form are equal."""
    if isinstance(value, str):
        yield _Part("", 0, {"type": "text", "text": value})
    for at, part in enumerate(_list(value)):
        yield _Part(f"[{at}]", at, part)


def _content(value: Any) -> bytes:
    """Without ``cache_control``, which says how to cache a block and is no part of the prompt."""
    return msgspec.json.encode(_without_marks(value), order="sorted")


def _without_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_marks(each) for name, each in value.items() if name != "cache_control"}
    if isinstance(value, list | tuple):
        return [_without_marks(each) for each in value]
    return value


def _tool_name(tool: Any) -> str:
    if not isinstance(tool, Mapping):
        return ""
    inner = tool.get("function")
    name = inner.get("name") if isinstance(inner, Mapping) else tool.get("name")
    return name[:MAX_NAME] if isinstance(name, str) and name.isprintable() else ""


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return f"{kind.replace('_', ' ')} block" if isinstance(kind, str) else "block"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
