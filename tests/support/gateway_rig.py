"""Real daemons and real gateways as processes, with a planner in a thread that a test steers.

The planner names a generation as soon as every daemon of the plan reports its model ready, tells gateways where the
daemons are, and grants leases to whom the test lets it.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import httpx
import msgspec
import zmq
from openai import OpenAI

from kvgrove_daemon.cache.segments import remove_dead_segments
from kvgrove_link.bodies import answer
from kvgrove_link.frames import configure
from kvgrove_protocol.changes import report_with
from kvgrove_protocol.control import (
    DAEMON,
    TO_MEMBER,
    TO_PLANNER,
    BodyRequest,
    Goodbye,
    Hello,
    LeaseGrant,
    ModelPlan,
    NamespacePlan,
    NodeEndpoint,
    NodePlan,
    NodeReport,
    Refused,
    Revision,
    ToMember,
    Welcome,
)
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.identity import generation

PATIENCE_S = 250.0
"""How long a step may take before the test is given up; never a measure of anything."""

KEYS = {"ann": ("acme", "ann", []), "bob": ("other", "bob", ["legal"]), "eve": ("outside", "eve", [])}
"""API key -> tenant, user, scopes."""


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            raise AssertionError(f"not reached: {what}")
        time.sleep(0.05)


OPERATOR = "root"
"""An operator's key, in every keys file that is written here."""


def metrics(base: str) -> str:
    """What the gateway at ``base`` counts, as an operator reads it."""
    return httpx.get(f"{base}/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}, timeout=60).text


def write_keys(path: Path, keys: dict[str, tuple[str, str, list[str]]] = KEYS) -> None:
    entries = [
        f"- {{id: {key}, sha256: {hashlib.sha256(key.encode()).hexdigest()}, tenant: {tenant}, user: {user}, "
        f"scopes: {scopes}}}"
        for key, (tenant, user, scopes) in keys.items()
    ]
    digest = hashlib.sha256(OPERATOR.encode()).hexdigest()
    entries.append(f"- {{id: {OPERATOR}, sha256: {digest}, tenant: operations, operator: true}}")
    path.write_text("keys:\n" + "\n".join(entries) + "\n")


class Planner:
    """Plays the planner in a thread of its own. What a test sets is taken up at the next `issue`."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        configure(self._socket)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._lock = threading.Lock()
        self._stop = False
        self._n = 0
        self._resend = False
        self._peers: dict[bytes, Hello] = {}
        self.reports: dict[str, NodeReport] = {}
        self.models: list[ModelPlan] = []
        self.namespaces: list[NamespacePlan] = []
        self.bodies: dict[bytes, bytes] = {}
        self.cut_off: set[str] = set()
        """Members that are neither heard nor told anything."""
        self._thread = threading.Thread(target=self._run, name="planner")
        self._thread.start()

    def issue(self, models: list[ModelPlan], namespaces: list[NamespacePlan], *, wait: bool = True) -> Revision:
        """Put a new plan in force and wait until every member that is not cut off has acknowledged it."""
        with self._lock:
            self.models, self.namespaces = models, namespaces
            self._n += 1
            self._resend = True
            revision = Revision(1, self._n)
        if wait:
            self.wait_applied(revision)
        return revision

    def wait_applied(self, revision: Revision) -> None:
        def applied() -> bool:
            members = {hello.member for hello in self._peers.values()} - self.cut_off
            return all(member in self.reports and self.reports[member].applied >= revision for member in members)

        wait_until(applied, f"every member has applied {revision}")

    def wait_leased(self, revision: Revision) -> None:
        """Until each of them has reported once more: the grant that answers its acknowledgement is under way then."""
        seen = dict(self.reports)

        def again() -> bool:
            return all(
                member in self.cut_off or self.reports[member].report_id > report.report_id
                for member, report in seen.items()
                if member in self.reports and report.applied >= revision
            )

        wait_until(again, "every member has reported again")

    def body(self, text: str) -> bytes:
        """Make ``text`` fetchable; its digest."""
        digest = hashlib.sha256(text.encode()).digest()
        self.bodies[digest] = text.encode()
        return digest

    def wait_named(self) -> None:
        """Until every model of the plan has its generation."""
        wait_until(lambda: bool(self.models) and all(model.generation for model in self.models), "models are ready")
        with self._lock:
            revision = Revision(1, self._n)
        self.wait_applied(revision)

    def daemons(self) -> list[str]:
        return sorted(hello.member for hello in self._peers.values() if hello.role == DAEMON)

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        self._socket.close(0)
        self._context.term()

    def _run(self) -> None:
        while not self._stop:
            if self._socket.poll(20):
                peer, frame = self._socket.recv_multipart()
                with self._lock:
                    self._handle(peer, frame)
            with self._lock:
                if self._resend:
                    self._resend = False
                    for peer, hello in list(self._peers.items()):
                        if hello.member not in self.cut_off:
                            self._tell(peer, self._plan(hello))

    def _handle(self, peer: bytes, frame: bytes) -> None:
        try:
            message = TO_PLANNER.decode(frame)
        except Malformed:
            return
        known = self._peers.get(peer)
        if known is not None and known.member in self.cut_off:
            return
        match message:
            case Hello():
                if message.member in self.cut_off:
                    return
                for old in [each for each, hello in self._peers.items() if hello.member == message.member]:
                    del self._peers[old]
                self._peers[peer] = message
                self._tell(peer, Welcome(version=1, term=1))
                self._n += 1
                self._resend = True
            case NodeReport() if known is not None:
                try:
                    self.reports[known.member] = report_with(self.reports.get(known.member), message)
                except Malformed:  # it was cut off when it sent the one before
                    self._tell(peer, Refused(code="report_lost", message="a report is missing"))
                    return
                self._name_generations()
                if message.applied.n:
                    seconds = {namespace.uid: namespace.lease_seconds for namespace in self.namespaces}
                    grant = LeaseGrant(report_id=message.report_id, revision=Revision(1, self._n), seconds=seconds)
                    self._tell(peer, grant)
            case BodyRequest():
                self._tell(peer, answer(message, self.bodies))
            case Goodbye():
                self._peers.pop(peer, None)
                self._n += 1
                self._resend = True

    def _name_generations(self) -> None:
        for position, model in enumerate(self.models):
            reports = [
                report
                for member in self.daemons()
                if member in self.reports
                for report in self.reports[member].models
                if report.name == model.name and report.state == "ready"
            ]
            if model.generation or not reports or len(reports) < len(self.daemons()):
                continue
            inputs = reports[0].inputs
            assert inputs is not None
            self.models[position] = msgspec.structs.replace(
                model,
                generation=generation(inputs),
                inputs=inputs,
                tokenizer_bundle=reports[0].tokenizer_bundle,
                max_model_len=reports[0].max_model_len,
            )
            self._n += 1
            self._resend = True

    def forget(self, member: str) -> None:
        """The member's process has ended: take it out of the plan, as a supervisor does."""
        with self._lock:
            for peer in [peer for peer, hello in self._peers.items() if hello.member == member]:
                del self._peers[peer]
            self.reports.pop(member, None)
            self._n += 1
            self._resend = True

    def _plan(self, hello: Hello) -> NodePlan:
        nodes = [
            NodeEndpoint(member=each.member, boot=each.boot, address=each.address)
            for each in self._peers.values()
            if each.role == DAEMON
        ]
        return NodePlan(
            revision=Revision(1, self._n),
            models=list(self.models),
            namespaces=list(self.namespaces),
            nodes=[] if hello.role == DAEMON else sorted(nodes, key=lambda node: node.member),
        )

    def _tell(self, peer: bytes, message: ToMember) -> None:
        try:
            self._socket.send_multipart([peer, TO_MEMBER.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self._peers.pop(peer, None)  # gone: it dials anew


class Stage:
    """Daemons, gateways and their planner. Everything is stopped by `close`."""

    def __init__(self, folder: Path, *always: str) -> None:
        """``always``: options of every process."""
        self.folder = folder
        self._always = always
        self.planner = Planner()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keys = folder / "keys.yaml"
        write_keys(self.keys)

    def daemon(self, name: str) -> None:
        self._start(name, "kvgrove_daemon", "--listen", "tcp://127.0.0.1:0", "--state-dir", str(self.folder / name),
                    "--threads", "1", "--metrics", "127.0.0.1:0")  # fmt: skip

    def gateway(self, name: str, *extra: str) -> str:
        """Start it; its base address."""
        file = self.folder / f"{name}.address"
        file.unlink(missing_ok=True)
        self._start(name, "kvgrove_gateway", "--listen", "127.0.0.1:0", "--keys", str(self.keys), "--address-file",
                    str(file), *extra)  # fmt: skip
        wait_until(file.exists, f"{name} is bound")
        return file.read_text().strip()

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    module,
                    "--member",
                    name,
                    "--plain-links",
                    "--control",
                    self.planner.address,
                    *self._always,
                    *arguments,
                ],
                stderr=log,
                stdout=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def wait_daemons(self, count: int) -> None:
        """Until ``count`` daemons are known to the planner; at once an error if one of them has ended."""

        def dialled() -> bool:
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}: {self.log(name)[-500:]}"
            return len(self.planner.daemons()) == count

        wait_until(dialled, f"{count} daemons have dialled")

    def node_metrics(self, name: str) -> str:
        address = re.findall(r"metrics on (http://\S+)", self.log(name))[-1]
        return httpx.get(address, timeout=30).text

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        remove_dead_segments(name, "")

    def close(self) -> None:
        while _clients:
            _clients.pop().close()
        client.cache_clear()
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        try:
            for process in self.processes.values():
                process.wait(60)
        finally:
            for process in self.processes.values():
                process.kill()
            self.planner.close()


@contextmanager
def stage(folder: Path, *always: str) -> Iterator[Stage]:
    rig = Stage(folder, *always)
    try:
        yield rig
    finally:
        rig.close()


def wait_ready(base: str) -> None:
    def ready() -> bool:
        try:
            return httpx.get(f"{base}/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(ready, f"{base} is ready")


@cache
def client(base: str, key: str = "ann") -> OpenAI:
    """One client for each gateway and key; `Stage.close` closes them."""
    made = OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)
    _clients.append(made)
    return made


_clients: list[OpenAI] = []
