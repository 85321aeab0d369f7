"""``python -m kvgrove_cli.metrics_reference [--check]``: writes docs/metrics.md from the metrics themselves.

Role: the reference cannot say what the code does not do. Each label has its bound here; a metric with a label that has
none does not get into the reference, and a test says so (I11). Must not know: how anything is counted.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from kvgrove_daemon.kv_events.metrics import ExportMetrics
from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_daemon.tier_figures import TierFigures, TiersSeen
from kvgrove_gateway.assembly_metrics import AssemblyMetrics
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.protection.figures import ProtectionFigures
from kvgrove_operator.metrics import NOTHING, leading, own_families
from kvgrove_operator.namespace_metrics import families

DEFAULT_OUT: Final = Path("docs/metrics.md")

LABELS: Final = {
    "namespace": "namespaces of the plan; their series go with them. `-` for requests that named none",
    "outcome": "`ok` and the error codes of the gateway, or of a reader's request",
    "code": "error codes of the gateway or the node, and how an answer ended",
    "tier": "`device`, `host`, `disk`, and `none` where nothing was reused",
    "reason": "a closed list in the code: miss reasons, reasons for a resync, a retry, a lost link or a store left out",
    "state": "a closed list in the code: states of links, residency streams or blocks",
    "role": "`daemon`, `gateway`",
    "type": "types of conditions of a namespace",
    "node": "nodes of the plan",
    "engine": "engines that the gateway's settings name: 64 at most",
    "kind": "a closed list in the code: what a frame or an event was, what the linter finds, or `input`, "
    "`cached_input`, `output` of a price",
    "cause": "why blocks went: `pressure quota branches ttl version erase unreadable clear`",
    "source": "`known`, `computed`",
    "limit": "`requests`, `prompt_tokens`, `concurrent`",
    "file": "`rate_limits`",
    "model": "models of the plan",
    "bundle": "tokenizer bundles that a gateway keeps (16), by the beginning of their digests",
    "currency": "one of each namespace that has `spec.pricing`",
}
"""Label -> what bounds its values."""


SERIES_OF_A_PROCESS: Final = 200
"""At most that many series (samples of one scrape) has a process without namespaces."""
SERIES_OF_A_NAMESPACE: Final = 200
"""And that many more for each namespace of the plan, and for each node that a gateway knows."""


class Entry(NamedTuple):
    name: str
    """As it is scraped."""
    kind: str
    labels: tuple[str, ...]
    text: str


HEAD: Final = """\
# Metrics

<!-- Written by `python -m kvgrove_cli.metrics_reference`; a test proves it current. -->

Gateways serve theirs at `/metrics` of their own address, nodes at `--metrics HOST:PORT` (`kvgrove up` gives each node
a free port on the loopback interface, named in `kvgrove status -o json`), and the operator at its `--metrics HOST:PORT`
(the planner within `kvgrove up` has none). Every process counts for itself: labels that
Prometheus adds (`instance`) keep them apart, and sums are over `instance`. Counters begin at 0 with the process.

No metric holds prompt text, token ids, keys, users or tenants.

## What one scrape of the gateways answers

| question | query |
|---|---|
"""

FOOT: Final = f"""
A process has at most {SERIES_OF_A_PROCESS} series, and {SERIES_OF_A_NAMESPACE} more for each namespace of the plan and
each node that a gateway knows, whoever asks for whatever (`python bench/cardinality.py --json`: 10,000 requests of 500
tenants).

`kvgrove_prompt_tokens_total` is the sum of `kvgrove_reused_tokens_total` over tiers and of
`kvgrove_missed_tokens_total` over reasons, and each equals the sum of what callers were told. Warm-up is no request:
it counts in `kvgrove_node_warmup_tokens_total` and in no ratio.
"""


def _ratio(over: str, under: str) -> str:
    return f"sum(rate({over}[5m])) / sum(rate({under}[5m]))"


QUERIES: Final = {
    "prefix hit ratio, token-weighted": _ratio("kvgrove_reused_tokens_total", "kvgrove_prompt_tokens_total"),
    "mean reused length": _ratio("kvgrove_reused_prefix_tokens_sum", "kvgrove_reused_prefix_tokens_count"),
    "assembly hit ratio": (
        'sum(rate(kvgrove_assembly_tokens_total{source="known"}[5m])) / sum(rate(kvgrove_assembly_tokens_total[5m]))'
    ),
    "misses by reason": "sum by (reason) (rate(kvgrove_missed_tokens_total[5m]))",
    "money saved": "sum by (namespace, currency) (rate(kvgrove_saved_cost_total[5m]))",
}


def entries(registry: CollectorRegistry, collectors: Sequence[Collector] = ()) -> list[Entry]:
    """All metrics of ``registry``, by name. ``collectors``: those of it that make their families when scraped."""
    found = [_of_metric(each) for each in _collectors(registry) if isinstance(each, MetricWrapperBase)]
    for collector in collectors:
        found += map(_of_family, collector.collect())
    return sorted(found)


def gateway_entries() -> list[Entry]:
    registry = Metrics().registry
    AssemblyMetrics(registry)
    ProtectionFigures(registry)
    return entries(registry)


def node_entries() -> list[Entry]:
    metrics = NodeMetrics()
    ExportMetrics(metrics.registry)
    tiers = TierFigures()
    tiers.show(TiersSeen())
    return entries(metrics.registry, [tiers])


def operator_entries() -> list[Entry]:
    return sorted(map(_of_family, (leading(False), *own_families(NOTHING), *families({}, datetime.now(UTC)))))


def render() -> str:
    gateway, node, operator = gateway_entries(), node_entries(), operator_entries()
    used = {label for each in (*gateway, *node, *operator) for label in each.labels}
    return "\n".join(
        [
            HEAD + "\n".join(f"| {question} | `{query}` |" for question, query in QUERIES.items()),
            FOOT,
            "## Gateways",
            "",
            *_table(gateway),
            "",
            "## Nodes",
            "",
            *_table(node),
            "",
            "## The operator",
            "",
            *_table(operator),
            "",
            "## Labels",
            "",
            "| label | bounded by |",
            "|---|---|",
            *(f"| `{label}` | {LABELS[label]} |" for label in sorted(used)),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1: ``--check`` found the file out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m kvgrove_cli.metrics_reference", description="the reference of all metrics"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="file to write (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
    options = parser.parse_args(arguments)
    if not options.check:
        options.out.write_text(render())
        return 0
    if options.out.read_text() == render():
        return 0
    sys.stderr.write(f"{options.out}: not current; run `python -m kvgrove_cli.metrics_reference`\n")
    return 1


def _of_metric(metric: MetricWrapperBase) -> Entry:
    (family,) = metric.describe()
    return Entry(_scraped(family.name, family.type), family.type, _labels(metric), family.documentation)


def _of_family(family: Metric) -> Entry:
    return Entry(_scraped(family.name, family.type), family.type, _labels(family), family.documentation)


def _scraped(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def _labels(holder: object) -> tuple[str, ...]:
    """prometheus_client has no public way to ask a metric without samples for its labels."""
    return tuple(getattr(holder, "_labelnames", ()))


def _collectors(registry: CollectorRegistry) -> Iterator[Collector]:
    """Likewise."""
    yield from registry._collector_to_names


def _table(rows: Sequence[Entry]) -> Iterator[str]:
    yield "| metric | type | labels | what |"
    yield "|---|---|---|---|"
    for each in rows:
        labels = " ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.kind} | {labels} | {each.text} |"


if __name__ == "__main__":
    sys.exit(main())
