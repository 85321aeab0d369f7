"""Messages, a declared prefix and documents -> tokens with their origin; the same for router, node and warm-up.

Each piece is tokenised on its own: a prefix's tokens never depend on what follows it (WRM-02), and no text can join
with its neighbour into a control marker. The price is that a merge across a seam is missed; the text is the same.
Pure but for the marks' randomness and the template's clock.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.layout import DocumentBody, Layout, Part, PrefixBody, lay_out
from kvgrove_prompt.prompt import Prompt, Segment, pack_tokens
from kvgrove_prompt.roles import ASSISTANT, SYSTEM, USER, Message, SystemRole, normalise
from kvgrove_prompt.template import ChatTemplate
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.chain import Span, SpanKind

__all__ = ["DocumentBody", "Message", "PrefixBody", "SystemRole", "assemble", "assemble_prefix"]

TEMPLATE_ORIGIN = "template"


def assemble(
    tokenizer: PromptTokenizer,
    messages: Sequence[Message],
    *,
    prefix: PrefixBody | None = None,
    documents: Sequence[DocumentBody] = (),
    add_generation_prompt: bool = True,
    open_ended: bool = False,
    system_role: SystemRole | None = None,
) -> Prompt:
    """The tokens of one request.

    ``documents``: those of the prefix first, then those that the request names.
    ``open_ended``: the prompt ends with the last message's text, to be continued; no generation prompt then.
    ``system_role``: None is NATIVE where the template takes a system message, else FOLD.

    Raises InvalidMessages (naming the field) for messages that are empty, of unknown role or refused by the template,
    TemplateUnsupported where contents cannot be traced through the template, or where the model has none.
    """
    template = _template_of(tokenizer)
    pieces = _pieces(
        template,
        normalise(messages),
        prefix=prefix,
        documents=documents,
        add_generation_prompt=add_generation_prompt and not open_ended,
        system_role=system_role or _default_system_role(template),
    )
    if open_ended:
        last = f"messages[{len(messages) - 1}].content"
        if not any(piece.origin == last for piece in pieces):
            raise InvalidMessages(last, "must hold text: it is what the answer continues")
        while pieces[-1].origin != last:
            pieces.pop()
    return _tokenise(tokenizer, pieces)


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
    common = _common_to_all(
        template, prefix=prefix, documents=documents, system_role=system_role or _default_system_role(template)
    )
    return _tokenise(tokenizer, _up_to_declared(common))


# Shapes of requests, with texts that have nothing in common: system text or none, one turn or several, blank ones too.
_SHAPES = (
    [Message(USER, "1")],
    [Message(SYSTEM, "2"), Message(USER, "3")],
    [Message(USER, "4"), Message(ASSISTANT, "5"), Message(USER, "6")],
    [Message(SYSTEM, "7"), Message(USER, "8"), Message(ASSISTANT, "9"), Message(USER, "0")],
    [Message(USER, ""), Message(ASSISTANT, ""), Message(USER, "")],
)


def _common_to_all(
    template: ChatTemplate, *, prefix: PrefixBody | None, documents: Sequence[DocumentBody], system_role: SystemRole
) -> list[Part]:
    """The leading pieces, none of them private, of requests of every shape that the template takes."""
    common: list[Part] | None = None
    refusal: InvalidMessages | None = None
    for messages in _SHAPES:
        layout = lay_out(messages, prefix=prefix, documents=documents, system_role=system_role)
        try:
            pieces = _rendered(template, layout, add_generation_prompt=True)
        except InvalidMessages as error:
            refusal = error
            continue
        shared = list(takewhile(lambda piece: piece.kind is not SpanKind.PRIVATE, pieces))
        common = shared if common is None else list(_common_leading(common, shared))
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


def _default_system_role(template: ChatTemplate) -> SystemRole:
    return SystemRole.NATIVE if template.takes_system else SystemRole.FOLD


def _pieces(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    prefix: PrefixBody | None,
    documents: Sequence[DocumentBody],
    add_generation_prompt: bool,
    system_role: SystemRole,
) -> list[Part]:
    """The pieces of a request in order, with their origins and kinds."""
    layout = lay_out(messages, prefix=prefix, documents=documents, system_role=system_role)
    pieces = _rendered(template, layout, add_generation_prompt=add_generation_prompt)
    seen = {piece.origin for piece in pieces}
    if all(part.origin in seen for part in layout.parts):
        return pieces
    # Blank contents lie somewhere within scaffolding. How many turns a caller leaves blank is the caller's matter too:
    # what is not common to all requests counts as private, so that it never meets another realm's blocks (I2).
    common = _common_to_all(template, prefix=prefix, documents=documents, system_role=system_role)
    shared = len(list(_common_leading(common, pieces)))
    return pieces[:shared] + [
        msgspec.structs.replace(piece, kind=SpanKind.PRIVATE) if piece.kind is SpanKind.TEMPLATE else piece
        for piece in pieces[shared:]
    ]


def _rendered(template: ChatTemplate, layout: Layout, *, add_generation_prompt: bool) -> list[Part]:
    """The rendered prompt in order, each piece with the origin and kind of the part it came from."""
    return [
        Part(piece.text, TEMPLATE_ORIGIN, SpanKind.TEMPLATE)
        if piece.content is None
        else msgspec.structs.replace(layout.parts[piece.content], text=piece.text)
        for piece in template.render(layout.turns, add_generation_prompt=add_generation_prompt)
    ]


def _up_to_declared(pieces: list[Part]) -> list[Part]:
    """``pieces`` up to the last declared one; all of them if none is."""
    last = max((index for index, piece in enumerate(pieces) if _is_declared(piece)), default=len(pieces) - 1)
    return pieces[: last + 1]


def _is_declared(piece: Part) -> bool:
    return piece.kind in (SpanKind.PREFIX, SpanKind.DOCUMENT)


def _common_leading(left: Sequence[Part], right: Sequence[Part]) -> Iterator[Part]:
    for one, other in zip(left, right, strict=False):
        if one != other:
            return
        yield one


def _tokenise(tokenizer: PromptTokenizer, pieces: Sequence[Part]) -> Prompt:
    ids: list[int] = []
    spans: list[Span] = []
    segments: list[Segment] = []
    for index, piece in enumerate(pieces):
        start = len(ids)
        if piece.origin == TEMPLATE_ORIGIN:
            ids += tokenizer.encode_control(piece.text, start=index == 0)
        else:
            ids += tokenizer.encode_text(piece.text)
        if len(ids) == start:
            continue  # some normalisers drop a text altogether
        segments.append(Segment(piece.origin, piece.kind, start, len(ids)))
        spans.append(Span(piece.kind, start, len(ids), name=piece.name, document=piece.document))
    return Prompt(pack_tokens(ids), spans, segments)
