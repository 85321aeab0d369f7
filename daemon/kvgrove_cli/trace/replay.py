"""A trace through the node's own cache: keys, index, leases and eviction are the real ones, only bytes are simulated.

Role: judge eviction policies, and placement over several nodes, by reused tokens. Invariants: a block counts as a hit
only if it and all before it are resident when the request arrives; outputs are not cached; the pool holds exactly the
given capacity. Knows no file format.

Each block id becomes 512 tokens that no other id has, so keys are hashed and tokens compared as for a real prompt. One
token more follows each prompt, since a node always computes the last one itself: every block of the trace can be hit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from kvgrove_cli.trace.requests import BLOCK_TOKENS, Request, Trace
from kvgrove_daemon.cache.eviction import POLICIES
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.store import BlockStore, Chain, NoRoom
from kvgrove_gateway.router.decide import Candidate, decide
from kvgrove_protocol.chain import TOKEN_BYTES

_ROOT: Final = bytes(32)
_BUSY: Final = 0.8
_NAMESPACE: Final = "trace"
_OFFSETS: Final = np.arange(BLOCK_TOKENS, dtype=np.uint32)
_LAST_TOKEN: Final = np.array([2**32 - 1], dtype="<u4").tobytes()
MAX_BLOCKS: Final = (2**32 - 1) // BLOCK_TOKENS
"""Ids that have 512 tokens of their own among the 32-bit ones."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What `kvgrove trace replay --json` prints."""

    format: str
    policy: str
    nodes: int
    requests: int
    unique_blocks: int
    capacity_blocks: int
    """Of all nodes."""
    prompt_tokens: int
    hit_tokens: int
    token_hit_ratio: float
    evictions: int
    cut_requests: int
    """Longer than a whole node's capacity: only their first blocks are stored."""
    imbalance: float
    """Prefilled tokens of the busiest node over the mean."""
    wall_s: float


@dataclass(slots=True)
class _Node:
    store: BlockStore
    slots: int
    prefilled: int = 0
    backlog: float = 0.0
    """Prefill tokens ahead of a request, at `backlog_at_ms`."""
    backlog_at_ms: float = 0.0
    cut: int = 0

    def queued(self, at_ms: float, tokens_per_ms: float) -> float:
        return max(self.backlog - (at_ms - self.backlog_at_ms) * tokens_per_ms, 0.0)

    def chain(self, tokens: bytes) -> Chain:
        return self.store.keys(_ROOT, tokens, namespace=_NAMESPACE)

    def serve(self, request: Request, tokens: bytes) -> int:
        """Reused tokens of ``request``, whose blocks are resident afterwards, as many as the pool holds."""
        room = self.slots * BLOCK_TOKENS * TOKEN_BYTES
        if len(tokens) - TOKEN_BYTES > room:
            self.cut += 1
            tokens = tokens[:room] + _LAST_TOKEN
        chain = self.chain(tokens)
        match = self.store.match(chain)
        hit = min(match.reused_tokens, request.prompt_tokens)
        build = self.store.begin(match)
        if isinstance(build, NoRoom):
            raise RuntimeError(f"{build.wanted} blocks found no room in an idle pool of {self.slots}")
        with build:
            build.commit(len(chain.keys), lambda: True)
        self.prefilled += request.prompt_tokens - hit
        return hit


class _Placement:
    """The gateway's decision, over queues of nodes that are `_BUSY` of the time busy, by what was prefilled so far.

    A trace does not say how fast its nodes were. With fast ones queues are always empty and affinity alone decides.
    """

    def __init__(self, trace: Trace, nodes: Sequence[_Node]) -> None:
        self._nodes = nodes
        self._began_ms = trace.requests[0].at_ms
        self._prefilled = 0
        self._tokens_per_ms = 1.0
        self._served = [0] * len(nodes)

    def choose(self, request: Request, tokens: bytes) -> int:
        if len(self._nodes) == 1:
            return 0
        # Keys are the same everywhere: the first node's memory of them serves all.
        chain = self._nodes[0].chain(tokens)
        candidates = [
            Candidate(
                node=str(at),
                matched_tokens=min(node.store.ready_blocks(chain) * BLOCK_TOKENS, request.prompt_tokens),
                queued_tokens=int(node.queued(request.at_ms, self._tokens_per_ms)),
                requests=self._served[at],
                prefill_tokens_per_s=self._tokens_per_ms * 1e3,
            )
            for at, node in enumerate(self._nodes)
        ]
        anchor = chain.keys[0] if chain.keys else b""
        return int(decide(candidates, request.prompt_tokens, anchor=anchor).node)

    def placed(self, at: int, request: Request, prefilled: int) -> None:
        node = self._nodes[at]
        node.backlog = node.queued(request.at_ms, self._tokens_per_ms) + prefilled
        node.backlog_at_ms = request.at_ms
        self._served[at] += 1
        self._prefilled += prefilled
        elapsed = max(request.at_ms - self._began_ms, 1.0)
        self._tokens_per_ms = max(self._prefilled / elapsed / len(self._nodes) / _BUSY, 1e-6)


def replay(
    trace: Trace, *, policy: str, capacity_blocks: int, nodes: int, requests: Iterable[Request] | None = None
) -> Outcome:
    """Serve ``trace`` (at most `MAX_BLOCKS` unique blocks) on ``nodes`` nodes that share ``capacity_blocks`` evenly.

    ``requests``: those of the trace, by whoever wants to watch them pass.
    """
    began = time.perf_counter()
    slots = capacity_blocks // nodes
    members = [_Node(_store(slots, policy), slots) for _ in range(nodes)]
    placement = _Placement(trace, members)
    prompt_tokens = hit_tokens = count = 0
    for request in trace.requests if requests is None else requests:
        tokens = _tokens(request.blocks)
        at = placement.choose(request, tokens)
        hit = members[at].serve(request, tokens)
        placement.placed(at, request, request.prompt_tokens - hit)
        prompt_tokens += request.prompt_tokens
        hit_tokens += hit
        count += 1
    prefilled = [member.prefilled for member in members]
    return Outcome(
        format=trace.format,
        policy=policy,
        nodes=nodes,
        requests=count,
        unique_blocks=trace.unique_blocks,
        capacity_blocks=slots * nodes,
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
        token_hit_ratio=hit_tokens / prompt_tokens if prompt_tokens else 0.0,
        evictions=sum(sum(member.store.stats().removed.values()) for member in members),
        cut_requests=sum(member.cut for member in members),
        imbalance=max(prefilled) * nodes / sum(prefilled) if sum(prefilled) else 1.0,
        wall_s=time.perf_counter() - began,
    )


def _store(slots: int, policy: str) -> BlockStore:
    # One slot more than the capacity: it holds the token behind the prompt while a request is served, and never stays.
    return BlockStore(
        RunAllocator(slots + 1), block_size=BLOCK_TOKENS, block_bytes=BLOCK_TOKENS, policy=POLICIES[policy](slots + 1)
    )


def _tokens(blocks: Sequence[int]) -> bytes:
    ids = np.array(blocks, dtype=np.uint32).reshape(-1, 1)
    return (ids * np.uint32(BLOCK_TOKENS) + _OFFSETS).astype("<u4").tobytes() + _LAST_TOKEN
