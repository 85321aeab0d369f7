"""How fast this node computes, for those who route to it.

Exponentially weighted by computing time, not by count: a rate stands for the last ``window_s`` seconds of work, however
many steps that were. Must not know: clocks (durations are given), models.
"""

from __future__ import annotations

import math


class Rate:
    """Units per second of work; 0 until something was measured."""

    def __init__(self, window_s: float = 10.0) -> None:
        self._window = window_s
        self._units = 0.0
        self._seconds = 0.0

    def record(self, units: int, seconds: float) -> None:
        """``units`` of work took ``seconds``. Durations of 0 are beyond the clock's resolution and left out."""
        if seconds <= 0.0:
            return
        keep = math.exp(-seconds / self._window)
        self._units = self._units * keep + units
        self._seconds = self._seconds * keep + seconds

    @property
    def per_second(self) -> float:
        return self._units / self._seconds if self._seconds else 0.0
