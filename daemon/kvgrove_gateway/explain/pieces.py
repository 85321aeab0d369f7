"""A prompt cut where its origin or its fate changes, each piece with its text. Pure.

Text is cut where characters end: a character that a boundary runs through belongs to the piece in which it becomes
whole, so the texts of a segment's pieces add up to the segment's text.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from kvgrove_gateway.explain.report import Piece
from kvgrove_prompt.decoding import REPLACEMENT
from kvgrove_prompt.prompt import Prompt, Segment
from kvgrove_protocol.chain import SpanKind
from kvgrove_protocol.data import ExplainedRange

Decode = Callable[[Sequence[int]], str]


def pieces_of(prompt: Prompt, ranges: Sequence[ExplainedRange], decode: Decode) -> list[Piece]:
    """``ranges`` tile the prompt; ``decode`` gives the text of ids, control tokens included."""
    ids = prompt.ids
    found: list[Piece] = []
    for segment in prompt.segments:
        inside = [each for each in ranges if each.start < segment.end and each.end > segment.start]
        cuts = [segment.start, *(each.end for each in inside[:-1]), segment.end]
        texts = _texts(ids, cuts, decode) if tells_text(segment) else [None] * len(inside)
        for each, (start, end), text in zip(inside, pairwise(cuts), texts, strict=True):
            found.append(
                Piece(
                    start=start,
                    end=end,
                    origin=segment.origin,
                    message=segment.message,
                    tier=each.tier,
                    reason=None if each.reason is None else each.reason.value,
                    text=text,
                )
            )
    return found


def at_their_places(prompt: Prompt, places: Sequence[str]) -> Prompt:
    """``prompt`` with its segments named as the request's body has them (`ask.ChatPrompt.places`)."""
    return Prompt(prompt.tokens, prompt.spans, [_at_its_place(each, places) for each in prompt.segments])


def _at_its_place(segment: Segment, places: Sequence[str]) -> Segment:
    number = segment.message
    if number is None or number >= len(places):
        return segment
    return replace(segment, origin=segment.origin.replace(f"messages[{number}]", places[number], 1))


def tells_text(segment: Segment) -> bool:
    """Whether the caller sent this text, or everybody knows it: declared texts are told to nobody."""
    return segment.kind in (SpanKind.TEMPLATE, SpanKind.PRIVATE)


def _texts(ids: Sequence[int], cuts: Sequence[int], decode: Decode) -> list[str | None]:
    start = cuts[0]
    whole = decode(ids[start : cuts[-1]])
    ends = [len(decode(ids[start:cut]).rstrip(REPLACEMENT)) for cut in cuts[1:-1]]
    return [whole[begin:end] for begin, end in pairwise([0, *ends, len(whole)])]
