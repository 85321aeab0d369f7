"""A Pod's status from those of its containers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def phase_of(containers: Sequence[Json]) -> str:
    """Pending until all containers have begun, Running until all are over, then Succeeded or Failed."""
    ends = [container["state"].get("terminated") for container in containers]
    if all(end is not None for end in ends):
        return "Succeeded" if all(end["exitCode"] == 0 for end in ends if end is not None) else "Failed"
    begun = all("waiting" not in c["state"] or c["lastState"] for c in containers)
    return "Running" if begun else "Pending"


def pod_status(pod: Json, containers: Sequence[Json], addresses: Mapping[str, str], started: str, moment: str) -> Json:
    """The whole status. Transition times of conditions that did not change are kept from ``pod``."""
    phase = phase_of(containers)
    unready = [container["name"] for container in containers if not container["ready"]]
    over = phase in ("Succeeded", "Failed")
    conditions: list[Json] = [
        {"type": "PodReadyToStartContainers", "status": "True"},
        {"type": "Initialized", "status": "True"},
        *(
            {
                "type": kind,
                "status": "False" if unready else "True",
                "reason": "PodCompleted" if over else "ContainersNotReady" if unready else None,
                "message": f"containers with unready status: {unready}" if unready and not over else None,
            }
            for kind in ("ContainersReady", "Ready")
        ),
    ]
    known = {condition["type"]: condition for condition in pod.get("status", {}).get("conditions", [])}
    for condition in conditions:
        before = known.get(condition["type"], {})
        same = before.get("status") == condition["status"]
        condition["lastTransitionTime"] = before["lastTransitionTime"] if same else moment
        condition["observedGeneration"] = pod["metadata"].get("generation", 0)
    return {
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": list(containers),
        "hostIP": addresses["status.hostIP"],
        "hostIPs": [{"ip": addresses["status.hostIP"]}],
        "podIP": addresses["status.podIP"],
        "podIPs": [{"ip": addresses["status.podIP"]}],
        "startTime": started,
        "observedGeneration": pod["metadata"].get("generation", 0),
    }
