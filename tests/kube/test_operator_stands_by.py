"""Two operators of one Deployment, as the manifests make it: one leads, the other stands by, and both are Ready."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import apply_crds
from controlplane.plane import Plane
from operator_rig import MANIFESTS, OWN, apply, nodes, token, wait_for

DEPLOYMENT = "deployment/kvgrove-operator"


def declared(kubeconfig: Path) -> dict[str, Any]:
    """The Deployment of the manifests, for Pods that share a network and have no files of their own."""
    text = (MANIFESTS / "cluster-wide" / "operator.yaml").read_text()
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "Deployment"]
    found["spec"]["replicas"] = 2
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["command"][0] = sys.executable
    container["args"] = [each.replace("=0.0.0.0:", "=$(POD_IP):") for each in container["args"]]
    container["args"] += ["--listen=tcp://$(POD_IP):7400", "--lease-duration=6", "--lease-renewal=1"]
    container["env"] += [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "KUBECONFIG", "value": str(kubeconfig)},
    ]
    return dict(found)


def lease(plane: Plane) -> dict[str, Any]:
    return dict(plane.get("lease", "kvgrove-operator", "-n", OWN)["spec"])


def leading(plane: Plane) -> tuple[str, int]:
    """Who leads, and in which term."""
    spec = wait_for(lambda: (found := lease(plane)).get("holderIdentity") and found, "a leader")
    return spec["holderIdentity"], spec["leaseTransitions"]


def pods(plane: Plane) -> set[str]:
    found = plane.get("pods", "-n", OWN, "-l", "app.kubernetes.io/component=operator")["items"]
    return {each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]}


@pytest.mark.timeout(300)
def test_a_deployment_of_two_is_available_and_replaces_its_pods_without_a_gap(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    plane = own_control_plane
    apply_crds(plane)
    apply(plane, "-f", str(MANIFESTS / "cluster-wide" / "rbac.yaml"))
    with nodes(plane, tmp_path / "nodes", "node-a", "node-b") as agent:
        try:
            apply(plane, "-f", "-", stdin=json.dumps(declared(token(plane))))
            waited = plane.kubectl("wait", "--for=condition=Available", "--timeout=50s", DEPLOYMENT, "-n", OWN)
            assert waited.returncode == 0, waited.stderr
            first, term = leading(plane)
            assert first in pods(plane)
            assert term == 1

            # Whoever leads goes, and the one that stood by takes over.
            assert plane.kubectl("delete", "pod", first, "-n", OWN, "--wait=false").returncode == 0
            wait_for(lambda: leading(plane)[1] == 2, "the one that stood by to lead")
            assert leading(plane)[0] != first

            # An upgrade ends by itself: no new Pod has to wait for the Lease to be Ready.
            before = pods(plane)
            assert plane.kubectl("rollout", "restart", DEPLOYMENT, "-n", OWN).returncode == 0
            rolled = plane.kubectl("rollout", "status", DEPLOYMENT, "-n", OWN, "--timeout=55s")
            assert rolled.returncode == 0, rolled.stdout + rolled.stderr
            wait_for(lambda: leading(plane)[0] in pods(plane) - before, "one of the new ones to lead")
        finally:
            for name in pods(plane):
                print(f"-- {name}\n{agent.log(OWN, name, 'operator')[-5_000:]}")
