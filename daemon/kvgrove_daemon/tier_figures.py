"""What is shown of the tiers below the pools, as Prometheus families.

Role: turn one copy of the tiers' figures into metrics, whenever they are scraped. Labels are tiers, states and reasons
from closed lists (I11, I12). Must not know: who makes the copy, when.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kvgrove_daemon.cache.tiers.lower import TierStats
from kvgrove_daemon.cache.tiers.write_back import WriteStats

_STATES = ("free", "ready", "retiring", "private", "clearing")
_COUNTERS = {
    "written": "Blocks that were copied into the tier",
    "loaded": "Blocks that requests took from the tier",
    "corrupt": "Blocks whose bytes were not those that were written: never used",
    "not_cleared": "Slots of blocks whose clearing failed, to be tried again",
}


@dataclass(frozen=True)
class TiersSeen:
    """A copy of the figures of all lower tiers of a node. Counters only grow."""

    tiers: Sequence[TierStats] = ()
    writes: Sequence[WriteStats] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Tier -> code of why the node goes without it."""
    adopted: int = 0
    """Blocks taken over from earlier boots."""
    loading: int = 0
    """Requests that wait for a load."""
    given_up: int = 0
    """Loads that took longer than computing would have."""


class TierFigures(Collector):
    """Shows the last copy. `show` and `collect` may be called by different threads."""

    def __init__(self) -> None:
        self._seen = TiersSeen()

    def show(self, seen: TiersSeen) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        yield from _of_tiers(seen)
        yield from _of_writes(seen.writes)
        yield GaugeMetricFamily("kvgrove_tier_loading", "Requests that wait for a load", value=seen.loading)
        yield CounterMetricFamily(
            "kvgrove_tier_loads_given_up", "Loads that took longer than computing would have", value=seen.given_up
        )
        yield CounterMetricFamily(
            "kvgrove_tier_adopted_blocks", "Blocks taken over from earlier boots", value=seen.adopted
        )


def _of_tiers(seen: TiersSeen) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("kvgrove_tier_blocks", "Blocks of lower tiers by state", labels=["tier", "state"])
    held = GaugeMetricFamily("kvgrove_tier_bytes", "Bytes that blocks take in lower tiers", labels=["tier"])
    suspended = GaugeMetricFamily(
        "kvgrove_tier_suspended", "1: nothing is written to the tier now, for this reason", labels=["tier", "reason"]
    )
    for tier in sorted({stats.tier for stats in seen.tiers}):
        stats = [each for each in seen.tiers if each.tier == tier]
        for state in _STATES:
            blocks.add_metric([tier, state], sum(getattr(each, state) for each in stats))
        held.add_metric([tier], sum((each.ready + each.retiring) * each.block_bytes for each in stats))
        for reason in sorted({each.suspended for each in stats if each.suspended}):
            suspended.add_metric([tier, reason], 1)
    for tier, reason in seen.missing.items():
        suspended.add_metric([tier, reason], 1)
    yield from (blocks, held, suspended)
    for name, text in _COUNTERS.items():
        family = CounterMetricFamily(f"kvgrove_tier_{name}_blocks", text, labels=["tier"])
        totals = Counter[str]()
        for each in seen.tiers:
            totals[each.tier] += getattr(each, name)
        for tier, total in totals.items():
            family.add_metric([tier], total)
        yield family


def _of_writes(writes: Sequence[WriteStats]) -> Iterator[Metric]:
    in_flight = GaugeMetricFamily("kvgrove_tier_write_bytes", "Bytes on their way into the tier", labels=["tier"])
    dropped = CounterMetricFamily(
        "kvgrove_tier_writes_dropped_blocks",
        "Blocks that were to be copied into the tier and were not",
        labels=["tier", "reason"],
    )
    missed = CounterMetricFamily(
        "kvgrove_tier_uncopied_blocks", "Blocks that went from above before they were copied", labels=["tier"]
    )
    bytes_by_tier, missed_by_tier, dropped_by_reason = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for write in writes:
        bytes_by_tier[write.tier] += write.bytes_in_flight
        missed_by_tier[write.tier] += write.missed
        for reason, count in write.dropped.items():
            dropped_by_reason[write.tier, reason] += count
    for tier in bytes_by_tier:
        in_flight.add_metric([tier], bytes_by_tier[tier])
        missed.add_metric([tier], missed_by_tier[tier])
    for labels, count in dropped_by_reason.items():
        dropped.add_metric(labels, count)
    yield from (in_flight, dropped, missed)
