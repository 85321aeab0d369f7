"""Who speaks: the messages of a request, and which roles they may name.

Unknown roles are refused, never guessed: a tool's result taken for a user's words would be one. Contents keep their
order and meaning: an absent content is taken only where something else is said instead, part lists are joined by
newlines, empty strings stay, and parallel tool calls and their results stay in the order they were given in.
What a template cannot take is `policy`'s business.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from kvgrove_prompt.errors import InvalidMessages

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"

ROLES: Mapping[str, str] = {
    "system": SYSTEM,
    "developer": SYSTEM,
    "user": USER,
    "human": USER,
    "prompter": USER,
    "assistant": ASSISTANT,
    "bot": ASSISTANT,
    "ai": ASSISTANT,
    "gpt": ASSISTANT,
    "model": ASSISTANT,
    "tool": TOOL,
    "function": TOOL,
    "ipython": TOOL,
    "observation": TOOL,
}
"""Role of a request -> role of a template. A template may declare more of them (see `policy`)."""


class SystemRole(StrEnum):
    """Where the text of the system message goes."""

    NATIVE = "native"
    """Into a system message; a template that refuses it refuses the request."""
    FOLD = "fold"
    """Ahead of the first user message's own text."""
    REFUSE = "refuse"
    """Nowhere: the request is refused, and so are declared texts."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model made. ``arguments``: the JSON text as the model wrote it, never re-ordered."""

    name: str
    arguments: str = "{}"
    id: str = ""


class Message(msgspec.Struct, frozen=True):
    """One message of a request, in any dialect.

    ``content``: a text, its parts, or None where nothing is said (a reply that only calls tools).
    ``reasoning``: what the model thought ahead of its reply, where a dialect keeps that apart.
    ``tool_call_id`` and ``name``: of a tool's result, the call that it answers and the tool.
    """

    role: str
    content: str | tuple[str, ...] | None = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""

    @property
    def text(self) -> str:
        """The content as templates take it."""
        if self.content is None:
            return ""
        return self.content if isinstance(self.content, str) else "\n".join(self.content)


def normalise(messages: Sequence[Message], aliases: Mapping[str, str] = ROLES) -> list[Message]:
    """``messages`` in the template's roles, with one text each.

    Raises InvalidMessages, naming the field, for no message at all, an unknown role, an absent content where nothing
    is said instead, tool calls of anybody but the assistant, and a tool's result that answers no call or another
    message's.
    """
    if not messages:
        raise InvalidMessages("messages", "must hold at least one message")
    normal: list[Message] = []
    for index, message in enumerate(messages):
        role = aliases.get(message.role)
        if role is None:
            raise InvalidMessages(f"messages[{index}].role", f"is unknown: use one of {', '.join(sorted(aliases))}")
        if message.tool_calls and role != ASSISTANT:
            raise InvalidMessages(f"messages[{index}].tool_calls", "are the assistant's alone: leave them out")
        if message.content is None and not (message.tool_calls or (role == ASSISTANT and message.reasoning)):
            raise InvalidMessages(f"messages[{index}].content", "is missing: send a text, it may be empty")
        if role == TOOL:
            _check_result(normal, index, message)
        normal.append(msgspec.structs.replace(message, role=role, content=message.text))
    return normal


def _check_result(before: Sequence[Message], index: int, message: Message) -> None:
    """A result follows the reply that asked for it, with only other results between."""
    asking = next((each for each in reversed(before) if each.role != TOOL), None)
    if asking is None or not asking.tool_calls:
        raise InvalidMessages(
            f"messages[{index}].role", "is a tool's result, but the reply before it calls no tool: send its tool_calls"
        )
    ids = {call.id for call in asking.tool_calls if call.id}
    if message.tool_call_id and ids and message.tool_call_id not in ids:
        raise InvalidMessages(
            f"messages[{index}].tool_call_id", "names no call of the reply before it: send one of that reply's ids"
        )
