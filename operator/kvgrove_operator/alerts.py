"""From the ``spec.alerts`` of all namespaces to one PrometheusRule with their thresholds. Pure.

What an alert is lies with the chart (``charts/kvgrove/rules``), once for all namespaces, and is tested there. What
differs from namespace to namespace are numbers, and numbers travel as series: one recording rule each, labelled with
its namespace, which the alerts compare with. A namespace whose alerts are off has one series that says so; a threshold
that is absent has none, and then there is no such alert. Must not know: Prometheus, or whether its operator is there.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.namespace_extras import AlertsSpec

Object = dict[str, Any]

API_VERSION: Final = "monitoring.coreos.com/v1"
NAME: Final = "kvgrove-thresholds"
OFF: Final = "kvgrove:alerts_off"

THRESHOLDS: Final = {
    "kvgrove:hit_ratio_minimum": "minimum_hit_ratio",
    "kvgrove:evictions_per_second_maximum": "evictions_per_second",
    "kvgrove:warmup_seconds_maximum": "warmup_stuck_after",
    "kvgrove:invalidation_seconds_maximum": "invalidation_overdue_after",
    "kvgrove:erasure_seconds_maximum": "erase_overdue_after",
}
"""Series -> the field of ``spec.alerts`` whose value it has; times in seconds."""


def thresholds(namespaces: Iterable[PromptCacheNamespace], own_namespace: str) -> Object:
    """The PrometheusRule, with the fields that are ours. The same for any order of ``namespaces``."""
    declared = sorted(namespaces, key=lambda each: each.api_name)
    rules = [rule for each in declared for rule in _rules(each.api_name, each.spec.alerts)]
    return {
        "apiVersion": API_VERSION,
        "kind": "PrometheusRule",
        "metadata": {
            "name": NAME,
            "namespace": own_namespace,
            "labels": {"app.kubernetes.io/name": "kvgrove", "app.kubernetes.io/managed-by": "kvgrove-operator"},
        },
        "spec": {"groups": [{"name": NAME, "rules": rules}] if rules else []},
    }


def _rules(namespace: str, alerts: AlertsSpec) -> Iterator[Object]:
    labels = {"namespace": namespace}
    if not alerts.enabled:
        yield {"record": OFF, "expr": "vector(1)", "labels": labels}
        return
    for series, field in THRESHOLDS.items():
        value = getattr(alerts, field)
        if value is not None:
            number = float(getattr(value, "seconds", value))
            yield {"record": series, "expr": f"vector({number:g})", "labels": labels}
