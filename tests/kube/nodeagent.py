"""Nodes for a control plane without machines: registers them, keeps them Ready, and runs their Pods as local processes.

A Pod's container is its ``command`` and ``args`` with its env, volumes, probes, restarts and termination grace; its
image is not looked at, except that ``entry_points`` may say what an image starts. What a container does not have here:
a file system of its own (paths below a mountPath are rewritten, see `pods.files`), a network of its own, resource
limits, and init containers (a Pod with some says so in its status). Each Pod has a loopback address of its own,
127.NODE.x.y, so that two Pods may listen on one port if each binds ``status.podIP``.

A node may hang (`pause`: its processes are stopped, its lease is not renewed), lose power (`kill`) and come back
(`resume`, `boot`). All processes are ours: they end with the agent, and with this process however it ends.

``python nodeagent.py FOLDER NODE...`` runs nodes for the control plane that KUBECONFIG names, until it is interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pods.api import UNREACHABLE, Json, NodeApi, show_defect
from pods.container import now
from pods.worker import Machine, PodWorker

_FIRST_NET = 120 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2)
"""Two test runs beside each other have networks of their own, for up to 120 nodes each."""

RENEW_SECONDS = 2.0
LEASE_SECONDS = 40
_WATCH_SECONDS = 2
_RETRY_SECONDS = 0.5


class Node:
    """One node: its workers by Pod UID. ``up``: it has power and is not paused."""

    def __init__(self, index: int, name: str, machine: Machine) -> None:
        self.index, self.name, self.machine = index, name, machine
        self.up = True
        self.powered = True
        self.workers: dict[str, PodWorker] = {}
        self._hosts = itertools.count(2)

    def address(self) -> str:
        """The next Pod's. There is room for 60,000 of them, more than any test makes."""
        high, low = divmod(next(self._hosts), 254)
        return f"127.{_FIRST_NET + self.index}.{high}.{low + 1}"

    def as_object(self) -> Json:
        moment = now()
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        conditions = [
            {"type": kind, "status": status, "reason": "NodeAgent", "lastHeartbeatTime": moment}
            for kind, status in (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"))
        ]
        return {
            "metadata": {
                "name": self.name,
                "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"},
            },
            "status": {
                "capacity": room,
                "allocatable": room,
                "conditions": conditions,
                "addresses": [
                    {"type": "InternalIP", "address": self.machine.host_ip},
                    {"type": "Hostname", "address": self.name},
                ],
                "nodeInfo": _NODE_INFO,
            },
        }


_NODE_INFO = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "process://1",
    "kernelVersion": os.uname().release,
    "kubeProxyVersion": "",
    "kubeletVersion": "v1.36.0",
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "",
    "systemUUID": "",
}


class NodeAgent:
    """Context manager. ``names``: of the nodes. ``environment`` goes to every container, below its own."""

    def __init__(
        self,
        kubeconfig: Path,
        work: Path,
        names: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        entry_points: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._api = NodeApi(kubeconfig)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.nodes = {
            name: Node(
                i, name, Machine(work / name, f"127.{_FIRST_NET + i}.0.1", environment or {}, entry_points or {})
            )
            for i, name in enumerate(names, start=1)
        }
        self._threads = [
            threading.Thread(target=target, name=f"nodes-{target.__name__}", daemon=True)
            for target in (self._follow_pods, self._keep_alive)
        ]

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            self._register(node)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """All nodes lose power; their objects stay."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for node in self.nodes.values():
            self._drop_workers(node)
        self._api.close()

    def pause(self, name: str) -> None:
        """The node hangs: processes stopped, nothing renewed, nothing reported."""
        with self._lock:
            node = self.nodes[name]
            node.up = False
            for worker in node.workers.values():
                worker.freeze()

    def resume(self, name: str) -> None:
        with self._lock:
            node = self.nodes[name]
            for worker in node.workers.values():
                worker.thaw()
            node.up = True

    def kill(self, name: str) -> None:
        """The node loses power: processes killed, nothing reported."""
        with self._lock:
            node = self.nodes[name]
            node.up = node.powered = False
            self._drop_workers(node)

    def boot(self, name: str) -> None:
        """The node has power again: it registers and starts the Pods that are bound to it, with its disk as it was."""
        with self._lock:
            node = self.nodes[name]
            self._register(node)
            node.up = node.powered = True

    def worker(self, namespace: str, pod: str) -> PodWorker:
        """Of a Pod that runs here. Raises KeyError where none does."""
        with self._lock:
            for worker in self._workers():
                metadata = worker.pod["metadata"]
                if (metadata["namespace"], metadata["name"]) == (namespace, pod) and not worker.is_done:
                    return worker
        raise KeyError(f"no Pod {namespace}/{pod} runs here")

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has written so far."""
        return self.worker(namespace, pod).log_of(container).read_text(errors="replace")

    def _workers(self) -> Iterator[PodWorker]:
        for node in self.nodes.values():
            yield from node.workers.values()

    def _register(self, node: Node) -> None:
        self._api.register_node(node.as_object())
        self._renew(node)

    def _renew(self, node: Node) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._api.renew_lease(node.name, LEASE_SECONDS, moment)

    def _keep_alive(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            for node in self.nodes.values():
                if not node.up:
                    continue
                try:
                    self._renew(node)
                    if not self._api.node_is_ready(node.name):
                        self._api.write_node_status(node.as_object())
                except UNREACHABLE as error:  # the API server is away or the Node was deleted: go on, as a kubelet does
                    show_defect(error)

    def _follow_pods(self) -> None:
        while not self._stop.is_set():
            try:
                pods, version = self._api.pods()
                self._take(pods)
                for kind, pod in self._api.watch_pods(version, _WATCH_SECONDS):
                    self._note(kind, pod)
                    if self._stop.is_set():
                        return
            except UNREACHABLE as error:
                show_defect(error)
                self._stop.wait(_RETRY_SECONDS)

    def _take(self, pods: Sequence[Json]) -> None:
        """All Pods there are: what is not among them is gone."""
        for pod in pods:
            self._note("MODIFIED", pod)
        known = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            gone = [worker.pod for worker in self._workers() if worker.uid not in known]
        for pod in gone:
            self._note("DELETED", pod)

    def _note(self, kind: str, pod: Json) -> None:
        with self._lock:
            node = self.nodes.get(pod["spec"].get("nodeName", ""))
            if node is None or not node.up:
                return
            uid = pod["metadata"]["uid"]
            worker = node.workers.get(uid)
            if kind == "DELETED":
                if worker is not None:
                    del node.workers[uid]
                    worker.discard()
            elif worker is not None:
                worker.update(pod)
            elif pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                node.workers[uid] = PodWorker(pod, node.machine, self._api, node.address())
                node.workers[uid].start()

    def _drop_workers(self, node: Node) -> None:
        for worker in node.workers.values():
            worker.vanish()
        node.workers.clear()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        contextlib.suppress(KeyboardInterrupt),
        NodeAgent(Path(os.environ["KUBECONFIG"]), Path(sys.argv[1]), sys.argv[2:]),
    ):
        threading.Event().wait()
