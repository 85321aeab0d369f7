"""A real control plane in a folder: etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.

Every program is a child of its own, stopped by its own id in reverse order, also when a later one fails to start. What
a test may do to it: kill, pause, restart one program; go back to an earlier content of etcd. Nothing of ours runs here:
`crds/manifests` and Nodes are for those who use it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from controlplane.build import control_plane
from controlplane.component import Component, PlaneProblem
from controlplane.settings import Settings
from kubernetes import client, config

READY_SECONDS = 120.0
CALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Plane:
    """A control plane. Use it as a context manager, or `start` and `stop` it."""

    settings: Settings
    components: tuple[Component, ...]

    @classmethod
    def in_folder(cls, work: Path, *, programs: Path | None = None, tied: bool = True) -> Plane:
        """A new one that keeps all it has in ``work``. Builds the programs where there are none yet.

        ``tied``: the kernel kills the programs when the thread that starts them ends.
        """
        settings = Settings.fresh(work, programs if programs is not None else control_plane())
        return cls(settings, tuple(settings.components(tied=tied)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raises `PlaneProblem` where one of them does not get ready; then none is left running."""
        self.settings.prepare()
        try:
            for name in ("etcd", "kube-apiserver"):
                self[name].start()
                self[name].wait_ready(READY_SECONDS)
            for name in ("kube-controller-manager", "kube-scheduler"):
                self[name].start()
            for name in ("kube-controller-manager", "kube-scheduler"):
                self[name].wait_ready(READY_SECONDS)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for component in reversed(self.components):
            component.stop()

    def __getitem__(self, name: str) -> Component:
        for component in self.components:
            if component.name == name:
                return component
        raise PlaneProblem(f"no program {name}: it is one of {', '.join(c.name for c in self.components)}")

    def restart(self, name: str) -> None:
        """Stops one program, unless it is dead already, starts it again with the same data, and waits for it."""
        self[name].stop()
        self[name].start()
        self[name].wait_ready(READY_SECONDS)

    def backup(self, folder: Path) -> None:
        """Copies the content of etcd. etcd is away for that time; the API server bears it."""
        self["etcd"].stop()
        shutil.copytree(self.settings.etcd_data, folder)
        self["etcd"].start()
        self["etcd"].wait_ready(READY_SECONDS)
        self["kube-apiserver"].wait_ready(READY_SECONDS)

    def restore(self, folder: Path) -> None:
        """Goes back to a backup. All programs start anew, because their caches know a future that is gone."""
        self.stop()
        shutil.rmtree(self.settings.etcd_data)
        shutil.copytree(folder, self.settings.etcd_data)
        for component in self.components:
            component.start()
            component.wait_ready(READY_SECONDS)

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.settings.kubeconfig

    def client(self, kubeconfig: Path | None = None) -> client.ApiClient:
        """A client of the official library. Close it (it is a context manager)."""
        made: client.ApiClient = config.new_client_from_config(str(kubeconfig or self.kubeconfig))
        return made

    def kubectl(
        self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl; the caller judges its exit status."""
        return subprocess.run(
            [str(self.settings.programs / "kubectl"), *arguments],
            input=stdin,
            env={
                **os.environ,
                "KUBECONFIG": str(kubeconfig or self.kubeconfig),
                "HOME": str(self.settings.work),  # its discovery cache lies there
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=CALL_SECONDS,
        )

    def get(self, *arguments: str) -> Any:
        """What ``kubectl get ... -o json`` prints. Raises `PlaneProblem` where it fails."""
        return json.loads(self._do("get", *arguments, "-o", "json"))

    def service_account(self, namespace: str, name: str) -> Path:
        """Makes a service account with no rights yet and a kubeconfig with a real token of it (valid for an hour)."""
        self._do("create", "serviceaccount", name, "-n", namespace)
        token = self._do("create", "token", name, "-n", namespace).strip()
        file = self.settings.work / f"kubeconfig-{namespace}-{name}"
        self.settings.write_kubeconfig(file, user=name, token=token, namespace=namespace)
        return file

    def _do(self, *arguments: str) -> str:
        done = self.kubectl(*arguments)
        if done.returncode:
            raise PlaneProblem(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout
