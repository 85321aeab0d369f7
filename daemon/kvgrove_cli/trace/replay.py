"""A trace through the node's own cache: keys, index, leases and eviction are the real ones, only bytes are simulated.

Role: judge eviction policies, and placement over several nodes, by reused tokens. Invariants: a block counts as a hit
only if it and all before it are resident when the request arrives; outputs are not cached; the pool holds exactly the
given capacity; requests are placed and timed as `kvgrove simulate` does by default. Knows no file format.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from kvgrove_cli.simulate.policies import OURS
from kvgrove_cli.simulate.report import imbalance
from kvgrove_cli.simulate.run import Fleet, Simulation, Trouble
from kvgrove_cli.simulate.workload import Arrival, prefill_rate, workload
from kvgrove_cli.trace.requests import Trace


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


def replay(
    trace: Trace, *, policy: str, capacity_blocks: int, nodes: int, arrivals: Iterable[Arrival] | None = None
) -> Outcome:
    """Serve ``trace`` (at most `MAX_BLOCKS` unique blocks) on ``nodes`` nodes that share ``capacity_blocks`` evenly.

    ``arrivals``: the trace's own, by whoever wants to watch them pass.
    """
    began = time.perf_counter()
    slots = capacity_blocks // nodes
    fleet = Fleet(nodes, slots, prefill_rate(trace, nodes), policy)
    result = Simulation(fleet, OURS, Trouble(), seed=1).run(workload(trace) if arrivals is None else arrivals)
    prompt_tokens = sum(each.prompt_tokens for each in result.requests)
    hit_tokens = prompt_tokens - sum(each.prefilled_tokens for each in result.requests)
    return Outcome(
        format=trace.format,
        policy=policy,
        nodes=nodes,
        requests=len(result.requests),
        unique_blocks=trace.unique_blocks,
        capacity_blocks=slots * nodes,
        prompt_tokens=prompt_tokens,
        hit_tokens=hit_tokens,
        token_hit_ratio=hit_tokens / prompt_tokens if prompt_tokens else 0.0,
        evictions=result.evictions,
        cut_requests=result.cut,
        imbalance=imbalance(result.requests, nodes),
        wall_s=time.perf_counter() - began,
    )
