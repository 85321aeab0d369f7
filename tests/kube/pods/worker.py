"""One Pod on one node, from its binding to its end, in a thread of its own: what a kubelet does for it.

The thread alone touches the Pod's processes and writes its status. Others may only tell it: a newer version of the Pod,
freeze (the node hangs) and thaw, vanish (the node lost power: processes are killed and nothing is reported), discard
(the object is gone, so processes and files go).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pods.api import UNREACHABLE, Json, NodeApi, show_defect
from pods.container import Container, Launch, expanded_command, now
from pods.environment import ConfigProblem, environment_of, expand
from pods.files import PodFiles, content_of
from pods.status import pod_status

_TICK_SECONDS = 0.1
_RETRY_SECONDS = 1.0
# Until what was written comes back by the watch.
_SETTLE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Machine:
    """What all Pods of a node share. ``environment`` is below every container's own."""

    root: Path
    host_ip: str
    environment: Mapping[str, str] = field(default_factory=dict)
    entry_points: Mapping[str, Sequence[str]] = field(default_factory=dict)


class PodWorker:
    """``start`` it once. ``address``: the Pod's own loopback address, unless it has been given one before."""

    def __init__(self, pod: Json, machine: Machine, api: NodeApi, address: str) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self._machine, self._api = machine, api
        self._folder = machine.root / "pods" / self.uid
        address = pod.get("status", {}).get("podIP") or address
        self._addresses = {"status.podIP": address, "status.hostIP": machine.host_ip}
        known = {item["name"]: item for item in pod.get("status", {}).get("containerStatuses", [])}
        policy = pod["spec"].get("restartPolicy", "Always")
        self.containers = [Container(spec, policy) for spec in pod["spec"]["containers"]]
        for container in self.containers:
            before = known.get(container.name, {})
            # Its node had power before, and the container ran: this start is one more.
            container.restart_count = before.get("restartCount", 0) + ("running" in before.get("state", {}))
        self._started = pod.get("status", {}).get("startTime") or now()
        self._written: Json | None = None
        self._prepare_at = self._write_at = 0.0
        self._prepared = self._gone = False
        self._running = threading.Event()
        self._running.set()
        self._frozen = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pod-{pod['metadata']['name']}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def update(self, pod: Json) -> None:
        """A newer version of the Pod; a deletion begins so."""
        self.pod = pod

    def freeze(self) -> None:
        """Returns once its processes are stopped. Nothing is probed or reported until `thaw`."""
        self._running.clear()
        while self._thread.is_alive() and not self._frozen.wait(_TICK_SECONDS):
            pass

    def thaw(self) -> None:
        self._running.set()

    def vanish(self) -> None:
        """Returns once its processes are killed; its files stay."""
        self._end.set()
        self._running.set()
        self._thread.join()

    def discard(self) -> None:
        """Returns once its processes are killed and its files are gone."""
        self.vanish()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_done(self) -> bool:
        return self._gone or not self._thread.is_alive()

    def log_of(self, container: str) -> Path:
        return self._machine.root / "logs" / f"{self.pod['metadata']['name']}-{self.uid[:8]}-{container}.log"

    def _run(self) -> None:
        try:
            while not self._end.is_set() and not self._gone:
                self._hold_while_frozen()
                self._step(time.monotonic())
                self._end.wait(_TICK_SECONDS)
        finally:
            self._kill()

    def _hold_while_frozen(self) -> None:
        if self._running.is_set():
            return
        for container in self.containers:
            container.halt()
        self._frozen.set()
        self._running.wait()
        self._frozen.clear()
        if not self._end.is_set():
            self._signal(signal.SIGCONT)

    def _step(self, moment: float) -> None:
        if "deletionTimestamp" in self.pod["metadata"]:
            self._terminate()
            return
        if not self._prepared and moment >= self._prepare_at:
            self._prepare(moment)
        for container in self.containers:
            container.tick(moment)
        self._report(moment)

    def _prepare(self, moment: float) -> None:
        """Writes volumes and works out each container's command; what is missing is reported and tried again."""
        try:
            if self.pod["spec"].get("initContainers"):
                raise ConfigProblem("nodes of the tests run no init containers")
            files = PodFiles(self.pod, self._folder, self._machine.root / "disk", self._api, self._addresses)
            files.write()
            for container in self.containers:
                container.launch = self._launch(container, files)
            self._prepared = True
        except ConfigProblem as problem:
            for container in self.containers:
                container.waiting = ("CreateContainerConfigError", str(problem))
        except UNREACHABLE as error:  # nothing can be reported either
            show_defect(error)
        self._prepare_at = moment + _RETRY_SECONDS

    def _launch(self, container: Container, files: PodFiles) -> Launch:
        rewrite = files.mapper(container.spec)
        own = environment_of(container.spec, self.pod, self._keys, self._addresses)
        command = [rewrite(expand(part, own)) for part in expanded_command(container.spec, self._machine.entry_points)]
        if not command:
            raise ConfigProblem(
                f"container {container.name} has no command, and its image is no entry point known here"
            )
        environment = {
            # The programs of this environment first: `python` in a Pod is the one that runs the tests.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self._folder),
            **self._machine.environment,
            **{name: rewrite(value) for name, value in own.items()},
        }
        folder = Path(rewrite(container.spec["workingDir"])) if "workingDir" in container.spec else self._folder
        self._folder.mkdir(parents=True, exist_ok=True)
        log, address = self.log_of(container.name), self._addresses["status.podIP"]
        return Launch(command, environment, folder, log, address, rewrite)

    def _keys(self, kind: str, reference: Json) -> dict[str, str] | None:
        found = self._api.read(kind, self.pod["metadata"]["namespace"], reference["name"])
        if found is None and not reference.get("optional"):
            raise ConfigProblem(f"{kind} {reference['name']} not found")
        return None if found is None else {key: value.decode() for key, value in content_of(kind, found).items()}

    def _terminate(self) -> None:
        """preStop, SIGTERM, the Pod's grace, SIGKILL; then the object may go."""
        grace = float(self.pod["metadata"].get("deletionGracePeriodSeconds", 30))
        deadline = time.monotonic() + grace
        for container in self.containers:
            container.hook("preStop", max(grace, 1.0))
        self._signal(signal.SIGTERM)
        while not self._all_ended() and time.monotonic() < deadline and not self._end.is_set():
            self._hold_while_frozen()
            self._end.wait(_TICK_SECONDS)
        self._kill()
        try:
            self._api.remove_pod(self.pod)
            self._gone = True
        except UNREACHABLE as error:
            show_defect(error)
            self._end.wait(_RETRY_SECONDS)

    def _report(self, moment: float) -> None:
        status = pod_status(self.pod, [c.status() for c in self.containers], self._addresses, self._started, now())
        same = self._written is not None and _without_times(status) == _without_times(self._written)
        # While a node is silent, a controller says of its Pods that they are not ready; the node must say so no more.
        if (same and _ready(self.pod["status"]) == _ready(status)) or moment < self._write_at:
            return
        try:
            self._api.write_pod_status(self.pod, status)
            self._written = status
            self._write_at = moment + _SETTLE_SECONDS
        except UNREACHABLE as error:
            show_defect(error)
            self._write_at = moment + _RETRY_SECONDS

    def _signal(self, number: signal.Signals) -> None:
        for container in self.containers:
            container.signal(number)

    def _all_ended(self) -> bool:
        return all(container.has_ended(time.monotonic()) for container in self.containers)

    def _kill(self) -> None:
        while not self._all_ended():
            self._signal(signal.SIGKILL)
            time.sleep(0.02)


def _without_times(status: Json) -> Json:
    conditions = [{**condition, "lastTransitionTime": ""} for condition in status["conditions"]]
    return {**status, "conditions": conditions}


def _ready(status: Json) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    return conditions.get("Ready") == "True"
