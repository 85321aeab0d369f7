"""What this gateway saw of each generation while a namespace has several: the planner's analysis is made of it.

Counts rise from the start of the process; for one that is planned no more they are given up. Warm-up is nobody's
request, so it is not in them (WRM-01).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvgrove_protocol.control import TTFT_BOUNDS_S, GenerationReport

Which = tuple[str, bytes]
"""Namespace UID, and the generation."""


@dataclass
class _Counts:
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    ttft: list[int] = field(default_factory=lambda: [0] * (len(TTFT_BOUNDS_S) + 1))


class GenerationCounts:
    """On the event loop only."""

    def __init__(self) -> None:
        self._counts: dict[Which, _Counts] = {}

    def keep(self, planned: Iterable[Which]) -> None:
        """Count for exactly these from now on."""
        self._counts = {which: self._counts.get(which, _Counts()) for which in planned}

    def answered(self, which: Which, *, ttft_s: float, prompt_tokens: int, reused_tokens: int, failed: bool) -> None:
        """An answer began; ``failed``: and broke off by no fault of the caller."""
        counts = self._counts.get(which)
        if counts is None:
            return
        counts.requests += 1
        counts.failed += failed
        counts.prompt_tokens += prompt_tokens
        counts.reused_tokens += reused_tokens
        counts.ttft[bisect_left(TTFT_BOUNDS_S, ttft_s)] += 1

    def refused(self, which: Which) -> None:
        """No answer came, by no fault of the caller."""
        counts = self._counts.get(which)
        if counts is not None:
            counts.requests += 1
            counts.failed += 1

    def reports(self, uid: str, generations: Sequence[bytes]) -> list[GenerationReport]:
        """Of ``generations`` of one namespace, in their order."""
        return [self._report((uid, each)) for each in generations]

    def _report(self, which: Which) -> GenerationReport:
        counts = self._counts.get(which, _Counts())
        return GenerationReport(
            generation=which[1],
            requests=counts.requests,
            failed=counts.failed,
            prompt_tokens=counts.prompt_tokens,
            reused_tokens=counts.reused_tokens,
            ttft=[*counts.ttft],
        )
