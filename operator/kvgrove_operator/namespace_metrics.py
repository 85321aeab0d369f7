"""Where each namespace stands, as Prometheus families, from the statuses that were composed last. Pure.

Labels are bounded: namespaces of the plan, and closed lists. An age is 0 while nothing is under way, so that an alert
on it ends by itself, and there is no series for a namespace that is gone.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from kvgrove_crds.conditions import NAMESPACE_CONDITIONS
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus

_AGES = {
    "warmup": "Age of the warm-up under way, in seconds; 0: none is.",
    "invalidation": "Age of the invalidation that some member has not confirmed, in seconds; 0: there is none.",
    "erasure": "Age of the erasure for which evidence is missing, in seconds; 0: there is none.",
}


def families(statuses: Mapping[str, PromptCacheNamespaceStatus], now: datetime) -> Iterator[Metric]:
    """``statuses``: API name of the namespace -> what its status says."""
    conditions = GaugeMetricFamily(
        "kvgrove_operator_namespace_condition",
        "Whether a condition of the namespace is True (1) or not (0).",
        labels=["namespace", "type"],
    )
    blocks = GaugeMetricFamily(
        "kvgrove_operator_warm_blocks", "Blocks of the warm set over all nodes.", labels=["namespace", "state"]
    )
    weight = GaugeMetricFamily(
        "kvgrove_operator_rollout_weight_percent",
        "New conversations that go to the desired generation, in percent.",
        labels=["namespace"],
    )
    step = GaugeMetricFamily("kvgrove_operator_rollout_step", "Index of the rollout's step.", labels=["namespace"])
    ages = {
        name: GaugeMetricFamily(f"kvgrove_operator_{name}_age_seconds", text, labels=["namespace"])
        for name, text in _AGES.items()
    }
    for namespace, status in sorted(statuses.items()):
        true = {each.type for each in status.conditions if each.status == "True"}
        for kind in NAMESPACE_CONDITIONS:
            conditions.add_metric([namespace, kind.value], float(kind.value in true))
        blocks.add_metric([namespace, "ready"], status.warmth.ready)
        blocks.add_metric([namespace, "wanted"], status.warmth.wanted)
        weight.add_metric([namespace], status.rollout.weight)
        step.add_metric([namespace], status.rollout.step)
        for name, since in _begun(status).items():
            ages[name].add_metric([namespace], 0.0 if since is None else max(0.0, (now - since).total_seconds()))
    yield from (conditions, blocks, weight, step, *ages.values())


def _begun(status: PromptCacheNamespaceStatus) -> dict[str, datetime | None]:
    """What is under way -> since when."""
    invalidation, erasure = status.invalidation, status.erasure
    return {
        "warmup": status.warmth.started_at if status.phase != "Suspended" else None,
        "invalidation": invalidation.requested_at if invalidation.completed_at is None else None,
        "erasure": erasure.requested_at if erasure.completed_at is None else None,
    }
