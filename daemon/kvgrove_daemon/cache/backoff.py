"""Pauses after failures of one key, so that those who want it do not fail one after the other at once.

Role: say until when a key is not to be tried again. Pure bookkeeping; time and jitter are given. Bounded in keys,
oldest failure first, and in length (I11). Must not know: what failed, what a key stands for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    until: float


class Backoff:
    """``base_s`` after the first failure, twice that after each further one, at most ``max_s``.

    ``jitter``: uniform in [0, 1); half of each pause is drawn, so that several nodes do not try in step.
    """

    def __init__(self, *, base_s: float, max_s: float, jitter: Callable[[], float], keys: int = 1024) -> None:
        self._base_s = base_s
        self._max_s = max_s
        self._jitter = jitter
        self._limit = keys
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, key: Hashable, now: float) -> None:
        """``key`` failed at ``now``. What failed longer ago than the longest pause is a new story."""
        before = self._failures.pop(key, None)
        count = before.count + 1 if before is not None and now < before.until + self._max_s else 1
        pause = min(self._base_s * 2.0 ** min(count - 1, 32), self._max_s)
        self._failures[key] = _Failures(count, now + pause * (1 + self._jitter()) / 2)
        while len(self._failures) > self._limit:
            self._failures.popitem(last=False)

    def succeeded(self, keys: Iterable[Hashable]) -> None:
        if self._failures:
            for key in keys:
                self._failures.pop(key, None)

    def until(self, key: Hashable, now: float) -> float | None:
        """When ``key`` may be tried again; None: now."""
        failures = self._failures.get(key)
        return failures.until if failures is not None and failures.until > now else None
