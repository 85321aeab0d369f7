"""Answers that come back in a later prompt: tells "retokenised" from "new" when their tokens miss (I10, COR-15).

A model says one sequence of tokens; a client sends the text back, and tokenising text may give another sequence. Reuse
goes by tokens alone, so the match ends with the last block before the first differing one; this module only says why.
For each answer given, a digest of its ids is kept under a name made of the caller's realm, of everything before the
answer and of its text: a caller learns of own answers and of nobody else's (I2), and no text or id is kept (I12).
Bounded, oldest forgotten first: forgetting makes a reason less precise (``new``), never a hit wrong (I11).
Must not know: blocks, slots, how tokens are decoded.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvgrove_daemon.cache.chains import Chain
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.chain import TOKEN_BYTES, Span, SpanKind

MOST_TOKENS = 8192
"""Longer answers are not remembered, nor longer parts of a prompt looked at: decoding them would hold up a step."""

Decode = Callable[[bytes], str]
"""Text of little-endian uint32 ids."""


class GivenAnswers:
    """Name of an answer -> digest of its ids. Not thread-safe."""

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[bytes, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def record(self, realm: bytes, chain: Chain, ids: bytes, decode: Decode) -> None:
        """``ids`` were said after the whole prompt of ``chain``, to a caller of the private ``realm``."""
        if 0 < len(ids) <= MOST_TOKENS * TOKEN_BYTES and (text := decode(ids).strip()):
            name = _name(realm, chain, chain.token_count, text)
            self._ids[name] = _of(ids)
            self._ids.move_to_end(name)
            if len(self._ids) > self._capacity:
                self._ids.popitem(last=False)

    def retokenised_blocks(
        self, realm: bytes, chain: Chain, spans: Sequence[Span], matched: int, decode: Decode
    ) -> range:
        """Blocks of ``chain`` from ``matched`` (the first that misses) on that hold an answer in other tokens.

        Empty unless that very block holds some of it: behind another difference nothing can be told.
        """
        size = chain.block_size
        begin, end = matched * size, (matched + 1) * size
        for span in spans:
            if span.kind is not SpanKind.PRIVATE or span.start >= end or span.end <= begin:
                continue
            ids = chain.tokens[span.start * TOKEN_BYTES : span.end * TOKEN_BYTES]
            if not self._ids or len(ids) > MOST_TOKENS * TOKEN_BYTES:
                continue
            said = self._ids.get(_name(realm, chain, span.start, decode(ids).strip()))
            if said is not None and said != _of(ids):
                return range(matched, -(-span.end // size))
        return range(0)


def _name(realm: bytes, chain: Chain, start: int, text: str) -> bytes:
    """Of a text that begins at token ``start`` of ``chain``: its last key before that stands for all that it covers."""
    blocks = start // chain.block_size
    parent = chain.keys[blocks - 1] if blocks else chain.root
    between = chain.tokens[blocks * chain.block_size * TOKEN_BYTES : start * TOKEN_BYTES]
    return digest("answer", [realm, start, parent, between, text])


def _of(ids: bytes) -> bytes:
    return hashlib.sha256(ids).digest()
