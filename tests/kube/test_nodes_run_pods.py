"""Nodes of the tests: what Pods say runs as real processes, and what happens to those is what is reported."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane.plane import Plane
from nodeagent import NodeAgent

NODES = ("node-a", "node-b", "node-c")
STEP_SECONDS = 90.0
PORT = 18080

_SERVER = """\
import http.server, os, signal, sys, time
def stop(*_):
    print("asked to stop", flush=True)
    time.sleep(float(os.environ["LINGER"]))
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
os.chdir(sys.argv[1])
address = (os.environ["POD_IP"], int(sys.argv[2]))
http.server.ThreadingHTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def workload(image: str, linger: float = 0, grace: int = 20) -> dict[str, Any]:
    """A DaemonSet of file servers over a ConfigMap, with a secret and the downward API in the environment."""
    probe = {"httpGet": {"path": "/greeting", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 5}
    container = {
        "name": "server",
        "image": image,
        "command": ["python", "/app/server.py"],
        "args": ["/app", str(PORT)],
        "ports": [{"name": "http", "containerPort": PORT}],
        "env": [
            {"name": "LINGER", "value": str(linger)},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "readinessProbe": probe,
        "livenessProbe": probe | {"failureThreshold": 30},
        "volumeMounts": [{"name": "app", "mountPath": "/app"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "terminationGracePeriodSeconds": grace,
                    "containers": [container],
                    "volumes": [{"name": "app", "configMap": {"name": "app"}}],
                },
            },
        },
    }


@pytest.fixture(scope="module")
def nodes(control_plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAgent]:
    with NodeAgent(control_plane.kubeconfig, tmp_path_factory.mktemp("nodes"), NODES) as agent:
        yield agent
    control_plane.kubectl("delete", "node", *NODES)


def apply(plane: Plane, namespace: str, item: dict[str, Any]) -> None:
    done = plane.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(item))
    assert done.returncode == 0, done.stderr


def pods(plane: Plane, namespace: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = plane.get("pods", "-n", namespace)["items"]
    return sorted(items, key=lambda pod: pod["spec"].get("nodeName", ""))


def condition(item: dict[str, Any], kind: str) -> str:
    return next((c["status"] for c in item["status"].get("conditions", []) if c["type"] == kind), "")


def eventually(what: str, holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + STEP_SECONDS
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.2)


def all_ready(plane: Plane, namespace: str, image: str) -> list[dict[str, Any]]:
    found = pods(plane, namespace)
    good = [
        pod
        for pod in found
        if condition(pod, "Ready") == "True"
        and pod["spec"]["containers"][0]["image"] == image
        and "deletionTimestamp" not in pod["metadata"]
    ]
    return good if len(good) == len(found) == len(NODES) else []


@pytest.fixture
def web(control_plane: Plane, cluster_namespace: str, nodes: NodeAgent) -> Iterator[str]:
    """The namespace of a DaemonSet that is ready on all nodes."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "app"},
        "data": {"server.py": _SERVER, "greeting": "hello"},
    }
    apply(control_plane, cluster_namespace, config)
    apply(control_plane, cluster_namespace, workload("web:1"))
    eventually("ready on all nodes", lambda: all_ready(control_plane, cluster_namespace, "web:1"))
    yield cluster_namespace
    control_plane.kubectl("delete", "daemonset", "web", "-n", cluster_namespace, "--cascade=foreground")


def test_a_daemon_set_runs_on_every_node_and_rolls_out_as_its_pods_are_deleted(
    control_plane: Plane, web: str, nodes: NodeAgent
) -> None:
    found = pods(control_plane, web)
    assert [pod["spec"]["nodeName"] for pod in found] == list(NODES)
    for pod in found:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:{PORT}/greeting", timeout=10) as answer:
            assert answer.read() == b"hello"
    apply(control_plane, web, workload("web:2"))
    eventually(
        "the controller has seen the new template",
        lambda: control_plane.get("daemonset/web", "-n", web)["status"].get("observedGeneration") == 2,
    )
    assert [pod["metadata"]["uid"] for pod in pods(control_plane, web)] == [pod["metadata"]["uid"] for pod in found]
    logs = {pod["metadata"]["name"]: nodes.worker(web, pod["metadata"]["name"]).log_of("server") for pod in found}
    deleted = control_plane.kubectl("delete", "pods", "-n", web, "-l", "app=web")
    assert deleted.returncode == 0, deleted.stderr
    renewed = eventually("ready with the new image", lambda: all_ready(control_plane, web, "web:2"))
    assert {pod["metadata"]["uid"] for pod in renewed}.isdisjoint(pod["metadata"]["uid"] for pod in found)
    assert all("asked to stop" in log.read_text() for log in logs.values()), "deletion asks before it kills"
    status = control_plane.get("daemonset/web", "-n", web)["status"]
    assert status["numberReady"] == status["updatedNumberScheduled"] == len(NODES)


def test_a_process_that_outstays_its_grace_is_killed(control_plane: Plane, web: str, nodes: NodeAgent) -> None:
    apply(control_plane, web, workload("web:slow", linger=3600, grace=1))
    control_plane.kubectl("delete", "pods", "-n", web, "-l", "app=web")
    slow = eventually("ready with the new image", lambda: all_ready(control_plane, web, "web:slow"))
    name = slow[0]["metadata"]["name"]
    worker = nodes.worker(web, name)
    deleted = control_plane.kubectl("delete", "pod", name, "-n", web)
    assert deleted.returncode == 0, deleted.stderr
    eventually("its worker is done", lambda: worker.is_done)
    assert worker.containers[0].ended is not None
    assert worker.containers[0].ended["exitCode"] == 128 + signal.SIGKILL


def test_a_killed_process_is_started_again_and_counted(control_plane: Plane, web: str, nodes: NodeAgent) -> None:
    name = pods(control_plane, web)[0]["metadata"]["name"]
    container = nodes.worker(web, name).containers[0]
    first = container.pid
    container.signal(signal.SIGKILL)

    def restarted() -> dict[str, Any] | None:
        (status,) = control_plane.get(f"pod/{name}", "-n", web)["status"]["containerStatuses"]
        return status if status["restartCount"] == 1 and status["ready"] else None

    status = eventually("restarted and ready", restarted)
    assert status["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    assert container.pid != first


def test_a_paused_node_turns_not_ready_and_comes_back_with_the_same_processes(
    control_plane: Plane, web: str, nodes: NodeAgent
) -> None:
    pod = pods(control_plane, web)[1]
    worker = nodes.worker(web, pod["metadata"]["name"])
    pid = worker.containers[0].pid
    nodes.pause("node-b")
    try:
        assert "State:\tT" in Path(f"/proc/{pid}/status").read_text()
        eventually("NotReady", lambda: condition(control_plane.get("node/node-b"), "Ready") == "Unknown")
        assert condition(control_plane.get("node/node-a"), "Ready") == "True"
        eventually("its Pod is not ready", lambda: condition(pods(control_plane, web)[1], "Ready") == "False")
    finally:
        nodes.resume("node-b")
    eventually("Ready", lambda: condition(control_plane.get("node/node-b"), "Ready") == "True")
    eventually("its Pod is ready", lambda: condition(pods(control_plane, web)[1], "Ready") == "True")
    assert worker.containers[0].pid == pid


def test_a_node_that_lost_power_runs_its_pods_again_when_it_is_back(
    control_plane: Plane, web: str, nodes: NodeAgent
) -> None:
    pod = pods(control_plane, web)[2]
    pid = nodes.worker(web, pod["metadata"]["name"]).containers[0].pid
    nodes.kill("node-c")
    assert not Path(f"/proc/{pid}").exists()
    assert condition(control_plane.get(f"pod/{pod['metadata']['name']}", "-n", web), "Ready") == "True", (
        "nobody has said otherwise yet"
    )
    nodes.boot("node-c")

    def counted() -> bool:
        (status,) = pods(control_plane, web)[2]["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and status["ready"])

    eventually("its container runs again", counted)
    assert pods(control_plane, web)[2]["metadata"]["uid"] == pod["metadata"]["uid"]


def run_once(plane: Plane, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Runs a Pod to its end and returns it."""
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "once", "labels": {"tier": "one"}}}
    apply(plane, namespace, item | {"spec": {"restartPolicy": "Never", **spec}})

    def over() -> dict[str, Any] | None:
        found: dict[str, Any] = plane.get("pod/once", "-n", namespace)
        return found if found["status"]["phase"] in ("Succeeded", "Failed") else None

    found: dict[str, Any] = eventually("the Pod is over", over)
    return found


def test_environment_and_volumes_of_a_pod(control_plane: Plane, cluster_namespace: str, nodes: NodeAgent) -> None:
    data = {"data": {"greeting": "hello"}}
    apply(control_plane, cluster_namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}} | data)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "t0ken"}}
    apply(control_plane, cluster_namespace, secret)

    def field(name: str, path: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    script = """
        cp $SECRET_FILE $OUT/secret; cat $1 > $OUT/greeting; ls $TOKENS > $OUT/tokens
        printf '%s\\n' "$NAME" "$SPACE" "$ID" "$NODE" "$IP" "$HOST_IP" "$TIER" "$TOKEN" "$ALL_greeting" "$JOINED"
    """
    spec = {
        "nodeName": "node-b",
        "containers": [
            {
                "name": "main",
                "image": "none",
                "command": ["sh", "-c", script, "$(UNKNOWN)", "/etc/app/greeting"],
                "envFrom": [{"prefix": "ALL_", "configMapRef": {"name": "c"}}],
                "env": [
                    field("NAME", "metadata.name"),
                    field("SPACE", "metadata.namespace"),
                    field("ID", "metadata.uid"),
                    field("NODE", "spec.nodeName"),
                    field("IP", "status.podIP"),
                    field("HOST_IP", "status.hostIP"),
                    field("TIER", "metadata.labels['tier']"),
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                    {"name": "JOINED", "value": "$(NODE)/$(NAME) $$(NAME)"},
                    {"name": "SECRET_FILE", "value": "/etc/secret/key"},
                    {"name": "OUT", "value": "/var/out"},
                    {"name": "TOKENS", "value": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ],
                "volumeMounts": [
                    {"name": "c", "mountPath": "/etc/app"},
                    {"name": "s", "mountPath": "/etc/secret"},
                    {"name": "out", "mountPath": "/var/out"},
                ],
            }
        ],
        "volumes": [
            {"name": "c", "configMap": {"name": "c"}},
            {"name": "s", "secret": {"secretName": "s", "items": [{"key": "token", "path": "key"}]}},
            {"name": "out", "hostPath": {"path": "/var/lib/out"}},
        ],
    }
    pod = run_once(control_plane, cluster_namespace, spec)
    worker = nodes.worker(cluster_namespace, "once")
    said = nodes.log(cluster_namespace, "once", "main").splitlines()
    assert pod["status"]["phase"] == "Succeeded", said
    ips = [pod["status"]["podIP"], pod["status"]["hostIP"]]
    assert said == [
        "once",
        cluster_namespace,
        worker.uid,
        "node-b",
        *ips,
        "one",
        "t0ken",
        "hello",
        "node-b/once $(NAME)",
    ]
    disk = nodes.nodes["node-b"].machine.root / "disk" / "var/lib/out"
    assert (disk / "secret").read_text() == "t0ken"
    assert (disk / "greeting").read_text() == "hello"
    assert (disk / "tokens").read_text().split() == ["ca.crt", "namespace", "token"]


def test_what_a_pod_lacks_is_said_in_its_status_and_mended_when_it_comes(
    control_plane: Plane, cluster_namespace: str, nodes: NodeAgent
) -> None:
    container = {
        "name": "main",
        "image": "none",
        "command": ["true"],
        "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "x"}}}],
    }
    item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "once"}}
    apply(control_plane, cluster_namespace, item | {"spec": {"restartPolicy": "OnFailure", "containers": [container]}})

    def waiting() -> dict[str, Any] | None:
        (status,) = control_plane.get("pod/once", "-n", cluster_namespace)["status"].get("containerStatuses", [{}])
        found: dict[str, Any] = status.get("state", {}).get("waiting", {})
        return found if found.get("reason") == "CreateContainerConfigError" else None

    assert "ConfigMap later not found" in eventually("it says what it lacks", waiting)["message"]
    control_plane.kubectl("create", "configmap", "later", "--from-literal=x=1", "-n", cluster_namespace)
    eventually(
        "it ran",
        lambda: control_plane.get("pod/once", "-n", cluster_namespace)["status"]["phase"] == "Succeeded",
    )


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_failing_pod_is_told_by_its_exit_status(
    control_plane: Plane, cluster_namespace: str, nodes: NodeAgent, policy: str
) -> None:
    script = 'test -e "$0/twice" || { touch "$0/twice"; exit 3; }'
    container = {
        "name": "main",
        "image": "none",
        "command": ["sh", "-c", script, "/data"],
        "volumeMounts": [{"name": "d", "mountPath": "/data"}],
    }
    spec = {"restartPolicy": policy, "containers": [container], "volumes": [{"name": "d", "emptyDir": {}}]}
    pod = run_once(control_plane, cluster_namespace, spec)
    (status,) = pod["status"]["containerStatuses"]
    expected = ("Failed", 3, 0) if policy == "Never" else ("Succeeded", 0, 1)
    assert (pod["status"]["phase"], status["state"]["terminated"]["exitCode"], status["restartCount"]) == expected
