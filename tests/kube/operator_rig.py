"""The operator as a process, with the rights of its manifests; daemons as Pods of test nodes; gateways as processes."""

from __future__ import annotations

import base64
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from controlplane.plane import Plane
from nodeagent import NodeAgent
from ports import free_port

from kvgrove_cli import api_keys
from kvgrove_crds.manifests import load_manifests
from kvgrove_crds.model_version import ModelVersion

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "operator" / "manifests"
QUICKSTART = ROOT / "crds" / "examples" / "valid" / "quickstart"
OWN = "kvgrove-system"
WAIT_SECONDS = 120.0
REAL, LIGHT = ("-m", "kvgrove_daemon"), (str(Path(__file__).with_name("light_daemon.py")),)
SMALL = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def wait_for(reached: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """What ``reached`` gives once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := reached()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.2)
    return found


@dataclass
class Operator:
    """One operator process; `start` it as often as it is killed. Its fleet link has one port for life."""

    kubeconfig: Path
    work: Path
    models: Path
    port: int = field(default_factory=free_port)
    probes: int = field(default_factory=free_port)
    metrics: int = field(default_factory=free_port)
    arguments: Sequence[str] = ()
    light: bool = False
    """Daemons without an engine."""
    process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        command = [
            *(sys.executable, "-m", "kvgrove_operator", "--own-namespace", OWN, "--verbose"),
            *("--listen", f"tcp://127.0.0.1:{self.port}", "--advertise", f"tcp://127.0.0.1:{self.port}"),
            *("--probes", f"127.0.0.1:{self.probes}", "--metrics", f"127.0.0.1:{self.metrics}"),
            *("--lease-duration", "6", "--lease-renewal", "1", "--model-root", str(self.models)),
            *("--daemon-command", shlex.join([sys.executable, *(LIGHT if self.light else REAL)])),
            *self.arguments,
            *more,
        ]
        self.work.mkdir(parents=True, exist_ok=True)
        with (self.work / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **SMALL, "KUBECONFIG": str(self.kubeconfig)}, stdout=log, stderr=log
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    @property
    def log(self) -> str:
        return (self.work / "log").read_text(errors="replace")

    def leads(self) -> bool:
        """Whether it is at work: one that stands by has no plans."""
        found = self._get(f"http://127.0.0.1:{self.metrics}/metrics")
        return found is not None and "kvgrove_operator_plans_total" in found and "kvgrove_operator_leading 1.0" in found

    def probed(self, path: str) -> bool:
        """What a kubelet hears from ``/healthz`` or ``/readyz``."""
        return self._get(f"http://127.0.0.1:{self.probes}{path}") is not None

    def _get(self, url: str) -> str | None:
        """None: no answer, or another one than 200."""
        try:
            answer = httpx.get(url, timeout=30)
        except httpx.TransportError:
            return None
        return answer.text if answer.status_code == 200 else None


@contextmanager
def operator(
    plane: Plane, work: Path, models: Path, *arguments: str, light: bool = False, port: int | None = None
) -> Iterator[Operator]:
    """One with the rights of ``operator/manifests/cluster-wide``, and nothing more."""
    apply(plane, "-f", str(MANIFESTS / "cluster-wide" / "rbac.yaml"))
    running = Operator(token(plane), work, models, port or free_port(), arguments=arguments, light=light)
    running.start()
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
            running.process.wait(30)
        print(running.log[-20_000:])


def apply(plane: Plane, *arguments: str, stdin: str | None = None) -> None:
    done = plane.kubectl("apply", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr


def token(plane: Plane) -> Path:
    """A kubeconfig with a real token of the operator's ServiceAccount."""
    made = plane.kubectl("create", "token", "kvgrove-operator", "-n", OWN)
    assert made.returncode == 0, made.stderr
    file = plane.settings.work / "kubeconfig-operator"
    plane.settings.write_kubeconfig(file, user="operator", token=made.stdout.strip(), namespace=OWN)
    return file


def model_root(folder: Path, model: Path) -> Path:
    """A model root in whose Hugging Face cache the quickstart's model is ``model``."""
    (version,) = load_manifests([QUICKSTART]).model_versions
    source = version.spec.source.hugging_face
    assert isinstance(version, ModelVersion)
    assert source is not None
    snapshot = folder / "hub" / f"models--{source.repo.replace('/', '--')}" / "snapshots" / source.revision
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(model, target_is_directory=True)
    return folder


def copy_link_keys(plane: Plane, role: str, folder: Path) -> Path:
    """The link keys that the operator made for this role, as files in ``folder``."""
    folder.mkdir(parents=True)
    for name, content in plane.get("secret", f"kvgrove-link-{role}", "-n", OWN)["data"].items():
        (folder / name).write_bytes(base64.b64decode(content))
    return folder


@contextmanager
def gateway(plane: Plane, folder: Path, control: int, *, member: str = "gateway-0") -> Iterator[Gateway]:
    """A gateway that dials the operator at port ``control``, with the link keys that the operator made for it."""
    folder.mkdir(parents=True)
    links = copy_link_keys(plane, "gateway", folder / "link-keys")
    secret, keys, address = api_keys.new_secret(), folder / "keys.yaml", folder / "address"
    api_keys.create(keys, secret=secret, key_id="acme", tenant="acme")
    command = [
        *(sys.executable, "-m", "kvgrove_gateway", "--member", member, "--control", f"tcp://127.0.0.1:{control}"),
        *("--link-keys", str(links), "--listen", "127.0.0.1:0", "--keys", str(keys), "--address-file", str(address)),
    ]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, env={**os.environ, **SMALL}, stdout=log, stderr=log)
    try:
        wait_for(address.exists, "the gateway's address")
        yield Gateway(address.read_text().strip(), secret, process)
    finally:
        process.kill()
        process.wait(30)


@dataclass(frozen=True)
class Gateway:
    address: str
    secret: str
    process: subprocess.Popen[bytes]

    def chat(self, model: str, question: str, **more: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 4, "temperature": 0}
        return httpx.post(
            f"{self.address}/v1/chat/completions",
            json=body | more,
            headers={"Authorization": f"Bearer {self.secret}"},
            timeout=60,
        )


def nodes(plane: Plane, folder: Path, *names: str) -> NodeAgent:
    # A container has an environment of its own; which sources are tested is not for it to say.
    tested = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return NodeAgent(plane.kubeconfig, folder, names, environment=SMALL | tested)


def condition(plane: Plane, kind: str, name: str, of: str, *where: str) -> dict[str, Any]:
    """One condition of an object; empty while there is none."""
    status = plane.get(kind, name, *where).get("status", {})
    return next((each for each in status.get("conditions", []) if each["type"] == of), {})


def wait_ready(plane: Plane, *what: str) -> None:
    """``kubectl wait --for=condition=Ready``, as people type it."""

    def ready() -> bool:
        return plane.kubectl("wait", "--for=condition=Ready", "--timeout=20s", *what).returncode == 0

    try:
        wait_for(ready, f"Ready of {' '.join(what)}")
    except AssertionError:
        print(plane.kubectl("get", "mv,pcn,cachenodes,ds,pods", "-A", "-o", "yaml").stdout[-20_000:])
        raise
