"""A real daemon process, a planner and a gateway's link to it, driven step by step from a test."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from kvgrove_link.bodies import answer
from kvgrove_link.frames import configure
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind
from kvgrove_protocol.changes import report_with
from kvgrove_protocol.control import (
    TO_MEMBER,
    TO_PLANNER,
    BodyRequest,
    Hello,
    LeaseGrant,
    ModelPlan,
    NamespacePlan,
    NodePlan,
    NodeReport,
    Revision,
    ToMember,
    Welcome,
)
from kvgrove_protocol.data import (
    TO_GATEWAY,
    TO_NODE,
    ClientHello,
    Done,
    Error,
    Generate,
    Sampling,
    ServerHello,
    Started,
    ToGateway,
    Token,
    ToNode,
)
from kvgrove_protocol.events import EventBatch
from kvgrove_protocol.identity import Caller, generation

PATIENCE_S = 120.0
"""How long a step may take before the test is given up; never a measure of anything."""


@dataclass
class Answer:
    started: Started | None = None
    token_ids: list[int] = field(default_factory=list)
    done: Done | None = None
    error: Error | None = None


class Rig:
    """One daemon with its planner and one gateway. All calls block until the daemon has answered."""

    def __init__(
        self, state_dir: Path, member: str = "node-0", *extra: str, program: Sequence[str] = ("-m", "kvgrove_daemon")
    ) -> None:
        """``program``: what Python is to run, where it is not the daemon alone."""
        self._context = zmq.Context()
        self._planner = self._context.socket(zmq.ROUTER)
        configure(self._planner)
        port = self._planner.bind_to_random_port("tcp://127.0.0.1")
        self.grant_leases = True
        self.bodies: dict[bytes, bytes] = {}
        self.plan: NodePlan | None = None
        self.report: NodeReport | None = None
        self.hello: Hello | None = None
        self._peer = b""
        self.process = subprocess.Popen(
            [sys.executable, *program, "--member", member, "--control", f"tcp://127.0.0.1:{port}",
             "--plain-links", "--listen", "tcp://127.0.0.1:0", "--state-dir", str(state_dir), "--threads", "1", *extra],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._numbers = iter(range(1, 1 << 30))
        self.data: zmq.Socket[bytes] | None = None
        self.batches: list[EventBatch] = []
        """Every residency batch that was received, also while something else was waited for."""

    # -- planner -------------------------------------------------------------------------------------------------------

    def until(self, reached: Callable[[], bool]) -> None:
        """Play the planner until ``reached``."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            if time.monotonic() > deadline:
                raise AssertionError(f"not reached; last report: {self.report}")
            if self.process.poll() is not None:
                raise AssertionError(f"the daemon ended with {self.process.returncode}")
            self.play(0.2)

    def play(self, seconds: float) -> None:
        """Answer the member for a moment."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._planner.poll(int(left * 1000) + 1):
                return
            self._peer, frame = self._planner.recv_multipart()
            match TO_PLANNER.decode(frame):
                case Hello() as hello:
                    self.hello = hello
                    self.tell(Welcome(version=1, term=1))
                    if self.plan is not None:
                        self.tell(self.plan)
                case NodeReport() as report:
                    self.report = report_with(self.report, report)
                    if self.grant_leases and self.plan is not None:
                        leases = {namespace.uid: namespace.lease_seconds for namespace in self.plan.namespaces}
                        self.tell(LeaseGrant(report_id=report.report_id, revision=self.plan.revision, seconds=leases))
                case BodyRequest() as request:
                    self.tell(answer(request, self.bodies))

    def tell(self, message: ToMember) -> None:
        """Send ``message`` to the member that spoke last."""
        try:
            self._planner.send_multipart([self._peer, TO_MEMBER.encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            # The member has dialled anew: its Hello is on the way, and is answered with the newest plan.

    def issue(self, models: list[ModelPlan], namespaces: list[NamespacePlan], erase: list[str] | None = None) -> None:
        """Send the next plan and wait until it is acknowledged."""
        n = self.plan.revision.n + 1 if self.plan is not None else 1
        self.plan = NodePlan(revision=Revision(1, n), models=models, namespaces=namespaces, erase_uids=erase or [])
        if self._peer:
            self.tell(self.plan)
        self.until(lambda: self.report is not None and self.report.applied == Revision(1, n))

    def name_generation(self, model: ModelPlan) -> ModelPlan:
        """Wait until the daemon reports ``model`` ready; the plan with its generation named."""

        def ready() -> bool:
            reports = self.report.models if self.report is not None else []
            return any(report.name == model.name and report.state == "ready" for report in reports)

        self.until(ready)
        assert self.report is not None
        inputs = next(report.inputs for report in self.report.models if report.name == model.name)
        assert inputs is not None
        return msgspec.structs.replace(model, generation=generation(inputs), inputs=inputs)

    # -- gateway -------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        assert self.hello is not None
        self.data = self._context.socket(zmq.DEALER)
        configure(self.data)
        self.data.connect(self.hello.address)
        self.send(ClientHello(member="gateway-0", boot="b"))
        assert isinstance(self.receive(), ServerHello)

    def send(self, message: ToNode) -> None:
        assert self.data is not None
        self.data.send(TO_NODE.encode(message))

    def receive(self) -> ToGateway:
        """The next message of the daemon, the planner playing on meanwhile."""
        assert self.data is not None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.data.poll(50):
                message = TO_GATEWAY.decode(self.data.recv())
                if isinstance(message, EventBatch):
                    self.batches.append(message)
                return message
            self.play(0.01)
        raise AssertionError("the daemon did not answer")

    def ask(self, request: Generate) -> Answer:
        """Send ``request`` and read until it ends."""
        self.send(request)
        answer = Answer()
        while answer.done is None and answer.error is None:
            match self.receive():
                case Started() as started if started.request_id == request.request_id:
                    answer.started = started
                case Token() as token if token.request_id == request.request_id:
                    answer.token_ids += token.token_ids
                case Done() as done if done.request_id == request.request_id:
                    answer.done = done
                case Error() as error if error.request_id == request.request_id:
                    answer.error = error
                case _:
                    pass
        return answer

    def request(
        self, namespace: NamespacePlan, model: ModelPlan, tokens: list[int], *, shared: int = 0,
        document: tuple[int, DocumentRef] | None = None, tenant: str = "acme", max_new_tokens: int = 4,
    ) -> Generate:  # fmt: skip
        """A prompt: ``shared`` tokens of a declared prefix, then perhaps a document, then the caller's own."""
        spans = [Span(SpanKind.PREFIX, 0, shared, name="p")] if shared else []
        if document is not None:
            spans.append(Span(SpanKind.DOCUMENT, shared, shared + document[0], document=document[1]))
            shared += document[0]
        spans.append(Span(SpanKind.PRIVATE, shared, len(tokens)))
        return Generate(
            request_id=f"r{next(self._numbers)}",
            namespace_uid=namespace.uid,
            generation=model.generation,
            fence=namespace.fence,
            caller=Caller(tenant=tenant),
            tokens=struct.pack(f"<{len(tokens)}I", *tokens),
            spans=spans,
            sampling=Sampling(temperature=0.0),
            max_new_tokens=max_new_tokens,
        )

    def stop(self) -> int:
        """SIGTERM, and the exit status; the daemon is killed if it does not heed it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        if self.data is not None:
            self.data.close(0)
        self._planner.close(0)
        self._context.term()
        return self.process.returncode


@contextmanager
def running(state_dir: Path, member: str = "node-0", *extra: str) -> Iterator[Rig]:
    rig = Rig(state_dir, member, *extra)
    try:
        yield rig
    finally:
        rig.stop()
