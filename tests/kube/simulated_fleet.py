"""A large fleet for one operator: Nodes that are objects only, members that are real links only, many declarations.

What is measured is what people see: the statuses, as a watch tells them, and the operator's own figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import urllib3
from controlplane.plane import Plane
from nodeagent import LEASE_SECONDS, Node
from operator_rig import SMALL, Operator, copy_link_keys, wait_for
from pods.api import UNREACHABLE, NodeApi
from pods.worker import Machine

from kvgrove_protocol.control import DAEMON

GROUP = "/apis/kvgrove.dev/v1alpha1"
_PROGRAM = Path(__file__).with_name("simulated_nodes.py")
_RENEW_SECONDS = 8.0
_AT_ONCE = 8

Object = dict[str, Any]


@dataclass(frozen=True)
class Size:
    namespaces: int
    models: int
    nodes: int
    per_process: int = 20
    """Members in one process."""
    teams: int = 10
    """Kubernetes namespaces."""

    @property
    def members(self) -> list[str]:
        return [f"node-{number:03}" for number in range(self.nodes)]


class Api:
    """Plain calls to the API server as an administrator. May be used by several threads."""

    def __init__(self, plane: Plane) -> None:
        self._host = plane.settings.server
        self._headers = {"Authorization": f"Bearer {plane.settings.token}"}
        self._pool = urllib3.PoolManager(maxsize=_AT_ONCE * 2, ca_certs=str(plane.settings.certificate))

    def call(self, method: str, path: str, body: Object | None = None, content: str = "application/json") -> Object:
        response = self._pool.request(
            method,
            self._host + path,
            body=json.dumps(body).encode() if body is not None else None,
            headers={**self._headers, "Content-Type": content},
        )
        assert response.status < 300, response.data.decode(errors="replace")[:1000]
        return dict(json.loads(response.data))

    def merge(self, path: str, body: Object) -> Object:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def lines(self, path: str) -> Iterator[bytes]:
        """Of watches, one after the other, while the API server lives: it drops those that are slow to read."""
        while True:
            rest = b""
            try:
                response = self._pool.request("GET", self._host + path, headers=self._headers, preload_content=False)
                for chunk in response.stream(amt=None, decode_content=False):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
            except (urllib3.exceptions.MaxRetryError, urllib3.exceptions.LocationValueError):
                return  # the API server has ended
            except (urllib3.exceptions.HTTPError, OSError):
                continue


class Statuses:
    """The newest of each namespace, by a watch on a thread of its own."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[tuple[str, str], Object] = {}
        self._news = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def of(self, team: str, name: str) -> Object:
        return self._known.get((team, name), {})

    def wait(self, reached: Callable[[], bool], what: str, seconds: float) -> float:
        """When it was reached (monotonic)."""
        with self._news:
            assert self._news.wait_for(reached, seconds), f"never came: {what}; {self._waiting()}"
        return time.monotonic()

    def ready(self) -> int:
        """How many are Ready as declared."""
        return sum(_ready(each) for each in self._known.values())

    def _waiting(self) -> str:
        """Why one of those that are not Ready is not."""
        found = next((each for each in self._known.values() if not _ready(each)), {})
        conditions = found.get("status", {}).get("conditions", ())
        said = [f"{each['reason']} {each['message']}" for each in conditions if each["type"] in ("Ready", "Warm")]
        return f"{self.ready()} of {len(self._known)} are Ready, another says {said}"

    def _follow(self) -> None:
        for line in self._api.lines(f"{GROUP}/promptcachenamespaces?watch=true"):
            found = json.loads(line)["object"]
            if found["kind"] == "Status":
                continue  # the watch says why it ends
            with self._news:
                self._known[found["metadata"]["namespace"], found["metadata"]["name"]] = found
                self._news.notify_all()


def _ready(found: Object) -> bool:
    for each in found.get("status", {}).get("conditions", ()):
        if each["type"] == "Ready":
            return bool(each["status"] == "True" and each["observedGeneration"] == found["metadata"]["generation"])
    return False


def purged(found: Object, epoch: int) -> bool:
    """Whether every member has confirmed the purge of this epoch."""
    status = found.get("status", {})
    complete = any(
        each["type"] == "InvalidationComplete" and each["status"] == "True" for each in status.get("conditions", ())
    )
    return bool(complete and status["purge"]["observedEpoch"] == epoch and status["invalidation"]["pending"] == 0)


@contextmanager
def members(plane: Plane, operator: Operator, folder: Path, size: Size) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
    """The processes of all members, connected."""
    wait_for(operator.leads, "a leader, who makes the link keys")
    keys = copy_link_keys(plane, DAEMON, folder / "link-keys")
    processes = []
    try:
        for start in range(0, size.nodes, size.per_process):
            names = size.members[start : start + size.per_process]
            command = [
                sys.executable,
                str(_PROGRAM),
                f"tcp://127.0.0.1:{operator.port}",
                str(folder),
                str(keys),
                *names,
            ]
            processes.append(subprocess.Popen(command, env={**os.environ, **SMALL}))
        wait_connected(operator, size.nodes)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@contextmanager
def node_objects(plane: Plane, folder: Path, size: Size) -> Iterator[None]:
    """Nodes that take Pods and run none; their leases are renewed."""
    stop, api = threading.Event(), NodeApi(plane.kubeconfig)

    def renew(name: str) -> None:
        try:
            api.renew_lease(name, LEASE_SECONDS, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        except UNREACHABLE:
            return  # the next renewal comes

    def keep() -> None:
        while not stop.wait(_RENEW_SECONDS):
            for name in size.members:
                renew(name)

    def register(named: tuple[int, str]) -> None:
        number, name = named
        api.register_node(Node(number, name, Machine(folder / name, "127.0.0.1", {}, {})).as_object())
        renew(name)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(register, enumerate(size.members, start=1)))
    keeper = threading.Thread(target=keep, daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join()
        api.close()


def namespace_of(team: str, name: str) -> str:
    return f"{GROUP}/namespaces/{team}/promptcachenamespaces/{name}"


def namespace_path(number: int, size: Size) -> str:
    return namespace_of(f"team-{number % size.teams}", f"bot-{number:04}")


def declare(api: Api, size: Size, models: Path) -> None:
    """All objects of that size."""

    def model(number: int) -> None:
        spec = {"source": {"hostPath": {"path": f"{models}/m{number}"}}}
        api.call("POST", f"{GROUP}/modelversions", _object("ModelVersion", {"name": f"m{number}"}, spec))

    def namespace(number: int) -> None:
        spec = {
            "modelVersionRef": {"name": f"m{number % size.models}"},
            "prefixes": [{"name": "support", "version": "1", "text": f"You help the customers of shop {number}."}],
            "documents": [{"name": "policy", "version": "1", "text": f"Shop {number} takes everything back."}],
        }
        metadata = {"name": f"bot-{number:04}", "namespace": f"team-{number % size.teams}"}
        path = namespace_path(number, size).rpartition("/")[0]
        api.call("POST", path, _object("PromptCacheNamespace", metadata, spec))

    for team in range(size.teams):
        api.call(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{team}"}},
        )
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(model, range(size.models)))
        list(pool.map(namespace, range(size.namespaces)))


def _object(kind: str, metadata: Object, spec: Object) -> Object:
    return {"apiVersion": "kvgrove.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def figure(operator: Operator, name: str) -> float:
    """One of the operator's own metrics, without labels."""
    text = httpx.get(f"http://127.0.0.1:{operator.metrics}/metrics", timeout=30).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def rss_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes), the highest there was."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024 / 1e6


def wait_connected(operator: Operator, count: int, seconds: float = 120.0) -> None:
    def connected() -> bool:
        text = httpx.get(f"http://127.0.0.1:{operator.metrics}/metrics", timeout=30).text
        return f'kvgrove_operator_members{{role="daemon"}} {float(count)}' in text

    wait_for(lambda: operator.leads() and connected(), f"{count} members", seconds)
