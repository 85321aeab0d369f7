"""The hot path of one node, as JSON: keys, match, restore, engine overhead, memory.

``python bench/hotpath.py --json`` prints

- ``key_100k_ms``: keys of 100,000 tokens, nothing known before;
- ``match_100k_cold_ms``: keys and match of a resident chain of 100,000 tokens that the key memory does not know;
- ``match_100k_known98_ms``: the same when 98,000 of them were seen before, keys of the new part included;
- ``restore_vs_memcpy``: bandwidth at which the engine gathers a reused prefix of 1,120 tokens that lies in single,
  scattered blocks (the worst case: a prefix in few runs is attended where it lies, and nothing is copied), over that of
  one memcpy of the same bytes;
- ``overhead_at_zero_hits``: prefill + decode of unshared prompts in our engine over plain ``generate``, paired medians;
- ``daemon_rss_minus_weights_pool_mib``: what a loaded engine process holds beside weights and pool.

Times are medians. The last two need a model: ``--model DIR`` (default: the demo's, prepared on first use).
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

# As in the daemon, and before torch loads OpenMP: with spinning threads a busy machine measures the spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, NoRoom, StoreLimits
from kvgrove_daemon.engine.attention import StepContext
from kvgrove_daemon.engine.sequence import BlockTable, SequenceState, Slice, StepBatch
from kvgrove_protocol.chain import block_keys

BLOCK = 32
TOKENS = 100_000
KNOWN = 98_000
ROOT = b"r" * 32


def median_ms(run: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None) -> float:
    """Median milliseconds of ``run``; ``prepare`` runs before each and is not timed."""
    times = []
    for _ in range(repeats):
        prepare()
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def random_tokens(count: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 150_000, count, dtype=np.uint32).astype("<u4").tobytes()


def new_store(known_chain_bytes: int = 64 << 20) -> BlockStore:
    slots = 8192
    limits = StoreLimits(known_chain_bytes=known_chain_bytes)
    return BlockStore(RunAllocator(slots), block_size=BLOCK, block_bytes=1, limits=limits)


def fill(store: BlockStore, tokens: bytes) -> None:
    """Make all full blocks of ``tokens`` READY."""
    chain = store.keys(ROOT, tokens, namespace="n")
    build = store.begin(store.match(chain))
    if isinstance(build, NoRoom):
        raise SystemExit("the bench's pool is too small for its own prompt")
    with build:
        build.commit(len(chain.keys), lambda: True)


def keys_and_match(repeats: int) -> dict[str, float]:
    tokens = random_tokens(TOKENS, 1)
    cold = new_store(known_chain_bytes=0)
    fill(cold, tokens)

    def look_up(store: BlockStore, prompt: bytes) -> None:
        with store.match(store.keys(ROOT, prompt, namespace="n")) as match:
            if match.reused_tokens < KNOWN - BLOCK:
                raise SystemExit(f"only {match.reused_tokens} tokens matched: the bench would measure nothing")

    # Each known turn is another one, as in a conversation: the new 2,000 tokens differ, the first 98,000 do not.
    warm = new_store()
    fill(warm, tokens[: KNOWN * 4])
    turns = iter([tokens[: KNOWN * 4] + random_tokens(TOKENS - KNOWN, seed) for seed in range(100, 100 + repeats)])
    return {
        "key_100k_ms": median_ms(lambda: block_keys(ROOT, tokens, block_size=BLOCK), repeats),
        "match_100k_cold_ms": median_ms(lambda: look_up(cold, tokens), repeats),
        "match_100k_known98_ms": median_ms(lambda: look_up(warm, next(turns)), repeats),
    }


def restore(repeats: int) -> float:
    """All layers of SmolLM2's shape, fp32, through the engine's own step context."""
    layers, heads, dim, slots, wanted = 30, 3, 64, 1024, 35
    pool = torch.rand(layers, 2, slots * BLOCK, heads, dim)
    table = BlockTable(BLOCK, random.Random(3).sample(range(slots), wanted + 1))
    sequence = SequenceState(table, wanted * BLOCK)
    step = StepContext.of(StepBatch((Slice(sequence, [1, 2], True),)), pool)
    (segment,) = step.segments
    if segment.slots is None:
        raise SystemExit("the prefix is attended in place: the bench would measure nothing")

    def gather() -> None:
        for layer in range(layers):
            step.context(layer, segment)

    source = pool[:, :, : wanted * BLOCK].contiguous().numpy()
    target = np.empty_like(source)
    torch.set_num_threads(1)
    ratios = []
    for _ in range(repeats):
        copy = median_ms(lambda: np.copyto(target, source), 1)
        ratios.append(copy / median_ms(gather, 1))
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--model", type=Path, default=None, help="model directory for the engine's figures")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--skip-engine", action="store_true", help="only what needs no model")
    arguments = parser.parse_args()
    figures = keys_and_match(arguments.repeats) | {"restore_vs_memcpy": restore(arguments.repeats)}
    if not arguments.skip_engine:
        from engine_overhead import engine_figures

        figures |= engine_figures(arguments.model)
    if arguments.json:
        json.dump({name: round(value, 4) for name, value in figures.items()}, sys.stdout, indent=2)
        print()
    else:
        for name, value in figures.items():
            print(f"{name:40} {value:.4f}")


if __name__ == "__main__":
    main()
