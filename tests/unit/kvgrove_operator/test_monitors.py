"""What has daemons scraped: one PodMonitor for each DaemonSet, found by its labels and ended with it."""

from typing import Any

from kvgrove_operator.monitors import pod_monitor
from kvgrove_operator.settings import MonitorSettings
from kvgrove_operator.workloads import METRICS_PORT

DAEMON_SET: dict[str, Any] = {
    "metadata": {"name": "kvgrove-daemon-1", "namespace": "ops", "uid": "u-1", "labels": {"a": "b"}},
    "spec": {"selector": {"matchLabels": {"kvgrove.dev/placement": "1"}}},
}


def test_it_selects_the_pods_of_its_daemon_set_and_goes_with_it() -> None:
    made = pod_monitor(DAEMON_SET, MonitorSettings("15s", {"release": "prometheus"}))
    assert made["metadata"]["name"] == "kvgrove-daemon-1"
    assert made["metadata"]["namespace"] == "ops"
    assert made["metadata"]["labels"] == {"a": "b", "release": "prometheus"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DaemonSet", "kvgrove-daemon-1", "u-1")
    assert made["spec"]["selector"] == DAEMON_SET["spec"]["selector"]


def test_series_keep_their_own_namespace_and_tell_the_node() -> None:
    (endpoint,) = pod_monitor(DAEMON_SET, MonitorSettings("15s"))["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["interval"], endpoint["honorLabels"]) == (METRICS_PORT, "15s", True)
    assert [each["targetLabel"] for each in endpoint["relabelings"]] == ["node"]
