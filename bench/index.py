"""The index of one node, as JSON: keys, match, store, evict, memory, beside another router's tree.

``python bench/index.py --json`` prints

- ``key_ns_per_token``: keys of 100,000 tokens, nothing known before;
- ``match_6250_ms``: match of a resident chain of 6,250 blocks whose keys are known: look-up, comparison of all tokens,
  lease and its end;
- ``turn_2000_on_98000_ms``: keys and match of 100,000 tokens of which 98,000 were seen before;
- ``store_ops_s``, ``evict_ops_s``: blocks made READY, and evicted by the default policy, per second;
- ``bytes_per_block``: what a full store allocates for a block, its tokens, key and policy included;
- ``match_p99_pressured_over_unpressured``: 99th percentiles of match and lease of 250-block prompts, in a pool that
  holds half of those asked for, so that each request stores what it missed and others give way for it, partly by
  relief and partly at once, over the same requests in a pool that holds them all; of the thread's own time, so that
  it tells of the cache and not of whatever else runs on the machine;
- ``match_p99_wall_pressured_over_unpressured``: the same by the wall clock;
- ``match_speedup_vs_dynamo``: the time of ``RadixTree.find_matches`` over the same blocks, over ``match_6250_ms``;
- ``lookup_speedup_vs_dynamo``: the same over a look-up by keys alone, which is all that the tree does;
- ``known_prompt_speedup_vs_dynamo``: both of theirs, from tokens to match, over our keys and match of a prompt whose
  chain is known, as a retry or a next turn is: theirs keeps nothing that spares the hashing;
- ``key_speedup_vs_dynamo``: ``compute_block_hash_for_seq`` per token, over our keys.

The four beside another router need ``ai-dynamo-runtime`` in the environment; without it they are left out, and stderr
says so. Times are medians unless said otherwise.
"""

import argparse
import json
import statistics
import sys
import time
import tracemalloc
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hotpath import BLOCK, ROOT, TOKENS, fill, keys_and_match, median_ms, new_store, random_tokens

from kvgrove_daemon.cache.eviction import CostAware
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, NoRoom, StoreLimits

BLOCKS = 6250
FULL = 65_536


def default_store(slots: int) -> BlockStore:
    """With the policy that nodes use, and no memory of chains: what is measured is the index."""
    limits = StoreLimits(known_chain_bytes=0)
    return BlockStore(RunAllocator(slots), block_size=BLOCK, block_bytes=1, limits=limits, policy=CostAware(slots))


@dataclass(frozen=True)
class Looking:
    """Milliseconds of one look at the same 6,250 resident blocks."""

    match: float
    by_keys_alone: float
    keys_and_match: float


def looking(prompt: bytes, repeats: int) -> Looking:
    store = new_store()
    fill(store, prompt)
    prompt += b"\0" * 4  # one token more: all blocks can be reused
    chain = store.keys(ROOT, prompt, namespace="n")
    index = store._resident.index

    def match() -> None:
        with store.match(chain) as found:
            if found.blocks != BLOCKS:
                raise SystemExit(f"only {found.blocks} blocks matched: the bench would measure nothing")

    return Looking(
        match=median_ms(match, repeats),
        by_keys_alone=median_ms(lambda: index.listed_prefix(chain.keys, BLOCKS), repeats),
        keys_and_match=median_ms(lambda: store.match(store.keys(ROOT, prompt, namespace="n")).release(), repeats),
    )


def store_and_evict_ops(prompt: bytes, repeats: int) -> tuple[float, float]:
    """Blocks per second. Chains of 100 blocks, as prompts are, so that eviction works on many leaves."""
    prompts = [prompt[at : at + 100 * BLOCK * 4] for at in range(0, len(prompt), 100 * BLOCK * 4)]
    stored, evicted = [], []
    for _ in range(repeats):
        store = default_store(BLOCKS)
        began = time.perf_counter()
        for one in prompts:
            fill(store, one)
        filled = time.perf_counter()
        count = store.evict_to(BLOCKS, limit=BLOCKS)
        evicted.append(count / (time.perf_counter() - filled))
        stored.append(count / (filled - began))
    return statistics.median(stored), statistics.median(evicted)


def bytes_per_block() -> float:
    tracemalloc.start()
    store = default_store(FULL)
    for seed in range(FULL // 1024):
        fill(store, random_tokens(1024 * BLOCK, seed))
    ready = store.stats().ready
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / ready


class Took(NamedTuple):
    """Seconds of one match with its lease: the thread's own, and by the wall clock."""

    own: float
    wall: float


class Served:
    """Requests to one store, each served in full, of which only match and lease are timed."""

    def __init__(self, slots: int) -> None:
        limits = StoreLimits(low_free=slots // 20, high_free=slots // 10)
        self._store = BlockStore(
            RunAllocator(slots), block_size=BLOCK, block_bytes=1, limits=limits, policy=CostAware(slots)
        )

    def serve(self, prompt: bytes) -> Took | None:
        """What match and lease took; None where the prompt was not resident as a whole."""
        store = self._store
        chain = store.keys(ROOT, prompt, namespace="n")
        own, wall = time.thread_time(), time.perf_counter()
        match = store.match(chain)
        took = Took(time.thread_time() - own, time.perf_counter() - wall)
        found = match.blocks
        build = store.begin(match)
        if isinstance(build, NoRoom):
            raise SystemExit("the bench's pool is too small for its own prompt")
        with build:
            build.commit(len(chain.keys), lambda: True)
        store.relieve(64)
        return took if found == len(chain.keys) else None


def match_p99_ratios(count: int = 6000) -> Took:
    """Pressured over unpressured, of requests that found the same 250 blocks in both pools.

    The pools take turns with each request, and the order of the two changes, so that they find the processor's caches
    and whatever else runs on the machine alike. Requests that found less under pressure are in neither.
    """
    prompts, blocks = 64, 250
    known = [random_tokens(blocks * BLOCK + 1, seed) for seed in range(prompts)]
    pressured, unpressured = Served(prompts * blocks // 2), Served(2 * prompts * blocks)
    times: list[tuple[Took, Took]] = []
    for number, at in enumerate(np.random.default_rng(7).integers(0, prompts, count).tolist()):
        if number % 2:
            ours, theirs = pressured.serve(known[at]), unpressured.serve(known[at])
        else:
            theirs, ours = unpressured.serve(known[at]), pressured.serve(known[at])
        if ours is not None and theirs is not None:
            times.append((ours, theirs))
    if len(times) < 1000:
        raise SystemExit(f"only {len(times)} prompts were resident: the bench would measure nothing")
    own, wall = (p99([each[0][kind] for each in times]) / p99([each[1][kind] for each in times]) for kind in (0, 1))
    return Took(own, wall)


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def beside_dynamo(prompt: bytes, ours: Looking, key_ns: float, repeats: int) -> dict[str, float]:
    try:
        from dynamo.llm import RadixTree, compute_block_hash_for_seq
    except ImportError:
        print("SKIPPED: ai-dynamo-runtime is not installed, nothing to compare with", file=sys.stderr)
        return {}
    tokens = np.frombuffer(prompt, "<u4").tolist()
    hashes = compute_block_hash_for_seq(tokens, BLOCK)
    blocks = [{"block_hash": at + 1, "tokens_hash": value} for at, value in enumerate(hashes)]
    event = {"event_id": 0, "data": {"stored": {"parent_hash": None, "blocks": blocks}}, "dp_rank": 0}
    tree = RadixTree()
    tree.apply_event(1, json.dumps(event).encode())
    if set(tree.find_matches(hashes).scores.values()) != {BLOCKS}:
        raise SystemExit("the tree does not hold what was stored: the bench would compare nothing")
    tree_ms = median_ms(lambda: tree.find_matches(hashes), repeats)
    hash_ms = median_ms(lambda: compute_block_hash_for_seq(tokens, BLOCK), repeats)
    hash_ns = hash_ms * 1e6 / len(tokens)
    return {
        "dynamo_find_matches_6250_ms": tree_ms,
        "dynamo_hash_ns_per_token": hash_ns,
        "match_speedup_vs_dynamo": tree_ms / ours.match,
        "lookup_speedup_vs_dynamo": tree_ms / ours.by_keys_alone,
        "known_prompt_speedup_vs_dynamo": (hash_ms + tree_ms) / ours.keys_and_match,
        "key_speedup_vs_dynamo": hash_ns / key_ns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--repeats", type=int, default=31)
    arguments = parser.parse_args()
    prompt = random_tokens(BLOCKS * BLOCK, 1)
    path = keys_and_match(arguments.repeats)
    looks = looking(prompt, arguments.repeats)
    stored, evicted = store_and_evict_ops(prompt, min(arguments.repeats, 7))
    pressed = match_p99_ratios()
    figures = {
        "key_ns_per_token": path["key_100k_ms"] * 1e6 / TOKENS,
        "match_6250_ms": looks.match,
        "turn_2000_on_98000_ms": path["match_100k_known98_ms"],
        "store_ops_s": stored,
        "evict_ops_s": evicted,
        "bytes_per_block": bytes_per_block(),
        "match_p99_pressured_over_unpressured": pressed.own,
        "match_p99_wall_pressured_over_unpressured": pressed.wall,
    }
    figures |= beside_dynamo(prompt, looks, figures["key_ns_per_token"], arguments.repeats)
    if arguments.json:
        json.dump({name: round(value, 4) for name, value in figures.items()}, sys.stdout, indent=2)
        print()
    else:
        for name, value in figures.items():
            print(f"{name:40} {value:.4f}")


if __name__ == "__main__":
    main()
