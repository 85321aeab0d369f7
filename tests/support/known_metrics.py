"""Every series that the parts of a fleet show, with its labels, asked of the registries that they serve."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from kvgrove_crds.conditions import NAMESPACE_CONDITIONS
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.kv_events.metrics import ExportMetrics
from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_gateway.metrics import Metrics
from kvgrove_operator.metrics import NOTHING, leading, own_families
from kvgrove_operator.namespace_metrics import families
from kvgrove_protocol.reasons import BypassReason, MissReason

_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
SCRAPED = {"instance", "job", "pod", "node", "container"}
"""Labels that scraping adds."""

CLOSED: Mapping[str, Mapping[str, set[str]]] = {
    "kvgrove_missed_tokens_total": {"reason": {reason.value for reason in MissReason}},
    "kvgrove_node_missed_tokens_total": {"reason": {reason.value for reason in MissReason}},
    "kvgrove_node_removed_blocks_total": {"cause": {cause.value for cause in RemovalCause}},
    "kvgrove_node_stores_bypassed_total": {"reason": {reason.value for reason in BypassReason}},
    "kvgrove_operator_namespace_condition": {"type": {kind.value for kind in NAMESPACE_CONDITIONS}},
}
"""Series -> label -> its values, where they are a closed list."""


@cache
def known() -> Mapping[str, set[str] | None]:
    """Name of a series -> its labels; None: they are not told before there is a value."""
    node = NodeMetrics()
    ExportMetrics(node.registry)
    found: dict[str, set[str] | None] = {}
    for registry in (node.registry, Metrics().registry):
        found |= dict(_series(registry))
    for family in (leading(False), *own_families(NOTHING)):
        for suffix in _SUFFIXES.get(family.type, ("",)):
            found[family.name + suffix] = {*getattr(family, "_labelnames", ())}
    for family in families({"team/bot": PromptCacheNamespaceStatus()}, datetime.now(UTC)):
        found[family.name] = {name for sample in family.samples for name in sample.labels} or None
    return found


def _series(registry: CollectorRegistry) -> Iterator[tuple[str, set[str] | None]]:
    labels = {
        name: set(collector._labelnames) if isinstance(collector, MetricWrapperBase) else None
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    for family in registry.collect():
        for suffix in _SUFFIXES.get(family.type, ("",)):
            own = labels.get(family.name)
            yield family.name + suffix, own if own is None or suffix != "_bucket" else own | {"le"}


def series_in(text: str) -> set[str]:
    """Names of the parts' own series in a text; recording rules have a colon and are none."""
    return set(re.findall(r"(?<![:\w])kvgrove_[a-z0-9_]+(?![:\w])", text))


def problems_of(query: str) -> Iterator[str]:
    """What is wrong with the series of a query: unknown ones, labels they do not have, values that are never taken."""
    for name in sorted(series_in(query) - set(known())):
        yield f"{name} is shown by nobody"
    for name, selector in re.findall(r"(?<![:\w])(kvgrove_[a-z0-9_]+)\{([^}]*)\}", query):
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', selector):
            own = known().get(name)
            if own is not None and label not in own | SCRAPED:
                yield f"{name} has no label {label}"
            closed = CLOSED.get(name, {}).get(label)
            if closed is not None and "$" not in value:
                said = value.split("|") if "~" in operator else [value]
                yield from (f"{name}: {label} is never {each}" for each in said if each not in closed)
