"""Messages, tools, a declared prefix and documents -> tokens with their origin; the same for router, node and warm-up.

Rendered by the model's own template, cut into units at seams (`units`), tokenised unit by unit: a prefix's tokens never
depend on what follows it (WRM-02), and no text can join with its neighbour into a control marker.
Pure but for the marks' randomness and the template's clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from kvgrove_prompt.conversation import Conversation, Words, check_options, view
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.layout import DocumentBody, Layout, Part, PrefixBody, lay_out
from kvgrove_prompt.policy import RolePolicy
from kvgrove_prompt.prompt import TEMPLATE_ORIGIN, Prompt
from kvgrove_prompt.roles import ASSISTANT, SYSTEM, USER, Message, SystemRole, ToolCall, normalise
from kvgrove_prompt.template import ChatTemplate
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_prompt.toolset import canonical
from kvgrove_prompt.units import Tokenise, tokenise
from kvgrove_protocol.chain import Span, SpanKind

__all__ = [
    "DocumentBody",
    "Message",
    "PrefixBody",
    "SystemRole",
    "ToolCall",
    "assemble",
    "assemble_prefix",
]


def assemble(
    tokenizer: PromptTokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Any] | None = None,
    prefix: PrefixBody | None = None,
    documents: Sequence[DocumentBody] = (),
    add_generation_prompt: bool = True,
    open_ended: bool = False,
    system_role: SystemRole | None = None,
    texts: Tokenise | None = None,
) -> Prompt:
    """The tokens of one request.

    ``tools``: as OpenAI writes them, in any key order. ``options``: switches for the template (``enable_thinking``).
    ``documents``: those of the prefix first, then those that the request names.
    ``open_ended``: the prompt ends with the last message's text, to be continued; no generation prompt then.
    ``system_role``: None is the template's own policy.
    ``texts``: tokenises text units (see `units`), with a memory maybe; None does so here.

    Raises InvalidMessages (naming the field) for messages that are empty, of unknown role or refused by the template,
    TemplateUnsupported where contents cannot be traced through the template, or where the model has none.
    """
    template = _template_of(tokenizer)
    policy = _policy(template, system_role)
    pieces = _pieces(
        template,
        normalise(messages, policy.aliases),
        _Shared(prefix, documents, policy),
        tools=_tools(tools, policy),
        options=check_options(options or {}),
        add_generation_prompt=add_generation_prompt and not open_ended,
    )
    if open_ended:
        last = f"messages[{len(messages) - 1}].content"
        if not any(piece.origin == last for piece in pieces):
            raise InvalidMessages(last, "must hold text: it is what the answer continues")
        while pieces[-1].origin != last:
            pieces.pop()
    return tokenise(tokenizer, pieces, texts)


def assemble_prefix(
    tokenizer: PromptTokenizer,
    prefix: PrefixBody,
    documents: Sequence[DocumentBody] = (),
    *,
    system_role: SystemRole | None = None,
) -> Prompt:
    """The leading part that every request naming ``prefix`` shares: what warm-up computes.

    ``documents``: those of the prefix. It ends with declared text, before anything private and before any scaffolding
    that depends on what follows. Found by assembling requests of different shapes and keeping what they have in
    common, because only the template knows where it puts things (some put the system text into the last user turn;
    little or nothing is shared then). Raises as `assemble` does, if the template refuses every shape.
    """
    template = _template_of(tokenizer)
    common = _common_to_all(template, _Shared(prefix, documents, _policy(template, system_role)))
    declared = max((index for index, piece in enumerate(common) if _is_declared(piece)), default=-1)
    if declared >= 0:
        return tokenise(tokenizer, common[: declared + 1])
    return _up_to_control(tokenizer, common)


class _Shared(msgspec.Struct, frozen=True):
    """What a request has in common with others."""

    prefix: PrefixBody | None
    documents: Sequence[DocumentBody]
    policy: RolePolicy

    def lay_out(self, messages: Sequence[Message]) -> Layout:
        return lay_out(messages, prefix=self.prefix, documents=self.documents, policy=self.policy)


# Shapes of requests, with texts that have nothing in common: system text or none, one turn or several, blank ones too.
_SHAPES = (
    [Message(USER, "1")],
    [Message(SYSTEM, "2"), Message(USER, "3")],
    [Message(USER, "4"), Message(ASSISTANT, "5"), Message(USER, "6")],
    [Message(SYSTEM, "7"), Message(USER, "8"), Message(ASSISTANT, "9"), Message(USER, "0")],
    [Message(USER, ""), Message(ASSISTANT, ""), Message(USER, "")],
)


def _common_to_all(template: ChatTemplate, shared: _Shared) -> list[Part]:
    """The leading pieces, none of them private, of requests of every shape that the template takes."""
    common: list[Part] | None = None
    refusal: InvalidMessages | None = None
    for messages in _SHAPES:
        try:
            layout = shared.lay_out(messages)
            pieces = _rendered(template, layout, Conversation(layout.turns))
        except InvalidMessages as error:
            refusal = error
            continue
        leading = list(takewhile(lambda piece: piece.kind is not SpanKind.PRIVATE, pieces))
        common = leading if common is None else list(_common_leading(common, leading))
    if common is None:
        raise refusal or InvalidMessages("messages", "have no shape to try")
    return common


def _template_of(tokenizer: PromptTokenizer) -> ChatTemplate:
    if tokenizer.template is None:
        raise TemplateUnsupported(
            "the model has no chat template: add one to its ModelVersion, or ask for a completion",
            field="chat_template",
        )
    return tokenizer.template


def _policy(template: ChatTemplate, system_role: SystemRole | None) -> RolePolicy:
    policy = template.policy
    return policy if system_role is None else msgspec.structs.replace(policy, system=system_role)


def _tools(tools: Sequence[Mapping[str, Any]], policy: RolePolicy) -> list[dict[str, Any]]:
    if tools and not policy.tools:
        raise InvalidMessages("tools", "have no place in this model's chat template: leave them out")
    return canonical(tools)


def _pieces(
    template: ChatTemplate,
    messages: Sequence[Message],
    shared: _Shared,
    *,
    tools: list[dict[str, Any]],
    options: dict[str, bool | int | float | None],
    add_generation_prompt: bool,
) -> list[Part]:
    """The pieces of a request in order, with their origins and kinds."""
    layout = shared.lay_out(messages)
    conversation = Conversation(
        layout.turns,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        parsed_arguments=shared.policy.parsed_arguments,
        options=options,
    )
    pieces = _rendered(template, layout, conversation)
    seen = {piece.origin for piece in pieces}
    blank = any(part.origin not in seen for place, part in layout.parts.items() if ".parts[" in place)
    if blank or tools or options:
        # Blank contents lie somewhere within scaffolding, and so do the shape of tools and what switches do. All that
        # is the caller's matter too: what is not common to all requests counts as private, so that it never meets
        # another realm's blocks (I2).
        common = len(list(_common_leading(_common_to_all(template, shared), pieces)))
        return pieces[:common] + [
            msgspec.structs.replace(piece, kind=SpanKind.PRIVATE) if piece.kind is SpanKind.TEMPLATE else piece
            for piece in pieces[common:]
        ]
    return pieces


def _rendered(template: ChatTemplate, layout: Layout, conversation: Conversation) -> list[Part]:
    """The rendered prompt in order, each piece with the origin and kind of the part it came from."""
    places: list[str] = []

    def listed(words: Words) -> str:
        places.append(words.place)
        return words.text

    view(conversation, listed)
    pieces = [
        Part(piece.text, TEMPLATE_ORIGIN, SpanKind.TEMPLATE, scaffold=True)
        if piece.content is None
        else msgspec.structs.replace(_part(layout, places[piece.content]), text=piece.text)
        for piece in template.render(conversation)
    ]
    return list(_whole(pieces)) if conversation.tools or any(turn.tool_calls for turn in layout.turns) else pieces


def _part(layout: Layout, place: str) -> Part:
    return layout.parts.get(place) or Part("", place, SpanKind.PRIVATE)


def _whole(pieces: Sequence[Part]) -> Iterator[Part]:
    """``pieces`` with what the template writes within one tool, or one call, as part of it."""
    for index, piece in enumerate(pieces):
        if piece.scaffold and 0 < index < len(pieces) - 1:
            before, after = pieces[index - 1], pieces[index + 1]
            if before.origin == after.origin and before.kind is SpanKind.PRIVATE:
                yield msgspec.structs.replace(piece, origin=before.origin, kind=SpanKind.PRIVATE)
                continue
        yield piece


def _is_declared(piece: Part) -> bool:
    return piece.kind in (SpanKind.PREFIX, SpanKind.DOCUMENT)


def _common_leading(left: Sequence[Part], right: Sequence[Part]) -> Iterator[Part]:
    for one, other in zip(left, right, strict=False):
        if one != other:
            return
        yield one


def _up_to_control(tokenizer: PromptTokenizer, pieces: Sequence[Part]) -> Prompt:
    """Scaffolding alone, up to its last control token: what is behind that may join with what follows."""
    prompt = tokenise(tokenizer, pieces)
    control = {tokenizer.encode_control(marker)[0] for marker in tokenizer.markers}
    ids = prompt.ids
    end = max((index + 1 for index, token in enumerate(ids) if token in control), default=0)
    if not end:
        return Prompt(b"", [], [])
    return Prompt(
        prompt.slice(0, end),
        [Span(span.kind, span.start, min(span.end, end), name=span.name) for span in prompt.spans if span.start < end],
        [msgspec.structs.replace(each, end=min(each.end, end)) for each in prompt.segments if each.start < end],
    )
