"""Build the Kubernetes control plane that tests run against, once, into a cache outside the repository.

``python tests/kube/controlplane/build.py`` prints the folder that holds etcd, kube-apiserver,
kube-controller-manager, kube-scheduler and kubectl. The folder's name is a digest of what pins them, so that a change
of a pin builds anew and a second run costs nothing. Where ``KUBEBUILDER_ASSETS`` names a folder that holds them all,
that one is used and nothing is built. Needs Go; takes minutes the first time, seconds afterwards. Of several that ask
at once, one builds and the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
_PINS = ("kubernetes/go.mod", "kubernetes/go.sum", "etcd/go.mod", "etcd/go.sum")


class BuildProblem(Exception):
    """One line that names what is missing and the cure."""


def kubernetes_version() -> str:
    """The version that go.mod pins, like ``v1.36.3``."""
    found = re.search(r"^require k8s\.io/kubernetes (v[\d.]+)$", (HERE / "kubernetes/go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildProblem("tests/kube/controlplane/kubernetes/go.mod requires no k8s.io/kubernetes: pin one there")
    return found[1]


def cache_folder() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pins = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in _PINS)).hexdigest()[:12]
    return root / "kvgrove" / "controlplane" / f"{kubernetes_version()}-{pins}"


def is_whole(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in PROGRAMS)


def control_plane() -> Path:
    """The folder of the programs, built if need be. Raises `BuildProblem`."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        if is_whole(Path(assets)):
            return Path(assets)
        missing = [name for name in PROGRAMS if not os.access(Path(assets) / name, os.X_OK)]
        raise BuildProblem(
            f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}: add them, or unset it to build all"
        )
    folder = cache_folder()
    if is_whole(folder):
        return folder
    if shutil.which("go") is None:
        raise BuildProblem("missing: go (1.26 or newer); it builds the control plane that the tests run against")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.parent / "building.lock"):
        if not is_whole(folder):  # another may have built it while this one waited
            _build(folder)
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel lets go of it however that one ends."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(folder: Path) -> None:
    print(f"building etcd and Kubernetes {kubernetes_version()} (minutes, once)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as made:
        _go_build("etcd", ["go.etcd.io/etcd/server/v3"], Path(made), {"go.etcd.io/etcd/server/v3": "etcd"})
        _go_build(
            "kubernetes", [f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS if name != "etcd"], Path(made), {}
        )
        if folder.exists():  # an incomplete one; a whole one would have been used
            shutil.rmtree(folder)
        Path(made).rename(folder)
        Path(made).mkdir()  # for TemporaryDirectory to remove


def _go_build(module: str, packages: list[str], out: Path, names: dict[str, str]) -> None:
    """One package after another: a name of its own for each, and no more memory than one linker needs."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    stamps = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
    }
    flags = " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamps.items())
    for package in packages:
        target = out / names.get(package, package.rsplit("/", 1)[-1])
        began = time.monotonic()
        command = ["go", "build", "-trimpath", f"-ldflags=-s -w {flags}", "-o", str(target), package]
        done = subprocess.run(
            command,
            check=False,
            cwd=HERE / module,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            raise BuildProblem(f"go build {package}: {last[0]}")
        print(f"built {target.name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(control_plane())
    except BuildProblem as problem:
        sys.exit(str(problem))
