"""vllm-router reads the event streams of two real daemons: the judge is a program that knows nothing of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from node_rig import Rig, running
from ports import free_port

from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.reasons import MissReason

BLOCK = 32
PATIENCE_S = 60.0
ROUTER = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or shutil.which("vllm-router")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),  # two daemons and a router start: on a busy machine that takes minutes
    pytest.mark.skipif(ROUTER is None, reason="vllm-router is not installed: pip install vllm-router"),
]

NAMESPACE = NamespacePlan(
    uid="uid-1",
    name="team/support",
    model="tiny",
    purge=Purge(1, b"n" * 16),
    fence=Fence(1, 1, 1),
    lease_seconds=60.0,
    events_export=True,
)


class Worker:
    """The least that the router wants of an engine behind a node: it renders what it is told, and answers its name."""

    def __init__(self, name: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
                del format, arguments

            def do_GET(self) -> None:
                self.reply({"object": "list", "data": [{"id": "tiny", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path.endswith("/render"):
                    token_ids = json.loads(body["messages"][0]["content"])
                    self.reply({"request_id": "r", "token_ids": token_ids, "sampling_params": {}, "model": "tiny",
                                "stream": False})  # fmt: skip
                else:
                    choice = {"index": 0, "message": {"role": "assistant", "content": name}, "finish_reason": "stop"}
                    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                    self.reply({"id": "x", "object": "chat.completion", "created": 1, "model": "tiny",
                                "choices": [choice], "usage": usage})  # fmt: skip

            def reply(self, body: dict[str, Any]) -> None:
                raw = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Relay:
    """Passes a daemon's live stream on, but for the batches that a test wants lost."""

    def __init__(self, source: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._in = self._context.socket(zmq.SUB)
        self._in.subscribe(b"")
        self._in.connect(source)
        self._out = self._context.socket(zmq.PUB)
        self.address = f"tcp://127.0.0.1:{self._out.bind_to_random_port('tcp://127.0.0.1')}"
        self.losing = False
        self.lost: list[int] = []
        self.passed: list[int] = []
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            if not self._in.poll(20):
                continue
            frames = self._in.recv_multipart()
            number = int.from_bytes(frames[1], "big")
            if self.losing:
                self.lost.append(number)
            else:
                self._out.send_multipart(frames)
                self.passed.append(number)

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        self._context.destroy(0)


class Node:
    """A real daemon with its planner, and the worker that stands for it at the router."""

    def __init__(self, rig: Rig, model: ModelPlan, events: str, replay: str) -> None:
        self.rig, self.model = rig, model
        self.relay = Relay(events)
        self.replay = replay
        assert rig.hello is not None
        self.name = rig.hello.member
        self.worker = Worker(self.name)

    def prefill(self, tokens: list[int]) -> None:
        """Have the daemon compute ``tokens`` as a declared prefix, and one private token after them."""
        request = self.rig.request(NAMESPACE, self.model, [*tokens, 7], shared=len(tokens), max_new_tokens=1)
        for attempt in range(200):  # until the grant has arrived: before it, nothing is stored
            answer = self.rig.ask(msgspec.structs.replace(request, request_id=f"{request.request_id}-{attempt}"))
            assert answer.done is not None, answer.error
            if MissReason.CONTROL_PLANE_LOST not in answer.done.usage.missed:
                return
            self.rig.play(0.05)
        raise AssertionError("no lease")

    def close(self) -> None:
        self.relay.close()
        self.worker.close()


@contextmanager
def node(folder: Path, name: str, path: Path) -> Iterator[Node]:
    events, replay = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    with running(folder / name, name, "--kv-events", events, "--kv-events-replay", replay) as rig:
        rig.issue([ModelPlan(name="tiny", path=str(path), pool_bytes={"host": 16 << 20})], [])
        assert rig.plan is not None
        model = rig.name_generation(rig.plan.models[0])
        rig.issue([model], [NAMESPACE])
        rig.connect()
        made = Node(rig, model, events, replay)
        try:
            yield made
        finally:
            made.close()


class Router:
    """The real binary."""

    def __init__(self, folder: Path, nodes: list[Node]) -> None:
        assert ROUTER is not None
        port, metrics = free_port(), free_port()
        self._base, self._metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"
        self._log = folder / "router.log"
        sources: list[str] = []
        for each in nodes:
            sources += ["--kv-event-source", f"{each.worker.url}={each.relay.address}"]
            sources += ["--kv-event-replay-source", f"{each.worker.url}={each.replay}"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [ROUTER, "--host", "127.0.0.1", "--port", str(port), "--policy", "kv_aware",
                 "--worker-urls", *(each.worker.url for each in nodes), *sources,
                 "--kv-event-block-size", str(BLOCK), "--kv-event-model", "tiny", "--log-level", "debug",
                 "--prometheus-port", str(metrics)],
                stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip
        self.until(self._healthy, "the router is up")

    def _healthy(self) -> bool:
        assert self.process.poll() is None, self.log()[-2000:]
        try:
            return httpx.get(f"{self._base}/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < deadline, f"not reached: {what}\n{self.log()[-3000:]}"
            time.sleep(0.1)

    def log(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self._log.read_text(errors="replace"))

    def place(self, tokens: list[int]) -> tuple[str, int]:
        """Which node a prompt goes to, and how many of its tokens the router believes to be there."""
        message = {"role": "user", "content": json.dumps(tokens)}
        answer = httpx.post(
            f"{self._base}/v1/chat/completions",
            json={"model": "tiny", "messages": [message], "max_tokens": 1},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        credited = re.findall(r"credited_prefix_tokens=(\d+)", self.log())
        return answer.json()["choices"][0]["message"]["content"], int(credited[-1])

    def hits(self) -> float:
        found = re.search(
            r'^vllm_router_kv_placement_lookups_total\{result="hit"\} (\d+)',
            httpx.get(self._metrics, timeout=10).text,
            re.MULTILINE,
        )
        return float(found[1]) if found is not None else 0.0

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prompt(seed: int, blocks: int) -> list[int]:
    return [300 + (seed * 7919 + at * 31) % 700 for at in range(blocks * BLOCK)]


def test_vllm_router_credits_the_right_prefix_to_the_right_node_and_heals_a_gap(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    path = tiny_model("llama")
    with node(tmp_path, "node-0", path) as first, node(tmp_path, "node-1", path) as second:
        router = Router(tmp_path, [first, second])
        try:
            mine, theirs, missed = prompt(1, 4), prompt(2, 3), prompt(3, 5)

            def settled(on: Node, tokens: list[int]) -> None:
                """Prefill there, and again something else until the router has heard of it."""
                on.prefill(tokens)
                expected = (on.name, len(tokens))
                router.until(lambda: router.place([*tokens, 5, 6]) == expected, f"{expected}")

            # A SUB that joins late sees nothing of what was before: the first batch it gets shows the gap.
            settled(first, mine)
            settled(second, theirs)
            assert router.place(mine[: 2 * BLOCK] + [9] * BLOCK) == ("node-0", 2 * BLOCK)
            assert router.place(prompt(9, 4))[1] == 0
            assert router.hits() >= 3

            first.relay.losing = True
            first.prefill(missed)
            router.until(lambda: bool(first.relay.lost), "a batch was lost")
            assert router.place([*missed, 5]) != ("node-0", len(missed))
            first.relay.losing = False
            settled(first, prompt(4, 2))
            assert router.place([*missed, 5, 6]) == ("node-0", len(missed))
            assert "decode batch" not in router.log()  # it refused nothing that we sent
        finally:
            router.close()


def test_i12_quiet_a_daemon_refuses_to_export_where_others_could_listen(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvgrove_daemon", "--member", "n", "--plain-links", "--control", "tcp://127.0.0.1:1",
         "--listen", "tcp://127.0.0.1:0", "--state-dir", str(tmp_path), "--kv-events", "tcp://0.0.0.0:5557"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--kv-events tcp://0.0.0.0:5557" in done.stderr
    assert "--kv-events-key" in done.stderr


def test_i12_quiet_without_opting_in_the_stream_says_nothing_but_that_it_begins(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    with node(tmp_path, "node-0", tiny_model("llama")) as only:
        silent = msgspec.structs.replace(NAMESPACE, events_export=False)
        only.rig.issue([only.model], [silent])
        only.prefill(prompt(1, 3))
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        asker = context.socket(zmq.DEALER)
        asker.connect(only.replay)
        asker.send_multipart([b"", bytes(8)])
        kinds: list[str] = []
        while True:
            assert asker.poll(20_000)
            frames = asker.recv_multipart()
            if frames[2] == b"\xff" * 8:
                break
            kinds += [event["type"] for event in msgspec.msgpack.decode(frames[3])[1]]
        context.destroy(0)
        assert set(kinds) == {"AllBlocksCleared"}
