"""The router's index and decision, as JSON, beside another router's tree on the same blocks.

``python bench/router.py --json`` prints, for 64 nodes and 1,000,000 blocks indexed in chains of 1,000:

- ``decision_p50_ms``, ``decision_p99_ms``: from keys to a node, for prompts of 1,000 blocks of which nodes hold
  parts of all lengths; matches of all 64 nodes, scores, the choice, and what is noted when it is sent;
- ``choose_p50_ms``, ``choose_p99_ms``: of that, what a request waits for; the notes are made while it is on its way;
- ``intake_blocks_per_s``: residency events, from the received message to the index: decoding, the check that nothing
  drifted, sequence and boot, included; batches of 256 blocks;
- ``bytes_per_block``: what the index allocates for a block;
- ``score_3750x96_ms``: matches of a 3,750-block prompt on 96 nodes;
- ``dynamo_*``: the same events and look-ups through ``RadixTree``: intake from its JSON, matches alone.

The last need ``ai-dynamo-runtime`` in the environment; without it they are left out, and stderr says so. Ours are of
the thread's own time, so that they tell of the router and not of whatever else runs on the machine; theirs, who work in
another thread, by the wall clock.
"""

import argparse
import hashlib
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.router.placement import NodeView, Router
from kvgrove_protocol.data import TO_GATEWAY
from kvgrove_protocol.events import (
    NOTHING_LISTED,
    EventBatch,
    Listing,
    NodeLoad,
    SnapshotChunk,
    Stored,
    fingerprint,
)

NODES = 64
CHAINS = 1000
CHAIN_BLOCKS = 1000
BATCH_BLOCKS = 256
BLOCK_TOKENS = 32
LOAD = NodeLoad(0, 0, 10_000.0, 0.0, 0)


def chains(count: int, length: int, seed: int = 1) -> list[list[bytes]]:
    """Keys as SHA-256 gives them."""
    return [
        [hashlib.sha256(f"{seed} {chain} {block}".encode()).digest() for block in range(length)]
        for chain in range(count)
    ]


def percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]


def timed_ms(what: Callable[[], object]) -> float:
    """Less what an empty call takes: the thread's clock is a system call, dear on some machines."""
    began = time.thread_time()
    what()
    return (time.thread_time() - began) * 1e3 - CLOCK_MS


def clock_ms() -> float:
    times = []
    for _ in range(1001):
        began = time.thread_time()
        times.append((time.thread_time() - began) * 1e3)
    return percentile(times, 0.5)


CLOCK_MS = clock_ms()


def frames(node: int, held: Sequence[Sequence[bytes]]) -> list[bytes]:
    """What ``node`` sends about these chains: batches as they come off the wire."""
    keys = [key for chain in held for key in chain]
    listing, sent = NOTHING_LISTED, []
    for seq, at in enumerate(range(0, len(keys), BATCH_BLOCKS)):
        joined = b"".join(keys[at : at + BATCH_BLOCKS])
        listing = Listing(listing.count + len(joined) // 32, listing.digest ^ fingerprint(joined, "host"))
        batch = EventBatch(boot=f"b{node}", seq=seq, events=[Stored(keys=joined)], load=LOAD, listing=listing)
        sent.append(TO_GATEWAY.encode(batch))
    return sent


def intake(index: BlockIndex, sent: Sequence[Sequence[bytes]]) -> tuple[float, list[NodeResidency]]:
    """Blocks per second, and the streams by node."""
    metrics = Metrics()
    streams = []
    for node in range(len(sent)):
        stream = NodeResidency(index, metrics, f"n{node}")
        stream.begin(f"b{node}", 0.0, "start")
        stream.chunk(SnapshotChunk(boot=f"b{node}", seq=-1, index=0, last=True, keys=b""), 0.0)
        streams.append(stream)
    began = time.thread_time()
    blocks = 0
    for stream, batches in zip(streams, sent, strict=True):
        for frame in batches:
            message = TO_GATEWAY.decode(frame)
            if not isinstance(message, EventBatch):
                raise SystemExit("the bench's own frame is no batch")
            if stream.batch(message, 0.0) is not None:
                raise SystemExit("the stream asks for a snapshot: the bench would measure something else")
        blocks += stream.listing.count
    return blocks / (time.thread_time() - began), streams


def decisions(
    index: BlockIndex, streams: Sequence[NodeResidency], known: Sequence[list[bytes]], repeats: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of whole decisions, and of the choice alone."""
    router = Router(index, clock=time.monotonic, deadline_s=60.0)  # what is measured is the whole work
    chance = random.Random(3)
    whole, choosing = [], []
    for number in range(repeats):
        base = chance.choice(known)
        shared = chance.randrange(CHAIN_BLOCKS)
        prompt = base[:shared] + chains(1, CHAIN_BLOCKS - shared, seed=1000 + number)[0]
        views = [
            NodeView(f"n{at}", stream.slot, chance.randrange(50_000), chance.randrange(8), 10_000.0)
            for at, stream in enumerate(streams)
        ]

        began = time.thread_time()
        choice = router.choose(views, CHAIN_BLOCKS * BLOCK_TOKENS, prompt, BLOCK_TOKENS)
        chosen = time.thread_time()
        router.dispatched(choice)
        choosing.append((chosen - began) * 1e3 - CLOCK_MS)
        whole.append((time.thread_time() - began) * 1e3 - 2 * CLOCK_MS)
    return whole, choosing


def holdings(known: Sequence[list[bytes]]) -> list[list[list[bytes]]]:
    """Node -> chains it holds. Each chain is whole on one node, and in part on up to three more."""
    chance = random.Random(2)
    held: list[list[list[bytes]]] = [[] for _ in range(NODES)]
    for at, chain in enumerate(known):
        held[at % NODES].append(chain)
        for node in chance.sample(range(NODES), 3):
            if node != at % NODES:
                held[node].append(chain[: chance.randrange(1, CHAIN_BLOCKS // 2)])
    return held


def bytes_per_block(held: Sequence[Sequence[Sequence[bytes]]]) -> float:
    tracemalloc.start()
    index = BlockIndex(2 * CHAINS * CHAIN_BLOCKS)
    for node in held:
        slot = index.open_slot()
        for chain in node:
            index.store(slot, b"".join(chain), "host")
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(index)


def many_nodes() -> float:
    index, (chain,) = BlockIndex(10_000), chains(1, 3750)
    slots = {f"n{at}": index.open_slot() for at in range(96)}
    for at, slot in enumerate(slots.values()):
        index.store(slot, b"".join(chain[: at * 39]), "host")
    return percentile([timed_ms(lambda: index.weighed_matches(slots, chain)) for _ in range(101)], 0.5)


def beside_dynamo(
    held: Sequence[Sequence[Sequence[bytes]]], known: Sequence[list[bytes]], repeats: int
) -> dict[str, float]:
    try:
        from dynamo.llm import RadixTree
    except ImportError:
        print("SKIPPED: ai-dynamo-runtime is not installed, nothing to compare with", file=sys.stderr)
        return {}

    def number(key: bytes) -> int:
        return int.from_bytes(key[:8], "little")

    events: list[tuple[int, bytes]] = []
    blocks = 0
    for node, node_chains in enumerate(held):
        for event_id, chain in enumerate(node_chains):
            stored = [{"block_hash": number(key), "tokens_hash": number(key)} for key in chain]
            event = {"event_id": event_id, "data": {"stored": {"parent_hash": None, "blocks": stored}}, "dp_rank": 0}
            events.append((node, json.dumps(event).encode()))
            blocks += len(chain)
    tree = RadixTree()
    began = time.perf_counter()
    for node, payload in events:
        tree.apply_event(node, payload)
    tree.find_matches([number(known[-1][0])])  # events are applied by another thread: wait for the last one
    took = time.perf_counter() - began
    chance = random.Random(3)
    times, scored = [], 0
    for _ in range(repeats):
        hashes = [number(key) for key in chance.choice(known)]
        began = time.perf_counter()
        found = tree.find_matches(hashes)
        times.append((time.perf_counter() - began) * 1e3)
        scored += len(found.scores)
    if not scored:
        raise SystemExit("the tree found nothing of what was stored: the bench would compare nothing")
    return {
        "dynamo_intake_blocks_per_s": blocks / took,
        "dynamo_find_matches_p50_ms": percentile(times, 0.5),
        "dynamo_find_matches_p99_ms": percentile(times, 0.99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (default: a line per figure)")
    parser.add_argument("--repeats", type=int, default=1000, help="decisions")
    arguments = parser.parse_args()
    known = chains(CHAINS, CHAIN_BLOCKS)
    held = holdings(known)
    index = BlockIndex(2 * CHAINS * CHAIN_BLOCKS)
    rate, streams = intake(index, [frames(node, node_chains) for node, node_chains in enumerate(held)])
    whole, choosing = decisions(index, streams, known, arguments.repeats)
    figures = {
        "nodes": NODES,
        "indexed_blocks": len(index),
        "decision_p50_ms": percentile(whole, 0.5),
        "decision_p99_ms": percentile(whole, 0.99),
        "choose_p50_ms": percentile(choosing, 0.5),
        "choose_p99_ms": percentile(choosing, 0.99),
        "intake_blocks_per_s": rate,
        "bytes_per_block": bytes_per_block(held),
        "score_3750x96_ms": many_nodes(),
    }
    figures |= beside_dynamo(held, known, arguments.repeats)
    if arguments.json:
        json.dump({name: round(value, 4) for name, value in figures.items()}, sys.stdout, indent=2)
        print()
    else:
        for name, value in figures.items():
            print(f"{name:30} {value:.4f}")


if __name__ == "__main__":
    main()
