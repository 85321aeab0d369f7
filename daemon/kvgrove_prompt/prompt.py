"""An assembled prompt: token ids as bytes, and where each of them comes from."""

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


class Segment(msgspec.Struct, frozen=True):
    """Tokens ``start`` (inclusive) to ``end`` (exclusive) that were tokenised as one text.

    ``origin``: ``template``, ``prefix:<name>``, ``document:<name>`` or ``messages[i].content``: what an explanation
    calls them.
    """

    origin: str
    kind: SpanKind
    start: int
    end: int


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
