"""I1 exact on a real model: SmolLM2 in fp32, logits after reuse within 2e-4 of a cold run (they reach 43)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from exactness import Check, Prompt, Rig

BLOCK = 32
pytestmark = pytest.mark.smollm2


@pytest.fixture(scope="module")
def rig(smollm2: Path) -> Iterator[Rig]:
    rig = Rig(smollm2, "float32", block_size=BLOCK, num_slots=96)
    yield rig
    rig.close()


def check(rig: Rig, prompt: Prompt, logits: torch.Tensor) -> Check:
    return Check.absolute(logits, rig.cold(prompt), 2e-4)


@pytest.mark.parametrize("fragmented", [False, True], ids=["contiguous", "fragmented"])
@pytest.mark.parametrize(
    ("reused", "length"), [(BLOCK, 2 * BLOCK + 7), (7 * BLOCK, 8 * BLOCK - 3), (9 * BLOCK, 9 * BLOCK + 1)]
)
def test_i1_reuse_is_exact_alone_and_batched(rig: Rig, reused: int, length: int, fragmented: bool) -> None:
    subject = rig.prompt(length, reused)
    for prompts in ([subject], [rig.prompt(19), subject, rig.prompt(2 * BLOCK + 3, reused=BLOCK)]):
        for prompt, logits in zip(prompts, rig.reuse(prompts, fragmented=fragmented), strict=True):
            verdict = check(rig, prompt, logits)
            assert verdict.passed, verdict.detail


def test_a_corrupted_block_fails_the_check(rig: Rig) -> None:
    prompt = rig.prompt(4 * BLOCK, reused=3 * BLOCK)
    (logits,) = rig.reuse([prompt], meddle=lambda prefixes: rig.corrupt(prefixes[0][1]))
    assert not check(rig, prompt, logits).passed


def test_a_shifted_position_fails_the_check(rig: Rig) -> None:
    prompt = rig.prompt(4 * BLOCK, reused=3 * BLOCK)
    restore: list[Callable[[], None]] = []
    (logits,) = rig.reuse([prompt], meddle=lambda _prefixes: restore.append(rig.shift_positions()))
    restore[0]()
    assert not check(rig, prompt, logits).passed
