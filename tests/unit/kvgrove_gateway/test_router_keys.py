"""The router's keys are the daemon's keys, whatever is remembered (ISO-08)."""

import random

from kvgrove_gateway.router.keys import SEGMENT_BLOCKS, KnownChains
from kvgrove_protocol.chain import block_keys

BLOCK = 4
ROOT = b"r" * 32


def tokens(count: int, source: random.Random) -> bytes:
    return source.randbytes(count * 4)


def test_parity_for_500_random_requests_that_share_beginnings() -> None:
    source = random.Random(5)
    known = KnownChains(200)
    trunk = tokens(BLOCK * SEGMENT_BLOCKS * 6, source)
    roots = [source.randbytes(32) for _ in range(3)]
    for _ in range(500):
        text = trunk[: source.randrange(len(trunk)) // 4 * 4] + tokens(source.randrange(600), source)
        blocks = len(text) // (4 * BLOCK)
        folds = {
            source.randrange(blocks + 1): source.choice([b"x", b"y", b"longer"]) for _ in range(source.randrange(3))
        }
        root = source.choice(roots)
        assert known.keys(root, text, folds, block_size=BLOCK) == block_keys(root, text, folds, block_size=BLOCK)


def test_a_known_beginning_is_not_keyed_again() -> None:
    source = random.Random(1)
    known = KnownChains(100)
    text = tokens(BLOCK * SEGMENT_BLOCKS * 3, source)
    first = known.keys(ROOT, text, block_size=BLOCK)
    assert len(known) == 3
    longer = known.keys(ROOT, text + tokens(BLOCK * SEGMENT_BLOCKS, source), block_size=BLOCK)
    assert len(known) == 4
    assert longer[: len(first)] == first


def test_the_block_size_is_part_of_what_is_remembered() -> None:
    source = random.Random(2)
    known = KnownChains(100)
    text = tokens(SEGMENT_BLOCKS * 64, source)
    for size in (32, 64, 16):
        assert known.keys(ROOT, text, block_size=size) == block_keys(ROOT, text, block_size=size)


def test_the_memory_is_bounded() -> None:
    source = random.Random(3)
    known = KnownChains(5)
    for _ in range(20):
        known.keys(ROOT, tokens(BLOCK * SEGMENT_BLOCKS * 2, source), block_size=BLOCK)
        assert len(known) <= 5
