"""An assembled prompt: token ids as bytes, and where each of them comes from."""

import re
from array import array
from collections.abc import Iterable
from sys import byteorder

import msgspec

from kvgrove_protocol.chain import TOKEN_BYTES, Span, SpanKind

_UINT32 = next(code for code in "IL" if array(code).itemsize == TOKEN_BYTES)


def pack_tokens(ids: Iterable[int]) -> bytes:
    """Token ids -> little-endian uint32; OverflowError for an id that does not fit."""
    words = array(_UINT32, ids)
    if byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpack_tokens(tokens: bytes | memoryview) -> list[int]:
    """The inverse of `pack_tokens`; ValueError unless the length is a multiple of 4."""
    words = array(_UINT32)
    words.frombytes(tokens)
    if byteorder == "big":
        words.byteswap()
    return words.tolist()


TEMPLATE_ORIGIN = "template"

_INDEXED = re.compile(r"(messages|tools)\[([0-9]+)\]")


class Segment(msgspec.Struct, frozen=True):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) of one origin.

    ``origin`` is what an explanation calls them, and stable: ``template`` (the chat template's own text),
    ``prefix:<name>``, ``document:<name>``, ``tools[k]``, ``prompt`` (a text to be completed), or of message i as the
    request numbers it ``messages[i].content``, ``messages[i].reasoning``, ``messages[i].tool_calls[j]``,
    ``messages[i].tool_call_id``, ``messages[i].name``.
    """

    origin: str
    kind: SpanKind
    start: int
    end: int

    @property
    def message(self) -> int | None:
        """The number of the message it came from; None if from none."""
        found = _INDEXED.match(self.origin)
        return int(found[2]) if found is not None and found[1] == "messages" else None


class Prompt(msgspec.Struct, frozen=True):
    """``tokens``: little-endian uint32. ``spans`` and ``segments`` each tile them, in order, none empty."""

    tokens: bytes
    spans: list[Span]
    segments: list[Segment]

    @property
    def count(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def ids(self) -> list[int]:
        return unpack_tokens(self.tokens)

    def slice(self, start: int, end: int) -> bytes:
        """Tokens ``start`` (inclusive) to ``end`` (exclusive), as bytes."""
        return self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]
