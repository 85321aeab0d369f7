"""The trace of a request on its node, made when it is over.

::

    generate            from its arrival to its end
    +- wait             until it had its place: for another's blocks, or for room
    +- restore          blocks on their way from slower tiers, where some were
    +- prefill          from the engine's first step for it to its first token
    +- decode           the rest of its tokens

Steps that a request did not come to have no span. Counts only, no token (I12). Must not know engines or sockets.
"""

from collections.abc import Iterator
from typing import Final

from kvgrove_daemon.active import Active
from kvgrove_link.tracing import Attribute, Tracing

GOOD: Final = frozenset({"stop", "length", "cancelled"})
"""Ends that are no errors; any other is a code."""


def record(tracing: Tracing, active: Active, outcome: str, *, namespace: str, now: float, wall_ns: int) -> None:
    """``now``: the node's clock; ``wall_ns``: the same moment, since 1970. Warm-up answers nobody and has no trace."""
    if active.start is None or not tracing.on:
        return
    work = active.work
    attributes: dict[str, Attribute] = {"namespace": namespace, "outcome": outcome}
    if work is not None:
        attributes |= {
            "prompt_tokens": work.task.prompt_tokens,
            "reused_tokens": work.reused_tokens,
            "completion_tokens": work.generated,
            "tier": work.tier if work.reused else "",
        }
        attributes |= {f"missed.{reason}": count for reason, count in work.missed.items()}
    parent = tracing.record(
        "generate",
        active.start.request.traceparent,
        ended_ns=wall_ns,
        seconds=now - active.arrived,
        attributes=attributes,
        error="" if outcome in GOOD else outcome,
        served=True,
    )
    for name, began, ended in _steps(active, now):
        tracing.record(name, parent, ended_ns=wall_ns - int((now - ended) * 1e9), seconds=ended - began)


def _steps(active: Active, now: float) -> Iterator[tuple[str, float, float]]:
    if not active.began:
        yield "wait", active.arrived, now
        return
    yield "wait", active.arrived, active.began
    if not active.ran:
        yield "restore", active.began, now
        return
    if active.work is not None and active.work.restore is not None:
        yield "restore", active.began, active.ran
    if not active.spoke:
        yield "prefill", active.ran, now
        return
    yield "prefill", active.ran, active.spoke
    yield "decode", active.spoke, now
