"""What a prompt consists of, before any template or token: turns made of segments that know their origin.

The system message holds, in this order: the declared prefix, each document, the caller's own system text. Separators
belong to what comes after them, so that the shared leading part ends with declared text and before anything private:

    <prefix>  \\n\\n<document ...>...</document>  \\n\\n<caller's system text>

Under `SystemRole.FOLD` the same leads the first user message, whose own text follows as one more private segment.
A prefix's edges are stripped: many templates strip the whole content, and then what follows a prefix would decide
how the prefix itself ends.
"""

from collections.abc import Sequence
from html import escape

import msgspec

from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.roles import SYSTEM, USER, Message, SystemRole
from kvgrove_prompt.template import Turn
from kvgrove_protocol.chain import DocumentRef, SpanKind

SEPARATOR = "\n\n"


class PrefixBody(msgspec.Struct, frozen=True):
    """A declared stable prefix."""

    name: str
    text: str


class DocumentBody(msgspec.Struct, frozen=True):
    """One version of a document, with the reference that keys it."""

    ref: DocumentRef
    name: str
    version: str
    text: str

    def wrapped(self) -> str:
        """The text as a prompt holds it: the wrapper counts into the document."""
        name, version = escape(self.name, quote=True), escape(self.version, quote=True)
        return f'<document name="{name}" version="{version}">\n{self.text}\n</document>'


class Part(msgspec.Struct, frozen=True):
    """A text of one origin."""

    text: str
    origin: str
    kind: SpanKind
    name: str = ""
    document: DocumentRef | None = None


class Layout(msgspec.Struct, frozen=True):
    """The turns for the template, and all their parts in the order of their numbers (see `ChatTemplate.render`)."""

    turns: list[Turn]
    parts: list[Part]


def lay_out(
    messages: Sequence[Message],
    *,
    prefix: PrefixBody | None,
    documents: Sequence[DocumentBody],
    system_role: SystemRole,
) -> Layout:
    """``messages`` (normalised) behind the declared texts.

    Raises InvalidMessages for a later system message that cannot be folded.
    """
    declared = _declared(prefix, documents)
    said = [
        Part(message.content, f"messages[{index}].content", SpanKind.PRIVATE) for index, message in enumerate(messages)
    ]
    leading = 0  # system messages that the declared texts share a turn with
    if system_role is SystemRole.FOLD:
        leading = next((i for i, message in enumerate(messages) if message.role != SYSTEM), len(messages))
        for index, message in enumerate(messages[leading:], leading):
            if message.role == SYSTEM:
                raise InvalidMessages(
                    f"messages[{index}].role",
                    "is system, which this model only takes ahead of all other messages: move it there",
                )
    elif declared and messages[0].role == SYSTEM:
        leading = 1
    head = declared
    for part in said[:leading]:
        head = _followed_by(head, part)
    rest = list(zip((message.role for message in messages[leading:]), said[leading:], strict=True))
    turns: list[tuple[str, list[Part]]] = []
    if head and system_role is SystemRole.FOLD and rest and rest[0][0] == USER:
        turns.append((USER, _followed_by(head, rest.pop(0)[1])))
    elif head:
        turns.append((USER if system_role is SystemRole.FOLD else SYSTEM, head))
    turns += [(role, [part]) for role, part in rest]
    return Layout(
        [Turn(role, tuple(part.text for part in parts)) for role, parts in turns],
        [part for _, parts in turns for part in parts],
    )


def _declared(prefix: PrefixBody | None, documents: Sequence[DocumentBody]) -> list[Part]:
    parts: list[Part] = []
    if prefix is not None and (text := prefix.text.strip()):
        parts.append(Part(text, f"prefix:{prefix.name}", SpanKind.PREFIX, name=prefix.name))
    for body in documents:
        part = Part(body.wrapped(), f"document:{body.name}", SpanKind.DOCUMENT, document=body.ref)
        parts = _followed_by(parts, part)
    return parts


def _followed_by(parts: list[Part], part: Part) -> list[Part]:
    """``parts`` and then ``part``, which brings the separator along if there is something to separate."""
    if not parts:
        return [part]
    if not part.text.strip():
        return parts  # a blank text needs no separator, and stands at an edge that templates may strip
    return [*parts, msgspec.structs.replace(part, text=SEPARATOR + part.text)]
