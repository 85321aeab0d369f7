"""What gateways counted during one interval, against the declared limits. Pure.

Counts of a gateway rise from its start. What one counted within an interval is the difference; one that began anew
meanwhile counts from nothing. Nobody who reports: could not be measured. Too few requests: inconclusive.
"""

from collections.abc import Iterable, Mapping

from kvgrove_crds.namespace_delivery import AnalysisSpec
from kvgrove_operator.rollout.facts import Baseline, Measures
from kvgrove_operator.rollout.gate import Verdict
from kvgrove_protocol.control import TTFT_BOUNDS_S

Reported = Mapping[str, Mapping[bytes, Measures]]
"""``member/boot`` of a gateway -> generation -> its counts."""


def baseline(reported: Reported, candidate: bytes, active: bytes) -> dict[str, Baseline]:
    """The counts as they are now."""
    return {
        source: Baseline(candidate=found.get(candidate, Measures()), active=found.get(active, Measures()))
        for source, found in sorted(reported.items())
    }


def judge(limits: AnalysisSpec, before: Mapping[str, Baseline], now: Mapping[str, Baseline]) -> Verdict:
    """The measurement of the interval from ``before`` to ``now``."""
    if not now:
        return Verdict.NOT_MEASURED
    nothing = Baseline()
    new = _sum(_since(each.candidate, before.get(source, nothing).candidate) for source, each in now.items())
    old = _sum(_since(each.active, before.get(source, nothing).active) for source, each in now.items())
    if new.requests < limits.minimum_requests:
        return Verdict.INCONCLUSIVE
    verdicts = [_errors(limits, new), _hits(limits, new), _speed(limits, new, old)]
    if Verdict.FAIL in verdicts:
        return Verdict.FAIL
    return Verdict.INCONCLUSIVE if Verdict.INCONCLUSIVE in verdicts else Verdict.PASS


def _errors(limits: AnalysisSpec, new: Measures) -> Verdict:
    most = limits.maximum_error_ratio
    return Verdict.PASS if most is None or new.failed <= most * new.requests else Verdict.FAIL


def _hits(limits: AnalysisSpec, new: Measures) -> Verdict:
    least = limits.minimum_hit_ratio
    if least is None:
        return Verdict.PASS
    if not new.prompt_tokens:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if new.reused_tokens >= least * new.prompt_tokens else Verdict.FAIL


def _speed(limits: AnalysisSpec, new: Measures, old: Measures) -> Verdict:
    if limits.maximum_ttft_factor is None:
        return Verdict.PASS
    mine, others = median(new.ttft), median(old.ttft)
    if mine is None or others is None:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS if mine <= limits.maximum_ttft_factor * others else Verdict.FAIL


def median(counts: Iterable[int]) -> float | None:
    """Of times in the buckets of `TTFT_BOUNDS_S`, by straight lines within a bucket, in seconds; None without any."""
    found = list(counts)
    half, seen, below = sum(found) / 2, 0, 0.0
    if not half:
        return None
    for bound, count in zip((*TTFT_BOUNDS_S, TTFT_BOUNDS_S[-1]), found, strict=False):
        if seen + count >= half:
            return below + (bound - below) * (half - seen) / count
        seen, below = seen + count, bound
    return below


def _since(now: Measures, before: Measures) -> Measures:
    if now.requests < before.requests:
        return now
    return Measures(
        requests=now.requests - before.requests,
        failed=max(0, now.failed - before.failed),
        prompt_tokens=max(0, now.prompt_tokens - before.prompt_tokens),
        reused_tokens=max(0, now.reused_tokens - before.reused_tokens),
        ttft=_less(now.ttft, before.ttft),
    )


def _sum(parts: Iterable[Measures]) -> Measures:
    total = Measures()
    for each in parts:
        total = Measures(
            requests=total.requests + each.requests,
            failed=total.failed + each.failed,
            prompt_tokens=total.prompt_tokens + each.prompt_tokens,
            reused_tokens=total.reused_tokens + each.reused_tokens,
            ttft=_more(total.ttft, each.ttft),
        )
    return total


def _less(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    padded = before + (0,) * max(0, len(now) - len(before))
    return tuple(max(0, a - b) for a, b in zip(now, padded, strict=False))


def _more(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    return tuple(a + b for a, b in zip(long, short + (0,) * (len(long) - len(short)), strict=True))
