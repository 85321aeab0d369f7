"""Keeps the PrometheusRule of `alerts` as it should be, where the cluster knows that kind."""

from collections.abc import Iterable

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator import alerts, paths
from kvgrove_operator.kube import Kube
from kvgrove_operator.optional_kind import OptionalKind


class AlertRules:
    """``own_namespace``: where it lies."""

    def __init__(self, kube: Kube, own_namespace: str) -> None:
        self._own_namespace = own_namespace
        self._rules = OptionalKind(kube, "no thresholds of alerts are written")

    async def bring_about(self, namespaces: Iterable[PromptCacheNamespace]) -> None:
        body = alerts.thresholds(namespaces, self._own_namespace)
        await self._rules.apply(paths.prometheus_rule(self._own_namespace, alerts.NAME), body)
