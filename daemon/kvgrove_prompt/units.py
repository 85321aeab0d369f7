"""Pieces of a prompt -> tokens, unit by unit: the one place that decides where a prompt may be cut (PRO-11).

A *unit* is a control token, or all text between two *seams*, tokenised in one go. Seams are at control tokens, where
every tokenizer cuts, so that unit by unit equals the whole; behind declared text, whose tokens must not depend on what
follows (WRM-02); and before what the model wrote itself, since it wrote it behind a prompt that ended there. Text is
always somebody's words to the tokenizer: only the template's own markers are control tokens.

A token that lies across two parts of a unit belongs to the one that is not the template's. Template text in front of
anything else counts as the template's only as far as its tokens are those it has by itself: what is shared among
callers never depends on what one of them says (I2).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import msgspec

from kvgrove_prompt.layout import Part
from kvgrove_prompt.prompt import Prompt, Segment, pack_tokens
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.chain import TOKEN_BYTES, Span, SpanKind


class Unit(msgspec.Struct, frozen=True):
    """``control``: the token, with ``parts`` naming whose it is; None: the texts of ``parts``, in order.

    ``start``: it begins a prompt.
    """

    parts: list[Part]
    control: int | None = None
    start: bool = False


class UnitTokens(msgspec.Struct, frozen=True):
    """``tokens``: little-endian uint32. ``ends``: for each part of the unit, the token at which it ends."""

    tokens: bytes
    ends: tuple[int, ...]


Tokenise = Callable[[Sequence[Unit]], list[UnitTokens]]
"""Units of one prompt, in order -> the tokens of each text unit; a cache may know some of them."""


def units(tokenizer: PromptTokenizer, pieces: Sequence[Part]) -> list[Unit]:
    """``pieces`` cut at their seams."""
    found: list[Unit] = []
    text: list[Part] = []
    starting = True  # within the template's opening, up to and including the text that it runs into

    def close() -> None:
        nonlocal text
        if text:
            found.append(Unit(text, start=starting))
            text = []

    for index, piece in enumerate(pieces):
        if text and (piece.seam or _is_declared(text[-1])):
            close()
        if index and not text:
            starting = False
        if not piece.scaffold:
            text.append(piece)
            continue
        for each in tokenizer.split_control(piece.text):
            if isinstance(each, str):
                text.append(msgspec.structs.replace(piece, text=each))
            else:
                close()
                starting = starting and not index
                found.append(Unit([piece], control=each))
    close()
    return found


def tokenise_text(tokenizer: PromptTokenizer, unit: Unit) -> UnitTokens:
    """The tokens of a text unit."""
    parts = unit.parts
    ids, cuts = tokenizer.encode_parts([part.text for part in parts], start=unit.start)
    ends = [
        cut.token + (cut.shared and later.kind is SpanKind.TEMPLATE and earlier.kind is not SpanKind.TEMPLATE)
        for cut, earlier, later in zip(cuts, parts, parts[1:], strict=False)
    ]
    if ends and parts[0].kind is SpanKind.TEMPLATE and parts[1].kind is not SpanKind.TEMPLATE:
        alone, _ = tokenizer.encode_parts([parts[0].text], start=unit.start)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(alone, ids, strict=False)))
        ends[0] = min(ends[0], same)
    return UnitTokens(pack_tokens(ids), (*ends, len(ids)))


def tokenise_texts(tokenizer: PromptTokenizer, units: Sequence[Unit]) -> list[UnitTokens]:
    """The tokens of text units; equal ones, such as a template's own, are tokenised once."""
    done: dict[tuple[bool, tuple[tuple[SpanKind, str], ...]], UnitTokens] = {}
    result = []
    for unit in units:
        key = (unit.start, tuple((part.kind, part.text) for part in unit.parts))
        if key not in done:
            done[key] = tokenise_text(tokenizer, unit)
        result.append(done[key])
    return result


def tokenise(tokenizer: PromptTokenizer, pieces: Sequence[Part], texts: Tokenise | None = None) -> Prompt:
    """The prompt of ``pieces``. ``texts``: tokenises the text units; None does so here."""
    whole = units(tokenizer, pieces)
    words = [unit for unit in whole if unit.control is None]
    known = iter(texts(whole) if texts is not None else tokenise_texts(tokenizer, words))
    runs: list[bytes] = []
    ranges: list[tuple[Part, int, int]] = []
    position = 0
    for unit in whole:
        if unit.control is not None:
            tokenised = UnitTokens(unit.control.to_bytes(TOKEN_BYTES, "little"), (1,))
        else:
            tokenised = next(known)
        begin = position
        for part, end in zip(unit.parts, tokenised.ends, strict=True):
            if position + end > begin:  # some normalisers drop a text altogether
                ranges.append((part, begin, position + end))
                begin = position + end
        runs.append(tokenised.tokens)
        position += len(tokenised.tokens) // TOKEN_BYTES
    joined = list(_joined(ranges))
    return Prompt(
        b"".join(runs),
        [Span(part.kind, begin, end, name=part.name, document=part.document) for part, begin, end in joined],
        [Segment(part.origin, part.kind, begin, end) for part, begin, end in joined],
    )


def _joined(ranges: Sequence[tuple[Part, int, int]]) -> Iterator[tuple[Part, int, int]]:
    """Neighbours of one origin as one range; each declared text keeps its own."""
    last: tuple[Part, int, int] | None = None
    for part, begin, end in ranges:
        if last is not None and not _is_declared(part) and _same_origin(last[0], part):
            last = (last[0], last[1], end)
            continue
        if last is not None:
            yield last
        last = (part, begin, end)
    if last is not None:
        yield last


def _same_origin(one: Part, other: Part) -> bool:
    return (one.origin, one.kind, one.name, one.document) == (other.origin, other.kind, other.name, other.document)


def _is_declared(part: Part) -> bool:
    return part.kind in (SpanKind.PREFIX, SpanKind.DOCUMENT)
