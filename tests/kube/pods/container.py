"""One container as a local process: start, probes, restarts with back-off, and the state that its status tells.

Driven by ``tick``; knows neither the API server nor its Pod's other containers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controlplane.component import GUARD
from pods.probes import ProbeCount, attempt

Json = dict[str, Any]
# A kubelet begins with 10 s and ends with 5 min; tests have less time.
FIRST_BACK_OFF_SECONDS, LAST_BACK_OFF_SECONDS = 0.5, 8.0
# A container that ran this long starts over with the first back-off.
HEALTHY_SECONDS = 20.0
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a container is started."""

    command: Sequence[str]
    environment: dict[str, str]
    folder: Path
    log: Path
    address: str
    rewrite: Callable[[str], str]


class Container:
    """``restarts``: the Pod's restartPolicy."""

    def __init__(self, spec: Json, restarts: str) -> None:
        self.spec, self._restarts = spec, restarts
        self.name: str = spec["name"]
        self.restart_count = 0
        self.launch: Launch | None = None
        self.waiting: tuple[str, str] | None = ("ContainerCreating", "")
        self.ended: Json | None = None
        self._last: Json | None = None
        self._started_at = ""
        self._began = self._try_again_at = 0.0
        self._back_off = FIRST_BACK_OFF_SECONDS
        self._process: subprocess.Popen[bytes] | None = None
        self._counts: dict[str, ProbeCount] = {}
        self._ports = {port["name"]: port["containerPort"] for port in spec.get("ports", []) if "name" in port}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_over(self) -> bool:
        """It ended and will not be started again."""
        return self.ended is not None and not self._may_restart(self.ended["exitCode"])

    def tick(self, moment: float) -> None:
        """One step: notices an end, starts it again when that is due, takes the probes that are due."""
        if self._process is not None and self._process.poll() is not None:
            self._note_end(moment)
        if self._process is None:
            if self.launch is not None and not self.is_over and moment >= self._try_again_at:
                self._start(self.launch, moment)
        else:
            self._probe(self.launch, moment)

    def signal(self, number: signal.Signals) -> None:
        """To all its processes; nothing happens where there is none."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def halt(self) -> None:
        """SIGSTOP, and back once its process has stopped: the kernel takes its time on a busy machine."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP)
            # Its end counts as well; neither is taken from those who ask for it later.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def has_ended(self, moment: float) -> bool:
        """No process of it is left; its end is on record then."""
        if self._process is not None and self._process.poll() is not None:
            self._note_end(moment)
        return self._process is None

    def hook(self, name: str, seconds: float) -> None:
        """Runs an exec hook such as preStop, at most ``seconds`` long. Its failure is not ours to judge."""
        command = self.spec.get("lifecycle", {}).get(name, {}).get("exec", {}).get("command")
        if command is not None and self.launch is not None and self._process is not None:
            probe = {"exec": {"command": command}, "timeoutSeconds": seconds}
            attempt(probe, address="", ports={}, rewrite=self.launch.rewrite, environment=self.launch.environment)

    def status(self) -> Json:
        """An entry of status.containerStatuses."""
        if self._process is not None:
            state: Json = {"running": {"startedAt": self._started_at}}
        elif self.is_over:
            state = {"terminated": self.ended}
        else:
            reason, message = self.waiting or ("ContainerCreating", "")
            state = {"waiting": {"reason": reason, "message": message}}
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": self.spec.get("image", ""),
            "containerID": f"process://{self.pid}" if self.pid is not None else "",
            "state": state,
            "lastState": {"terminated": self._last} if self._last is not None and not self.is_over else {},
            "ready": self.is_ready,
            "started": self._has_started,
            "restartCount": self.restart_count,
        }

    @property
    def _has_started(self) -> bool:
        return self._process is not None and self._verdict("startupProbe", default=True)

    @property
    def is_ready(self) -> bool:
        return self._has_started and self._verdict("readinessProbe", default=True)

    def _verdict(self, name: str, *, default: bool) -> bool:
        """Of a probe; without one, ``default``; before the first one, no."""
        return default if name not in self.spec else bool(name in self._counts and self._counts[name].verdict)

    def _may_restart(self, exit_code: int) -> bool:
        return self._restarts == "Always" or (self._restarts == "OnFailure" and exit_code != 0)

    def _start(self, launch: Launch, moment: float) -> None:
        if self.ended is not None:
            self.restart_count += 1
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        with launch.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(GUARD), str(os.getpid()), *launch.command],
                env=launch.environment,
                cwd=launch.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._began, self._started_at = moment, now()
        self._counts = {name: ProbeCount.of(self.spec[name], moment) for name in _PROBES if name in self.spec}
        self.ended = self.waiting = None

    def _note_end(self, moment: float) -> None:
        assert self._process is not None
        code = self._process.returncode
        code = code if code >= 0 else 128 - code  # killed by a signal: as shells and kubelets count
        reason = "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": reason, "startedAt": self._started_at, "finishedAt": now()}
        self.ended = self._last = ended
        self._process, self._counts = None, {}
        if moment - self._began >= HEALTHY_SECONDS:
            self._back_off = FIRST_BACK_OFF_SECONDS
        self.waiting = ("CrashLoopBackOff", f"ended with {code}, starts again in {self._back_off} s")
        self._try_again_at = moment + self._back_off
        self._back_off = min(2 * self._back_off, LAST_BACK_OFF_SECONDS)

    def _probe(self, launch: Launch | None, moment: float) -> None:
        for name, count in self._counts.items():
            if launch is None or moment < count.due or (name != "startupProbe" and not self._has_started):
                continue
            if name == "startupProbe" and count.verdict:
                continue  # it has done its work
            found = attempt(
                self.spec[name],
                address=launch.address,
                ports=self._ports,
                rewrite=launch.rewrite,
                environment=launch.environment,
            )
            count.observe(found, time.monotonic())
            if count.verdict is False and name != "readinessProbe":
                self.signal(signal.SIGKILL)
                return


def expanded_command(spec: Json, entry_points: Mapping[str, Sequence[str]]) -> list[str]:
    """command and args, as Kubernetes joins them; ``entry_points`` says what an image starts without a command."""
    command = spec.get("command") or list(entry_points.get(spec.get("image", ""), ()))
    return [*command, *spec.get("args", [])]
