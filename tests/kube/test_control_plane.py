"""The tests' own control plane: real authorisation, restarts without loss, backups, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from controlplane.component import PlaneProblem
from controlplane.plane import Plane

KUBE = Path(__file__).parent
SUPPORT = KUBE.parent / "support"


def names(plane: Plane, namespace: str) -> set[str]:
    return {item["metadata"]["name"] for item in plane.get("configmaps", "-n", namespace)["items"]}


def make(plane: Plane, namespace: str, name: str) -> None:
    made = plane.kubectl("create", "configmap", name, "-n", namespace)
    assert made.returncode == 0, made.stderr


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_a_user_may_do_what_rbac_gives_it_and_nothing_else(control_plane: Plane, cluster_namespace: str) -> None:
    reader = control_plane.service_account(cluster_namespace, "reader")
    refused = control_plane.kubectl("get", "configmaps", kubeconfig=reader)
    assert "Forbidden" in refused.stderr
    for arguments in (
        ("create", "role", "read", "--verb=get,list", "--resource=configmaps"),
        ("create", "rolebinding", "read", "--role=read", f"--serviceaccount={cluster_namespace}:reader"),
    ):
        assert control_plane.kubectl(*arguments, "-n", cluster_namespace).returncode == 0
    for _ in range(50):  # the authoriser learns of roles by a watch
        if control_plane.kubectl("get", "configmaps", kubeconfig=reader).returncode == 0:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the role never counted")
    refused = control_plane.kubectl("create", "configmap", "mine", kubeconfig=reader)
    assert 'cannot create resource "configmaps"' in refused.stderr


def test_killed_programs_come_back_with_what_they_knew_and_a_backup_forgets_what_came_after(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    plane = own_control_plane
    make(plane, "default", "before")
    plane["kube-apiserver"].signal(signal.SIGKILL)
    assert plane.kubectl("get", "namespaces").returncode != 0
    plane.restart("kube-apiserver")
    assert "before" in names(plane, "default")
    plane.backup(tmp_path / "backup")
    make(plane, "default", "after")
    plane["etcd"].signal(signal.SIGKILL)
    plane.restart("etcd")
    plane["kube-apiserver"].wait_ready(60)
    assert {"before", "after"} <= names(plane, "default")
    plane.restore(tmp_path / "backup")
    assert "before" in names(plane, "default")
    assert "after" not in names(plane, "default")


def test_a_program_that_does_not_start_is_named_with_its_words_and_the_others_stop(
    control_plane_programs: Path, tmp_path: Path
) -> None:
    plane = Plane.in_folder(tmp_path / "plane", programs=control_plane_programs)
    broken = plane["kube-apiserver"]
    broken.command = [*broken.command, "--no-such-flag"]
    with pytest.raises(PlaneProblem, match=r"kube-apiserver ended before it was ready: .*unknown flag"):
        plane.start()
    assert all(component.process is None for component in plane.components)
    assert not plane["etcd"].probe.answers()


def test_a_killed_test_run_leaves_no_program_behind(control_plane_programs: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from controlplane.settings import Settings\n"
        "settings = Settings.fresh(Path(sys.argv[1]), Path(sys.argv[2])); settings.prepare()\n"
        "etcd = settings.components(tied=True)[0]; etcd.start(); etcd.wait_ready(60)\n"
        "print(etcd.pid, flush=True); time.sleep(600)\n"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "plane"), str(control_plane_programs)],
        env={**os.environ, "PYTHONPATH": f"{KUBE}{os.pathsep}{SUPPORT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with runner:
        assert runner.stdout is not None
        etcd = int(runner.stdout.readline())
        assert not ended(etcd)
        runner.kill()
    deadline = time.monotonic() + 30
    while not ended(etcd):
        assert time.monotonic() < deadline, "etcd outlived the run that started it"
        time.sleep(0.05)


def test_kube_up_twice_starts_one_and_kube_down_stops_it(control_plane_programs: Path, tmp_path: Path) -> None:
    def run(verb: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "controlplane.updown", verb, str(tmp_path / "kube")],
            env={**os.environ, "PYTHONPATH": f"{KUBE}{os.pathsep}{SUPPORT}"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run("down") == "no control plane runs here\n"
    first = run("up")
    try:
        state = json.loads((tmp_path / "kube" / "state.json").read_text())
        assert run("up") == first
        assert json.loads((tmp_path / "kube" / "state.json").read_text()) == state
        export = next(line for line in first.splitlines() if "export KUBECONFIG=" in line)
        asked = subprocess.run(["bash", "-c", f"{export.strip()}; kubectl get namespaces"], check=False)
        assert asked.returncode == 0
    finally:
        down = run("down")
    assert down == "stopped kube-scheduler, kube-controller-manager, kube-apiserver, etcd\n"
    assert all(ended(process["pid"]) for process in state["processes"])
    assert not (tmp_path / "kube").exists()
