"""What arrives when: a trace's prompts, its own arrival times or those of another recording.

Invariants: requests keep the order of the trace. Knows neither nodes nor policies.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.trace.pool import ROOT, Prompt, prompt
from kvgrove_cli.trace.requests import Trace

LOAD: Final = 0.8
_NEXT_ROOT = b"\1" * len(ROOT)


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    """Since the first one."""
    prompt: Prompt
    session: bytes | None
    """The caller's session, where the trace names it."""


def workload(trace: Trace, times: Sequence[float] | None = None, *, rollout_s: float | None = None) -> list[Arrival]:
    """``times``: arrival times in seconds, repeated and stretched to the length of the trace; None: the trace's own.

    From ``rollout_s`` on, every prompt is of another generation: none of its keys was seen before.
    """
    began = trace.requests[0].at_ms
    own = [(request.at_ms - began) / 1e3 for request in trace.requests]
    at = own if times is None else _stretched(times, len(own), own[-1])
    return [
        Arrival(
            at_s=at_s,
            prompt=prompt(request, _NEXT_ROOT if rollout_s is not None and at_s >= rollout_s else ROOT),
            session=None if request.session is None else request.session.to_bytes(8, "big"),
        )
        for request, at_s in zip(trace.requests, at, strict=True)
    ]


def prefill_rate(trace: Trace, nodes: int, load: float = LOAD) -> float:
    """Tokens a second of each node, so that all of them together are ``load`` busy without any reuse."""
    span_s = (trace.requests[-1].at_ms - trace.requests[0].at_ms) / 1e3
    return sum(request.prompt_tokens for request in trace.requests) / max(span_s, 1e-3) / nodes / load


def _stretched(times: Sequence[float], count: int, span_s: float) -> list[float]:
    length = times[-1] - times[0] + (times[-1] - times[0]) / len(times)  # a usual gap before it begins again
    rounds = 0
    repeated: list[float] = []
    while len(repeated) < count:
        repeated += [rounds * length + at - times[0] for at in times]
        rounds += 1
    repeated = repeated[:count]
    factor = span_s / repeated[-1] if repeated[-1] else 0.0
    return [at * factor for at in repeated]


def read_arrivals(path: Path) -> list[float]:
    """Seconds, ascending, from a CSV file with a column TIMESTAMP (ISO 8601). Raises UsageProblem."""
    try:
        with path.open(newline="") as file:
            times = [_seconds(path, line, row) for line, row in enumerate(csv.DictReader(file), start=2)]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UsageProblem(
            f"--arrivals: {path} cannot be read: {reason}; give a CSV file with a column TIMESTAMP", field="--arrivals"
        ) from error
    if len(times) < 2:
        raise UsageProblem(f"--arrivals: {path} holds {len(times)} arrivals; two are the least", field="--arrivals")
    return sorted(times)


def _seconds(path: Path, line: int, row: dict[str, str]) -> float:
    text = row.get("TIMESTAMP") or ""
    whole, _, fraction = text.partition(".")
    try:
        return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError as error:
        raise UsageProblem(
            f"--arrivals: {path}: line {line}: TIMESTAMP: {text!r} is no date and time; mend or remove the line",
            field="--arrivals",
        ) from error
