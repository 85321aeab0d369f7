"""Keeps the PrometheusRule of `alerts` as it should be, where the cluster knows that kind."""

import logging
from collections.abc import Iterable

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator import alerts, paths
from kvgrove_operator.kube import Kube, NotFound

log = logging.getLogger("kvgrove_operator")


class AlertRules:
    """``own_namespace``: where it lies."""

    def __init__(self, kube: Kube, own_namespace: str) -> None:
        self._kube, self._own_namespace = kube, own_namespace
        self._told = False

    async def bring_about(self, namespaces: Iterable[PromptCacheNamespace]) -> None:
        """Apply it. A cluster without the Prometheus operator is told of once, and asked again the next time."""
        body = alerts.thresholds(namespaces, self._own_namespace)
        try:
            await self._kube.apply(paths.prometheus_rule(self._own_namespace, alerts.NAME), body)
        except NotFound:
            if not self._told:
                log.info("no thresholds of alerts are written: the cluster has no PrometheusRules")
            self._told = True
        else:
            self._told = False
