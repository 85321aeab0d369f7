"""A trace through the node's own cache: keys, index, leases and eviction are the real ones, only bytes are simulated.

Role: judge eviction policies, and placement over several nodes, by reused tokens. Invariants: a block counts as a hit
only if it and all before it are resident when the request arrives; outputs are not cached; the pool holds exactly the
given capacity. Knows no file format.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from kvgrove_cli.trace.pool import Pool, Prompt, prompt
from kvgrove_cli.trace.requests import BLOCK_TOKENS, Request, Trace
from kvgrove_gateway.router.decide import Candidate, decide

_BUSY: Final = 0.8


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
    pool: Pool
    prefilled: int = 0
    backlog: float = 0.0
    """Prefill tokens ahead of a request, at `backlog_at_ms`."""
    backlog_at_ms: float = 0.0

    def queued(self, at_ms: float, tokens_per_ms: float) -> float:
        return max(self.backlog - (at_ms - self.backlog_at_ms) * tokens_per_ms, 0.0)


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

    def choose(self, request: Request, asked: Prompt) -> int:
        if len(self._nodes) == 1:
            return 0
        candidates = [
            Candidate(
                node=str(at),
                matched_tokens=min(node.pool.store.ready_blocks(asked.chain) * BLOCK_TOKENS, request.prompt_tokens),
                queued_tokens=int(node.queued(request.at_ms, self._tokens_per_ms)),
                requests=self._served[at],
                prefill_tokens_per_s=self._tokens_per_ms * 1e3,
            )
            for at, node in enumerate(self._nodes)
        ]
        anchor = asked.chain.keys[0] if asked.chain.keys else b""
        return int(decide(candidates, request.prompt_tokens, anchor=anchor).node)

    def placed(self, at: int, request: Request, prefilled: int) -> None:
        node = self._nodes[at]
        node.backlog = node.queued(request.at_ms, self._tokens_per_ms) + prefilled
        node.backlog_at_ms = request.at_ms
        node.prefilled += prefilled
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
    members = [_Node(Pool(slots, policy)) for _ in range(nodes)]
    placement = _Placement(trace, members)
    prompt_tokens = hit_tokens = count = 0
    for request in trace.requests if requests is None else requests:
        asked = prompt(request)
        at = placement.choose(request, asked)
        hit = members[at].pool.serve(asked)
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
        evictions=sum(sum(member.pool.store.stats().removed.values()) for member in members),
        cut_requests=sum(member.pool.cut for member in members),
        imbalance=max(prefilled) * nodes / sum(prefilled) if sum(prefilled) else 1.0,
        wall_s=time.perf_counter() - began,
    )
