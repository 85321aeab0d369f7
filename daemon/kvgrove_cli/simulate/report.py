"""From what was observed to the figures that are printed and plotted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from kvgrove_cli.simulate.run import Fleet, Observed, Result

WINDOWS: Final = 60


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    seed: int
    token_hit_ratio: float
    imbalance: float
    """Prefilled tokens of the busiest node over the mean."""
    wait_p95_s: float
    ttft_p95_s: float
    """Wait and prefill."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: a policy on a trace, means over all seeds."""

    trace: str
    policy: str
    nodes: int
    eviction: str
    capacity_blocks: int
    """Of all nodes, with the first seed."""
    tokens_per_s: float
    """Prefill of one node; mean over the seeds."""
    requests: int
    token_hit_ratio: float
    imbalance: float
    wait_p95_s: float
    ttft_p95_s: float
    retried: int
    cut_requests: int
    """Longer than the cache of a whole node."""
    runs: list[Figures]


@dataclass(frozen=True, slots=True)
class Course:
    """How a run went, in windows of equal length."""

    minutes: list[float]
    """End of each window."""
    token_hit_ratio: list[float]
    imbalance: list[float]
    wait_p95_s: list[float]


def figures(requests: Sequence[Observed], nodes: int, seed: int) -> Figures:
    """``requests``: at least one."""
    return Figures(
        seed=seed,
        token_hit_ratio=_hit_ratio(requests),
        imbalance=imbalance(requests, nodes),
        wait_p95_s=_p95([each.wait_s for each in requests]),
        ttft_p95_s=_p95([each.ttft_s for each in requests]),
    )


def row(trace: str, policy: str, fleets: Sequence[Fleet], results: Sequence[Result], runs: list[Figures]) -> Row:
    """``fleets``, ``results`` and ``runs``: one for each seed."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return Row(
        trace=trace,
        policy=policy,
        nodes=fleets[0].nodes,
        eviction=fleets[0].eviction,
        capacity_blocks=fleets[0].nodes * fleets[0].slots,
        tokens_per_s=mean([fleet.tokens_per_s for fleet in fleets]),
        requests=sum(len(result.requests) for result in results),
        token_hit_ratio=mean([run.token_hit_ratio for run in runs]),
        imbalance=mean([run.imbalance for run in runs]),
        wait_p95_s=mean([run.wait_p95_s for run in runs]),
        ttft_p95_s=mean([run.ttft_p95_s for run in runs]),
        retried=sum(result.retried for result in results),
        cut_requests=sum(result.cut for result in results),
        runs=runs,
    )


def course(requests: Sequence[Observed], nodes: int) -> Course:
    """By arrival, in `WINDOWS` windows; those without requests are left out."""
    span = max(each.at_s for each in requests) or 1.0
    windows: list[list[Observed]] = [[] for _ in range(WINDOWS)]
    for each in requests:
        windows[min(int(each.at_s / span * WINDOWS), WINDOWS - 1)].append(each)
    filled = [(at, window) for at, window in enumerate(windows) if window]
    return Course(
        minutes=[(at + 1) * span / WINDOWS / 60 for at, _ in filled],
        token_hit_ratio=[_hit_ratio(window) for _, window in filled],
        imbalance=[imbalance(window, nodes) for _, window in filled],
        wait_p95_s=[_p95([each.wait_s for each in window]) for _, window in filled],
    )


def _hit_ratio(requests: Sequence[Observed]) -> float:
    prompts = sum(each.prompt_tokens for each in requests)
    return 1 - sum(each.prefilled_tokens for each in requests) / prompts if prompts else 0.0


def imbalance(requests: Sequence[Observed], nodes: int) -> float:
    """Prefilled tokens of the busiest node over the mean."""
    prefilled = [0] * nodes
    for each in requests:
        prefilled[each.node] += each.prefilled_tokens
    return max(prefilled) * nodes / sum(prefilled) if sum(prefilled) else 1.0


def _p95(values: Sequence[float]) -> float:
    return float(np.percentile(values, 95))
