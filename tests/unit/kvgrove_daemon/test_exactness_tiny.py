"""I1 exact: logits after reuse equal those of a cold run, for every supported family.

fp32: within 1e-5 and the same best token. bf16: no farther from the fp32 run than 1.5 times the plain bf16 run is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from exactness import Check, Prompt, Rig

from kvgrove_daemon.engine.attention import MAX_VIEWS
from kvgrove_daemon.engine.families import SUPPORTED

BLOCK = 16
# (tokens reused, tokens of the prompt)
PREFIXES = {
    "one block": (BLOCK, 87),
    "odd number of blocks": (5 * BLOCK, 101),
    "all but one token": (5 * BLOCK, 5 * BLOCK + 1),
    "more runs than views": (11 * BLOCK, 11 * BLOCK + 9),
}


@pytest.fixture(scope="module", params=[(f, d) for f in SUPPORTED for d in ("float32", "bfloat16")], ids="-".join)
def rig(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[Rig]:
    family, dtype = request.param
    rig = Rig(tiny_model(family), dtype, block_size=BLOCK)
    yield rig
    rig.close()


def check(rig: Rig, prompt: Prompt, logits: torch.Tensor) -> Check:
    if rig.arena.layout.dtype == "float32":
        return Check.absolute(logits, rig.cold(prompt), 1e-5)
    return Check.against_fp32(logits, rig.cold(prompt), rig.cold(prompt, fp32=True), 1.5)


def with_neighbours(rig: Rig, subject: Prompt) -> list[Prompt]:
    """Left: a cold prompt and a short reuse. Right: a prompt reused down to its last token, and a long one."""
    left = [rig.prompt(23), rig.prompt(3 * BLOCK + 5, reused=2 * BLOCK)]
    right = [rig.prompt(4 * BLOCK + 1, reused=4 * BLOCK), rig.prompt(9 * BLOCK + 3, reused=BLOCK)]
    return [*left, subject, *right]


@pytest.mark.parametrize("fragmented", [False, True], ids=["contiguous", "fragmented"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_i1_reuse_alone_is_exact(rig: Rig, prefix: str, fragmented: bool) -> None:
    reused, length = PREFIXES[prefix]
    prompt = rig.prompt(length, reused)
    (logits,) = rig.reuse([prompt], fragmented=fragmented)
    verdict = check(rig, prompt, logits)
    assert verdict.passed, verdict.detail


@pytest.mark.parametrize("fragmented", [False, True], ids=["contiguous", "fragmented"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_i1_reuse_among_neighbours_is_exact_for_all_of_them(rig: Rig, prefix: str, fragmented: bool) -> None:
    reused, length = PREFIXES[prefix]
    prompts = with_neighbours(rig, rig.prompt(length, reused))
    for prompt, logits in zip(prompts, rig.reuse(prompts, fragmented=fragmented), strict=True):
        verdict = check(rig, prompt, logits)
        assert verdict.passed, f"{len(prompt.tokens)} tokens, {prompt.reused} reused: {verdict.detail}"


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batched"])
def test_a_corrupted_block_fails_the_check(rig: Rig, batched: bool) -> None:
    prompt = rig.prompt(101, reused=5 * BLOCK)
    prompts = with_neighbours(rig, prompt) if batched else [prompt]
    at = prompts.index(prompt)
    logits = rig.reuse(prompts, meddle=lambda prefixes: rig.corrupt(prefixes[at][2]))
    for i, each in enumerate(prompts):
        assert check(rig, each, logits[i]).passed == (i != at), "the fault reaches its own sequence and no other"


def test_a_shifted_position_fails_the_check(rig: Rig) -> None:
    prompt = rig.prompt(101, reused=5 * BLOCK)
    restore: list[Callable[[], None]] = []
    # Only what follows the prefix is shifted: RoPE is relative, so a shift of everything would rightly change nothing.
    (logits,) = rig.reuse([prompt], meddle=lambda _prefixes: restore.append(rig.shift_positions()))
    restore[0]()
    assert not check(rig, prompt, logits).passed


def test_fragmented_tables_reach_both_ways_of_reading() -> None:
    blocks = sorted(length // BLOCK + 1 for _, length in PREFIXES.values())
    assert blocks[0] <= MAX_VIEWS < blocks[-1]
