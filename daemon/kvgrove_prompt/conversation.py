"""What a chat template is given: turns, tools and options, with every text of somebody's told apart from structure.

`view` builds a template's variables and passes each such text through a function, with its number: once to hand the
texts over as they are, once to mark them (see `seams`), once to list them. The order is the same each time, so a number
names one text in all three. Plain data: it travels to the process that renders.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.roles import ToolCall
from kvgrove_prompt.toolset import KEYWORDS, MAX_DEPTH, NAMED_BY_CALLERS, TYPES

RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "strftime_now", "raise_exception"}
)
"""Variables of templates that no option may replace."""

MAX_OPTIONS = 16

Option = bool | int | float | None


class Turn(msgspec.Struct, frozen=True):
    """One message as the template sees it: its content is ``parts`` joined.

    ``reasoning``: None where the template takes none.
    """

    role: str
    parts: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str | None = None


class Conversation(msgspec.Struct, frozen=True):
    """``tools``: canonical (see `toolset`). ``parsed_arguments``: whether the template takes arguments as objects."""

    turns: list[Turn]
    tools: list[dict[str, Any]] = []
    add_generation_prompt: bool = True
    parsed_arguments: bool = False
    options: dict[str, Option] = {}


class Words(msgspec.Struct, frozen=True):
    """A text of somebody's. ``place``: ``turns[i].parts[j]``, ``turns[i].tool_calls[j]``, ``tools[k]`` and so on.

    ``required``: a template that leaves it out changes what was said.
    ``plain``: it may stay unmarked where a template looks into it, if it is a mere identifier.
    """

    text: str
    place: str
    required: bool = False
    plain: bool = False


Passing = Callable[[Words], str]
"""What becomes of a text on its way into the template's variables."""


def view(conversation: Conversation, passing: Passing) -> dict[str, Any]:
    """The template's variables. Raises InvalidMessages for arguments that are no JSON object where one is needed."""
    return {
        **conversation.options,
        "messages": [
            _message(turn, index, passing, parsed=conversation.parsed_arguments)
            for index, turn in enumerate(conversation.turns)
        ],
        "tools": [_tool(tool, index, passing) for index, tool in enumerate(conversation.tools)] or None,
        "documents": None,
        "add_generation_prompt": conversation.add_generation_prompt,
    }


def check_options(options: Mapping[str, Any]) -> dict[str, Option]:
    """Switches for the template (``enable_thinking``); raises InvalidMessages for anything that is more than a switch.

    Texts are not taken: they would be somebody's words in the place of the template's own. A template of a request's
    own is never rendered (ISO-15).
    """
    if len(options) > MAX_OPTIONS:
        raise InvalidMessages("chat_template_kwargs", f"are more than {MAX_OPTIONS}: leave some out")
    for name, value in options.items():
        field = f"chat_template_kwargs.{name[:64]}"
        if name in RESERVED:
            raise InvalidMessages(field, "is not a caller's to set: leave it out")
        if not name.isidentifier() or name.startswith("_"):
            raise InvalidMessages(field, "is no name of a switch: leave it out")
        if not (value is None or isinstance(value, (bool, int, float))):
            raise InvalidMessages(field, "must be true, false, a number or null")
    return dict(options)


def _message(turn: Turn, index: int, passing: Passing, *, parsed: bool) -> dict[str, Any]:
    place = f"turns[{index}]"
    # Several formats show of a reply that calls tools the calls alone.
    required = not turn.tool_calls
    content = "".join(
        passing(Words(part, f"{place}.parts[{number}]", required=required)) for number, part in enumerate(turn.parts)
    )
    message: dict[str, Any] = {"role": turn.role, "content": content}
    if turn.reasoning is not None:
        message["reasoning_content"] = passing(Words(turn.reasoning, f"{place}.reasoning"))
    if turn.tool_calls:
        message["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{number}]", passing, parsed=parsed)
            for number, call in enumerate(turn.tool_calls)
        ]
    if turn.tool_call_id:
        message["tool_call_id"] = passing(Words(turn.tool_call_id, f"{place}.tool_call_id", plain=True))
    if turn.name:
        message["name"] = passing(Words(turn.name, f"{place}.name", plain=True))
    return message


def _call(call: ToolCall, place: str, passing: Passing, *, parsed: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": passing(Words(call.name, place, required=True))}
    if parsed:
        function["arguments"] = _words_in(parse_arguments(call.arguments, place), place, passing)
    else:
        function["arguments"] = passing(Words(call.arguments, place, required=True))
    whole: dict[str, Any] = {"type": "function", "function": function}
    if call.id:
        whole["id"] = passing(Words(call.id, place, plain=True))
    return whole


def parse_arguments(arguments: str, place: str) -> dict[str, Any]:
    """The object in ``arguments``, its keys in the order they were written; raises InvalidMessages."""
    try:
        parsed = json.loads(arguments or "{}")
    except (json.JSONDecodeError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidMessages(f"{place}.function.arguments", "must be the text of a JSON object")
    return parsed


def check_arguments(arguments: str, field: str) -> None:
    """Raise InvalidMessages unless a template that wants an object can be given one; ``field``: path of the call."""
    _words_in(parse_arguments(arguments, field), field, lambda each: each.text)


def _words_in(value: Any, place: str, passing: Passing, depth: int = 0) -> Any:
    """``value`` with every key and text passed on."""
    if depth > MAX_DEPTH:
        raise InvalidMessages(f"{place}.function.arguments", f"are nested more than {MAX_DEPTH} deep: flatten them")
    if isinstance(value, dict):
        return {passing(Words(key, place)): _words_in(each, place, passing, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_words_in(each, place, passing, depth + 1) for each in value]
    return passing(Words(value, place)) if isinstance(value, str) else value


def _tool(tool: Mapping[str, Any], index: int, passing: Passing) -> dict[str, Any]:
    place = f"tools[{index}]"
    alike: dict[str, str] = {}

    def once(text: str) -> str:
        # Templates look properties up among the required ones: equal texts of one tool stay equal.
        if text not in alike:
            alike[text] = passing(Words(text, place))
        return alike[text]

    whole: dict[str, Any] = _schema(tool, once, named=False)
    return whole


def _schema(value: Any, once: Callable[[str], str], *, named: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            (key if not named and key in KEYWORDS else once(key)): (
                each
                if not named and key == "type" and isinstance(each, str) and each in TYPES
                else _schema(each, once, named=not named and key in NAMED_BY_CALLERS)
            )
            for key, each in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [each if isinstance(each, str) and each in TYPES else _schema(each, once, named=False) for each in value]
    return once(value) if isinstance(value, str) else value
