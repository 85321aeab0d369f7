"""``make kube-up`` and ``make kube-down``: a control plane for people, which outlives the command that starts it.

``python -m controlplane.updown up|down FOLDER``. What was started stands in FOLDER/state.json: process ids with their
start times, so that ``down`` never stops a stranger that was given the same id. FOLDER goes with ``down``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from controlplane.build import BuildProblem, control_plane
from controlplane.component import STOP_SECONDS, PlaneProblem, Probe
from controlplane.plane import Plane


@dataclass(frozen=True, slots=True)
class Process:
    """A process that cannot be mistaken for another: the kernel gives no two of the same id the same start."""

    name: str
    pid: int
    started: int

    @classmethod
    def seen(cls, name: str, pid: int) -> Process:
        return cls(name, pid, _start_ticks(pid))

    @property
    def runs(self) -> bool:
        return _start_ticks(self.pid) == self.started

    def stop(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        number = signal.SIGTERM
        while self.runs:
            os.kill(self.pid, number)
            number = signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL
            time.sleep(0.1)


def _start_ticks(pid: int) -> int:
    """Start of a process in ticks since boot; -1 where there is none, or only its exit status is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return -1
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return -1 if fields[0] == "Z" else int(fields[19])


def up(folder: Path) -> str:
    """Starts one unless it runs, and says how to use it."""
    state = folder / "state.json"
    if state.exists():
        known = json.loads(state.read_text())
        processes = [Process(**item) for item in known["processes"]]
        if all(process.runs for process in processes) and Probe(known["ready"], known["token"]).answers():
            return str(known["usage"])
        down(folder)  # half of one is of no use
    plane = Plane.in_folder(folder / "plane", programs=control_plane(), tied=False)
    plane.start()
    usage = _usage(plane)
    known = {
        "processes": [asdict(Process.seen(component.name, component.pid)) for component in plane.components],
        "ready": plane["kube-apiserver"].probe.url,
        "token": plane.settings.token,
        "usage": usage,
    }
    state.touch(mode=0o600)
    state.write_text(json.dumps(known, indent=2))
    return usage


def down(folder: Path) -> str:
    """Stops what `up` started, last first, and removes the folder."""
    state = folder / "state.json"
    if not state.exists():
        return "no control plane runs here"
    processes = [Process(**item) for item in json.loads(state.read_text())["processes"]]
    stopped = [process.name for process in reversed(processes) if process.runs]
    for process in reversed(processes):
        process.stop()
    shutil.rmtree(folder)
    return f"stopped {', '.join(stopped)}" if stopped else "all had stopped already"


def _usage(plane: Plane) -> str:
    return (
        f"a control plane serves {plane.settings.server}\n"
        f"  export KUBECONFIG={plane.kubeconfig} PATH={plane.settings.programs}:$PATH\n"
        "  kubectl apply -f crds/manifests\n"
        "make kube-down stops it and forgets all it held"
    )


if __name__ == "__main__":
    try:
        print({"up": up, "down": down}[sys.argv[1]](Path(sys.argv[2]).resolve()))
    except (BuildProblem, PlaneProblem) as problem:
        sys.exit(str(problem))
