"""Block keys and folds: where what begins to matter is mixed in (I2, I3, I9)."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_protocol.chain import DocumentRef, Span, SpanKind, block_keys, check_spans, folds
from kvgrove_protocol.errors import Malformed

ROOT = b"r" * 32
DOCUMENT = DocumentRef("d", b"d" * 32, 1)


def packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def test_key_is_the_documented_formula() -> None:
    tokens = packed(list(range(8)))
    fold = b"fold"
    first = hashlib.sha256(ROOT + tokens[:16]).digest()
    second = hashlib.sha256(first + fold + tokens[16:]).digest()
    assert block_keys(ROOT, tokens, {1: fold}, block_size=4) == [first, second]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 10), st.sets(st.integers(0, 9)))
def test_a_chain_continued_from_any_block_equals_the_whole(tokens: list[int], split: int, fold_at: set[int]) -> None:
    block_folds = {block: b"f%d" % block for block in fold_at}
    whole = block_keys(ROOT, packed(tokens), block_folds, block_size=4)
    split = min(split, len(whole))
    parent = whole[split - 1] if split else ROOT
    rest = block_keys(parent, packed(tokens[split * 4 :]), block_folds, block_size=4, first_block=split)
    assert whole == whole[:split] + rest


def test_only_full_blocks_have_keys() -> None:
    assert block_keys(ROOT, packed([1, 2, 3]), block_size=4) == []
    assert len(block_keys(ROOT, packed([1, 2, 3, 4, 5]), block_size=4)) == 1


def test_i2_private_realm_is_folded_at_the_first_private_token_only() -> None:
    spans = [
        Span(SpanKind.TEMPLATE, 0, 3),
        Span(SpanKind.PREFIX, 3, 9, name="p"),
        Span(SpanKind.PRIVATE, 9, 12),
        Span(SpanKind.TEMPLATE, 12, 14),
        Span(SpanKind.PRIVATE, 14, 20),
    ]
    alice, bob = folds(spans, b"a" * 32, 4), folds(spans, b"b" * 32, 4)
    assert set(alice) == {2}
    tokens = packed(list(range(20)))
    mine, theirs = (block_keys(ROOT, tokens, fold, block_size=4) for fold in (alice, bob))
    assert mine[:2] == theirs[:2]  # declared text is shared
    assert not set(mine[2:]) & set(theirs[2:])  # private text never is


def test_i3_a_document_is_folded_at_the_first_block_it_overlaps() -> None:
    spans = [Span(SpanKind.PREFIX, 0, 6), Span(SpanKind.DOCUMENT, 6, 9, document=DOCUMENT)]
    assert set(folds(spans, b"p" * 32, 4)) == {1}


def test_two_folds_in_one_block_keep_their_order() -> None:
    other = DocumentRef("e", b"e" * 32, 1)
    one = [Span(SpanKind.DOCUMENT, 0, 2, document=DOCUMENT), Span(SpanKind.DOCUMENT, 2, 4, document=other)]
    two = [Span(SpanKind.DOCUMENT, 0, 2, document=other), Span(SpanKind.DOCUMENT, 2, 4, document=DOCUMENT)]
    assert folds(one, b"p" * 32, 4) != folds(two, b"p" * 32, 4)


def test_an_empty_span_folds_nothing() -> None:
    spans = [Span(SpanKind.DOCUMENT, 0, 0, document=DOCUMENT), Span(SpanKind.PREFIX, 0, 4)]
    assert folds(spans, b"p" * 32, 4) == {}


@pytest.mark.parametrize(
    ("spans", "field"),
    [
        ([Span(SpanKind.PRIVATE, 1, 4)], r"spans\[0\]"),
        ([Span(SpanKind.PRIVATE, 0, 2), Span(SpanKind.PRIVATE, 3, 4)], r"spans\[1\]"),
        ([Span(SpanKind.PRIVATE, 0, 3)], "spans"),
        ([Span(SpanKind.DOCUMENT, 0, 4)], r"spans\[0\].document"),
        ([Span(SpanKind.PRIVATE, 0, 4, document=DOCUMENT)], r"spans\[0\].document"),
        ([Span(SpanKind.PRIVATE, 0, 4), Span(SpanKind.PRIVATE, 4, 2)], r"spans\[1\]"),
    ],
)
def test_spans_that_do_not_tile_are_refused_by_field(spans: list[Span], field: str) -> None:
    with pytest.raises(Malformed, match=field):
        check_spans(spans, 4)
