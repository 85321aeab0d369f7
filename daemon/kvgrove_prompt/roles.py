"""Who speaks: the roles that requests may name, and what to do where a template has no system role.

Unknown roles are refused, never guessed: a tool's result taken for a user's words would be one.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from kvgrove_prompt.errors import InvalidMessages

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"

ROLES = {
    "system": SYSTEM,
    "developer": SYSTEM,
    "user": USER,
    "assistant": ASSISTANT,
}
"""Role of a request -> role of a template."""


class SystemRole(StrEnum):
    """Where the text of the system message goes."""

    NATIVE = "native"
    """Into a system message; a template that refuses it refuses the request."""
    FOLD = "fold"
    """Ahead of the first user message's own text."""


class Message(msgspec.Struct, frozen=True):
    """One message of a request."""

    role: str
    content: str


def normalise(messages: Sequence[Message]) -> list[Message]:
    """``messages`` in the template's roles; raises InvalidMessages for none at all or for an unknown role."""
    if not messages:
        raise InvalidMessages("messages", "must hold at least one message")
    normal: list[Message] = []
    for index, message in enumerate(messages):
        role = ROLES.get(message.role)
        if role is None:
            raise InvalidMessages(f"messages[{index}].role", f"is unknown: use one of {', '.join(sorted(ROLES))}")
        normal.append(Message(role, message.content))
    return normal
