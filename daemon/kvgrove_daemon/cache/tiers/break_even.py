"""Whether fetching blocks from a slower tier beats computing them again (PER-05).

Role: pure arithmetic over measured rates. Loading ``n`` bytes takes ``fixed + n / bandwidth`` seconds, computing ``t``
tokens ``t / prefill rate``; what is fetched is always a prefix of what was found, so the question is where to stop.
Invariant: what is not worth its time is never loaded, and why is said (`MissReason.NOT_WORTH_LOADING`).
Must not know: media, clocks (durations are given), blocks.

Rates are learned from loads alone, so a tier once found slow would never be tried again. Hence every `PROBE_EVERY`-th
refusal is loaded all the same: that bounds the cost of trying at 1 / `PROBE_EVERY` of the requests concerned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PROBE_EVERY: Final = 64
_WINDOW_BYTES: Final = 256 << 20  # a bandwidth stands for about so many bytes, however many loads that were
_LATENCY_WEIGHT: Final = 0.1


@dataclass(frozen=True, slots=True)
class Speed:
    """What one load from a tier costs."""

    fixed_s: float
    """Beside the moving of bytes: waiting for a worker, waking up."""
    bytes_per_s: float

    def seconds(self, size: int) -> float:
        """How long a load of ``size`` bytes takes."""
        return self.fixed_s + size / self.bytes_per_s


PRIORS: Final = {"host": Speed(0.001, 2e9), "disk": Speed(0.002, 3e8)}
"""Taken until something was measured: an ordinary memory bus, an ordinary SSD with decryption."""


@dataclass(frozen=True, slots=True)
class Found:
    """The next ``blocks`` of a chain, all on a tier of this speed."""

    blocks: int
    speed: Speed


def blocks_worth_loading(
    found: Sequence[Found], *, block_bytes: int, block_tokens: int, prefill_tokens_per_s: float
) -> int:
    """How many leading blocks of ``found`` to load: as many as save the most time, 0 where loading saves none.

    With ``prefill_tokens_per_s`` 0 (nothing was computed yet) everything is loaded: nothing says that it is slower.
    """
    total = sum(part.blocks for part in found)
    if prefill_tokens_per_s <= 0.0:
        return total
    best, best_saved = 0, 0.0
    blocks, load_s = 0, 0.0
    for part in found:
        blocks += part.blocks
        load_s += part.speed.seconds(part.blocks * block_bytes)
        saved = blocks * block_tokens / prefill_tokens_per_s - load_s
        if saved > best_saved:
            best, best_saved = blocks, saved
    return best


class MeasuredSpeed:
    """The speed of one tier, exponentially weighted: by bytes for the bandwidth, by loads for the rest."""

    def __init__(self, prior: Speed) -> None:
        self._fixed_s = prior.fixed_s
        self._bytes = float(_WINDOW_BYTES) / 16  # a prior weighs as much as 16 MiB that were seen
        self._seconds = self._bytes / prior.bytes_per_s

    @property
    def now(self) -> Speed:
        return Speed(self._fixed_s, self._bytes / self._seconds)

    def record(self, size: int, *, moving_s: float, waiting_s: float) -> None:
        """``size`` bytes were moved in ``moving_s``, after and before ``waiting_s`` of everything else."""
        if size <= 0 or moving_s <= 0.0:
            return  # beyond the clock's resolution
        keep = math.exp(-size / _WINDOW_BYTES)
        self._bytes = self._bytes * keep + size
        self._seconds = self._seconds * keep + moving_s
        self._fixed_s += _LATENCY_WEIGHT * (max(waiting_s, 0.0) - self._fixed_s)


class Probes:
    """Which refusals are overruled, so that rates do not grow stale. Deterministic."""

    def __init__(self, every: int = PROBE_EVERY) -> None:
        self._every = every
        self._refused = 0

    def overrule(self) -> bool:
        """Count one refusal; True for every ``every``-th."""
        self._refused += 1
        return self._refused % self._every == 0
