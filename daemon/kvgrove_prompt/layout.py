"""What a prompt consists of, before any template or token: turns made of segments that know their origin.

The system message holds, in this order: the declared prefix, each document, the caller's own system text. Separators
belong to what comes after them, so that the shared leading part ends with declared text and before anything private:

    <prefix>  \\n\\n<document ...>...</document>  \\n\\n<caller's system text>

Under `SystemRole.FOLD` the same leads the first user message, whose own text follows as one more private segment.
A prefix's edges are stripped: many templates strip the whole content, and then what follows a prefix would decide
how the prefix itself ends.
"""

from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from kvgrove_prompt.conversation import Turn, check_arguments
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.policy import Consecutive, RolePolicy, Thinking
from kvgrove_prompt.roles import ASSISTANT, SYSTEM, TOOL, USER, Message, SystemRole
from kvgrove_protocol.chain import DocumentRef, SpanKind

SEPARATOR = "\n\n"

THOUGHT_START, THOUGHT_END = "<think>", "</think>"
"""As models write them into one text with the reply."""


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
    """A text of one origin.

    ``scaffold``: the template wrote it, so that control markers in it are meant.
    ``seam``: what stands before it is tokenised without it, whatever it says.
    """

    text: str
    origin: str
    kind: SpanKind
    name: str = ""
    document: DocumentRef | None = None
    scaffold: bool = False
    seam: bool = False


class Layout(msgspec.Struct, frozen=True):
    """The turns for the template, and whose each text in them is: place (see `conversation.Words`) -> part."""

    turns: list[Turn]
    parts: dict[str, Part]


class _Said(msgspec.Struct, frozen=True):
    """A message with the number it has in the request, and the texts that make up its content."""

    index: int
    message: Message
    parts: list[Part]


def lay_out(
    messages: Sequence[Message],
    *,
    prefix: PrefixBody | None,
    documents: Sequence[DocumentBody],
    policy: RolePolicy,
) -> Layout:
    """``messages`` (normalised) behind the declared texts, as ``policy`` has it.

    Raises InvalidMessages, naming the field, for messages that the policy refuses.
    """
    declared = _declared(prefix, documents)
    said = [_said(index, message, policy) for index, message in enumerate(messages)]
    _refuse(said, declared, policy)
    leading = 0  # system messages that the declared texts share a turn with
    if policy.system is SystemRole.FOLD:
        leading = next((i for i, each in enumerate(said) if each.message.role != SYSTEM), len(said))
        for each in said[leading:]:
            if each.message.role == SYSTEM:
                raise InvalidMessages(
                    f"messages[{each.index}].role",
                    "is system, which this model only takes ahead of all other messages: move it there",
                )
    elif declared and messages[0].role == SYSTEM:
        leading = 1
    head = declared
    for each in said[:leading]:
        for part in each.parts:
            head = _followed_by(head, part)
    rest = _merged(said[leading:], policy)
    turns = [*rest]
    if head and policy.system is SystemRole.FOLD and rest and rest[0].message.role == USER:
        first = rest[0]
        parts = head
        for part in first.parts:
            parts = _followed_by(parts, part)
        turns[0] = msgspec.structs.replace(first, parts=parts)
    elif head:
        role = USER if policy.system is SystemRole.FOLD else SYSTEM
        turns.insert(0, _Said(0, Message(role), head))
    return Layout(
        [_turn(each, policy) for each in turns],
        {place: part for number, each in enumerate(turns) for place, part in _places(number, each)},
    )


def _said(index: int, message: Message, policy: RolePolicy) -> _Said:
    """``message`` with its thoughts where the template looks for them."""
    text, reasoning = message.text, message.reasoning
    if message.role == ASSISTANT and policy.thinking is not Thinking.KEPT:
        thought, closed, rest = text.rpartition(THOUGHT_END)
        if closed:
            reasoning = reasoning or thought.rpartition(THOUGHT_START)[2].strip("\n")
            text = rest.lstrip("\n")
    if policy.thinking is Thinking.DROPPED:
        reasoning = ""
    for number, call in enumerate(message.tool_calls):
        if policy.parsed_arguments:
            check_arguments(call.arguments, f"messages[{index}].tool_calls[{number}]")
    # The model wrote an answer behind a prompt that ended just before it: tokens joined across that place are others
    # than it wrote, and reuse would end there.
    part = Part(text, f"messages[{index}].content", SpanKind.PRIVATE, seam=message.role == ASSISTANT)
    return _Said(index, msgspec.structs.replace(message, content=text, reasoning=reasoning), [part])


def _refuse(said: Sequence[_Said], declared: Sequence[Part], policy: RolePolicy) -> None:
    if policy.system is SystemRole.REFUSE:
        for each in said:
            if each.message.role == SYSTEM:
                raise InvalidMessages(
                    f"messages[{each.index}].role", "is system, which this model does not take: use a user message"
                )
        if declared:
            raise TemplateUnsupported(
                "the chat template declares that it takes no system text: prefixes and documents have no place in it",
                field="chat_template",
            )
    for each in said:
        if not policy.calls and (each.message.role == TOOL or each.message.tool_calls):
            field = "role" if each.message.role == TOOL else "tool_calls"
            raise InvalidMessages(
                f"messages[{each.index}].{field}", "has no place in this model's chat template: leave tools out"
            )


def _merged(said: Sequence[_Said], policy: RolePolicy) -> list[_Said]:
    """Turns of one speaker in a row, as the policy has them. Tools' results and calls stay by themselves."""
    turns: list[_Said] = []
    for each in said:
        last = turns[-1] if turns else None
        if last is None or not _joinable(last.message, each.message) or policy.consecutive is Consecutive.KEEP:
            turns.append(each)
        elif policy.consecutive is Consecutive.REFUSE:
            raise InvalidMessages(
                f"messages[{each.index}].role",
                f"is {each.message.role} once more: this model takes turns in alternation, join the two",
            )
        else:
            parts = last.parts
            for part in each.parts:
                parts = _followed_by(parts, part)
            turns[-1] = msgspec.structs.replace(last, parts=parts)
    return turns


def _joinable(one: Message, other: Message) -> bool:
    if one.role != other.role or one.role not in (USER, ASSISTANT):
        return False
    return not (one.tool_calls or other.tool_calls or other.reasoning)


def _turn(said: _Said, policy: RolePolicy) -> Turn:
    message = said.message
    apart = message.role == ASSISTANT and policy.thinking is Thinking.APART
    return Turn(
        message.role,
        tuple(part.text for part in said.parts),
        tool_calls=message.tool_calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning if apart else None,
    )


def _places(number: int, said: _Said) -> Iterator[tuple[str, Part]]:
    """Whose the texts of turn ``number`` are."""
    turn, message = f"turns[{number}]", f"messages[{said.index}]"
    for position, part in enumerate(said.parts):
        yield f"{turn}.parts[{position}]", part
    for field in ("reasoning", "tool_call_id", "name"):
        yield f"{turn}.{field}", Part("", f"{message}.{field}", SpanKind.PRIVATE)
    for position in range(len(said.message.tool_calls)):
        field = f"tool_calls[{position}]"
        yield f"{turn}.{field}", Part("", f"{message}.{field}", SpanKind.PRIVATE)


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
