"""What the next step computes: a pure decision.

Policy: every decoding sequence advances by one token in every step, and what the step's budget leaves goes to prompts,
first come first served. So one long prompt delays decodes by one chunk at most, never by its length, and a cancel
takes effect within one chunk. Invariants: decoding and begun sequences never exceed ``max_batch``; the prompt tokens of
a step never exceed ``prefill_chunk``; a begun prompt is never overtaken. Must not know: models, slots, time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step of one model."""

    max_batch: int = 32
    """Sequences that may be begun and not yet finished."""
    prefill_chunk: int = 512
    """Prompt tokens computed in one step, over all sequences."""

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.prefill_chunk < 1:
            raise ValueError(f"max_batch and prefill_chunk must be at least 1, not {self}")


@dataclass(frozen=True, slots=True)
class Pending:
    """A sequence whose prompt is not computed yet."""

    request_id: str
    remaining: int
    """Prompt tokens still to compute; at least 1."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What to compute: one token each of ``decode``, and so many prompt tokens of each of ``prefill``."""

    decode: tuple[str, ...]
    prefill: tuple[tuple[str, int], ...]

    @property
    def is_empty(self) -> bool:
        return not self.decode and not self.prefill


def plan_step(pending: Sequence[Pending], decoding: Sequence[str], limits: StepLimits) -> StepPlan:
    """``pending`` in order of arrival, begun ones first. Mutates nothing."""
    budget, seats = limits.prefill_chunk, limits.max_batch - len(decoding)
    prefill: list[tuple[str, int]] = []
    for sequence in pending[: max(seats, 0)]:
        if not budget:
            break
        count = min(sequence.remaining, budget)
        prefill.append((sequence.request_id, count))
        budget -= count
    return StepPlan(tuple(decoding), tuple(prefill))
