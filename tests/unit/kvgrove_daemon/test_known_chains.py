"""Known chains save hashing and never change a key (I1, I9, I11, PER-01)."""

import numpy as np
import pytest
from block_store_rig import ROOT

from kvgrove_daemon.cache.chains import Chain, KnownChains, _agreement, marks
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind, block_keys, folds

B = 8


def prompt(*parts: tuple[int, int]) -> bytes:
    """Concatenated runs of ``(seed, tokens)``."""
    return b"".join(np.random.default_rng(seed).integers(0, 1000, n, dtype="<u4").tobytes() for seed, n in parts)


def known(limit: int = 1 << 20) -> KnownChains:
    return KnownChains(limit, B, block_keys)


def expected(raw: bytes, block_folds: dict[int, bytes] | None = None, root: bytes = ROOT) -> list[bytes]:
    return block_keys(root, raw, block_folds or {}, block_size=B)


def test_per_01_a_turn_hashes_only_its_new_blocks() -> None:
    chains, total, length = known(), 0, 0
    for _turn in range(40):
        length += 5 * B
        raw = prompt((1, length))
        assert list(chains.chain("ns", ROOT, raw, {}).keys) == expected(raw)
        total += 5
        assert chains.hashed_blocks == total
    assert len(chains) == 1  # a longer chain takes the place of its own beginning


@pytest.mark.parametrize("blocks", [100, 800, 3200])
def test_per_01_hashing_is_linear_in_the_prompt(blocks: int) -> None:
    hashed = []

    def counting(parent: bytes, raw: bytes | memoryview, *args: object, **kwargs: object) -> list[bytes]:
        hashed.append(len(raw))
        return block_keys(parent, raw, *args, **kwargs)  # type: ignore[arg-type]

    KnownChains(1 << 24, B, counting).chain("ns", ROOT, prompt((1, blocks * B)), {})
    assert sum(hashed) == blocks * B * 4


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 100, 250, 399, 400])
def test_a_branch_is_known_up_to_where_it_leaves(cut: int) -> None:
    chains = known()
    chains.chain("ns", ROOT, prompt((1, 400)), {})
    raw = prompt((1, 400))[: cut * 4] + prompt((2, 200))
    assert list(chains.chain("ns", ROOT, raw, {}).keys) == expected(raw)
    # All but what lies behind the deepest probe that the branch shares, at most a fifth.
    assert chains.recalled_blocks >= (cut // B) * 5 // 6 - 1


def test_equal_tokens_under_other_folds_or_roots_get_their_own_keys() -> None:
    chains = known()
    raw = prompt((1, 400))
    for root in (ROOT, b"o" * 32):
        for block_folds in ({}, {0: b"a"}, {0: b"b"}, {10: b"a"}, {10: b"a", 20: b"b"}, {49: b"c"}, {60: b"later"}):
            assert list(chains.chain("ns", root, raw, block_folds).keys) == expected(raw, block_folds, root)


def test_i1_a_probe_that_collides_recalls_nothing() -> None:
    raw = prompt((1, 400))
    chain = Chain("ns", ROOT, raw, expected(raw), B, {20: b"fold"})
    assert _agreement(chain, ROOT, raw, {20: b"fold"}, 50) == 50
    assert _agreement(chain, ROOT, raw, {20: b"other"}, 50) == 20
    assert _agreement(chain, ROOT, raw, {}, 50) == 20
    assert _agreement(chain, b"o" * 32, raw, {20: b"fold"}, 50) == 0


def test_repeated_text_does_not_confuse_the_probes() -> None:
    chains = known()
    same = prompt((1, B))
    for count in (3, 50, 20, 51, 7):
        for head in (b"", prompt((2, B))):
            raw = head + same * count
            assert list(chains.chain("ns", ROOT, raw, {}).keys) == expected(raw)


def test_i11_memory_is_bounded_and_the_least_recent_chain_goes() -> None:
    chains = known(limit=40_000)
    kept = prompt((0, 400))
    for n in range(1, 60):
        chains.chain("ns", ROOT, kept, {})
        chains.chain("ns", ROOT, prompt((n, 400)), {})
        assert chains.bytes <= 40_000
    before = chains.hashed_blocks
    chains.chain("ns", ROOT, kept, {})
    assert chains.hashed_blocks == before
    chains.chain("ns", ROOT, prompt((1, 400)), {})
    assert chains.hashed_blocks == before + 50
    chains.chain("ns", ROOT, prompt((99, 40_000)), {})  # larger than the whole bound: computed, not kept
    assert chains.bytes <= 40_000


def test_what_is_forgotten_leaves_no_bytes() -> None:
    chains = known()
    for n in range(5):
        chains.chain(f"ns{n % 2}", ROOT, prompt((n, 100)), {})
    assert chains.forget(lambda chain: chain.namespace == "ns0") == 3
    assert len(chains) == 2
    assert chains.forget(lambda _chain: True) == 2
    assert (chains.bytes, len(chains._by_probe)) == (0, 0)


def test_marks_fold_the_private_realm_in_where_generated_text_begins() -> None:
    reference = DocumentRef("handbook", b"d" * 32, 3)
    spans = [
        Span(SpanKind.TEMPLATE, 0, 3),
        Span(SpanKind.PREFIX, 3, 12, name="p"),
        Span(SpanKind.DOCUMENT, 12, 20, document=reference),
        Span(SpanKind.TEMPLATE, 20, 24),
    ]
    declared_only = marks(spans, b"alice" * 6, B)
    assert declared_only.documents == {1: ("handbook@3",)}
    assert set(declared_only.folds) == {1, 3}
    assert declared_only.folds[3] != marks(spans, b"bob" * 10, B).folds[3]
    with_private = [*spans, Span(SpanKind.PRIVATE, 24, 30)]
    assert marks(with_private, b"alice" * 6, B).folds == folds(with_private, b"alice" * 6, B) == declared_only.folds
    assert set(marks([], b"alice", B).folds) == {0}
