"""From the DaemonSet of a placement to the PodMonitor that has its daemons scraped. Pure.

A PodMonitor and no ServiceMonitor: nobody reaches daemons by a Service (gateways dial each by its own address), and
one for the sake of metrics would be an object more to keep. The DaemonSet owns it, so that it goes when the placement
does. Must not know: Prometheus, or whether its operator is there.
"""

from typing import Any, Final

from kvgrove_operator.settings import MonitorSettings
from kvgrove_operator.workloads import METRICS_PORT

Object = dict[str, Any]

API_VERSION: Final = "monitoring.coreos.com/v1"


def pod_monitor(daemon_set: Object, settings: MonitorSettings) -> Object:
    """The fields that are ours. ``daemon_set``: as the API server has it, so with its UID."""
    metadata, selector = daemon_set["metadata"], daemon_set["spec"]["selector"]
    endpoint = {
        "port": METRICS_PORT,
        "interval": settings.interval,
        # `namespace` is a PromptCacheNamespace in our series; without this it would become exported_namespace.
        "honorLabels": True,
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
    }
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": "PodMonitor",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {**metadata["labels"], **settings.labels},
            "ownerReferences": [owner],
        },
        "spec": {"selector": selector, "podMetricsEndpoints": [endpoint]},
    }
