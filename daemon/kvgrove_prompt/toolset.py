"""Tools as a request declares them -> the one form that templates see, whatever order their JSON keys came in (PRO-08).

Objects are re-ordered: well-known keys as formats write them, all others by name. Lists and every string stay as they
are. Which of the strings are somebody's words, and which are the vocabulary of JSON Schema that templates act on, is
told here too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgrove_prompt.errors import InvalidMessages

MAX_TOOLS = 1024
MAX_DEPTH = 32
"""Of a tool's schema; beyond, it is refused."""

_ORDER = (
    "type", "function", "name", "title", "description", "parameters", "properties", "required", "enum", "const",
    "items", "prefixItems", "default", "anyOf", "oneOf", "allOf", "not", "format", "pattern", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
    "uniqueItems", "minProperties", "maxProperties", "nullable", "additionalProperties", "patternProperties",
    "examples", "deprecated", "$ref", "$defs", "definitions", "$schema", "$id", "strict", "return",
)  # fmt: skip
_RANK = {key: rank for rank, key in enumerate(_ORDER)}

KEYWORDS = frozenset(_ORDER)
"""Keys that templates look up."""

TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null", "function"})
"""Values of ``type`` that templates compare with."""

NAMED_BY_CALLERS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keys whose values are objects with keys of somebody's choosing."""


def canonical(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``tools`` (OpenAI's ``{"type": "function", "function": {...}}``) in canonical key order, in the order given.

    Raises InvalidMessages, naming the field, for what is no such tool.
    """
    if len(tools) > MAX_TOOLS:
        raise InvalidMessages("tools", f"are more than {MAX_TOOLS}: send fewer")
    checked = []
    for index, tool in enumerate(tools):
        path = f"tools[{index}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise InvalidMessages(f"{path}.type", "must be 'function'")
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InvalidMessages(f"{path}.function.name", "must be a text that is not empty")
        checked.append(_ordered(tool, path, named=False, depth=0))
    return checked


def _ordered(value: Any, path: str, *, named: bool, depth: int) -> Any:
    """``value`` with its keys in order; ``named``: they are of somebody's choosing."""
    if depth > MAX_DEPTH:
        raise InvalidMessages(path, f"is nested more than {MAX_DEPTH} deep: flatten it")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidMessages(path, "has a key that is no text")
        keys = sorted(value) if named else sorted(value, key=lambda key: (_RANK.get(key, len(_RANK)), key))
        return {
            key: _ordered(value[key], path, named=not named and key in NAMED_BY_CALLERS, depth=depth + 1)
            for key in keys
        }
    if isinstance(value, (list, tuple)):
        return [_ordered(each, path, named=False, depth=depth + 1) for each in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise InvalidMessages(path, "holds a value that is not JSON")
