"""`kvgrove up` as a person runs it: started, asked by the line it prints, killed, started again, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from fleets import STARTUP_SECONDS, STEP_SECONDS, write_manifests

from kvgrove_cli.status import read

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@contextmanager
def up(root: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A fleet that says it is ready, and what it said."""
    command = [sys.executable, "-m", "kvgrove_cli", "up", "--manifests", str(root / "manifests")]
    command += ["--listen", "127.0.0.1:0", "--state-dir", str(root / "state"), "--threads-per-node", "1"]
    command += ["--kv-events"]
    output = root / "output"
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, text=True) as process:
        try:
            wait_until(lambda: "state: kvgrove status" in output.read_text() or process.poll() is not None)
            assert process.poll() is None, output.read_text()
            yield process, output.read_text()
        finally:
            process.kill()


def wait_until(reached: Callable[[], bool], seconds: float = STARTUP_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {seconds} s"
        time.sleep(0.05)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def ask(output: str) -> dict[str, object]:
    """Run the line that `kvgrove up` printed, in a shell, as it stands."""
    (line,) = [line.strip() for line in output.splitlines() if line.strip().startswith("curl ")]
    answer = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=True, timeout=STEP_SECONDS)
    body: dict[str, object] = json.loads(answer.stdout)
    return body


def exported(root: Path, output: str) -> list[dict[str, Any]]:
    """All events of the node, asked for at the endpoint that the fleet names, in print and in its status."""
    node = read(root / "state" / "status.json").member("node-0")
    assert f"{node.kv_events} (replay: {node.kv_events_replay})" in output
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(node.kv_events_replay)
        socket.send_multipart([b"", bytes(8)])
        events: list[dict[str, Any]] = []
        while True:
            assert socket.poll(int(STEP_SECONDS * 1000)), "no answer, or one without an end"
            _, _, number, payload = socket.recv_multipart()
            if number == b"\xff" * 8:
                return events
            events += msgspec.msgpack.decode(payload)[1]
    finally:
        context.destroy(0)


def member_pids(root: Path) -> list[int]:
    return [member.pid for member in read(root / "state" / "status.json").members if member.pid is not None]


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: names of Unix sockets are at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="kvgrove-up-") as folder:
        yield Path(folder)


def test_it_says_how_to_ask_survives_a_kill_and_ends_on_request(root: Path, tiny_model: Callable[[str], Path]) -> None:
    manifests = root / "manifests"
    write_manifests(manifests, tiny_model("llama"))
    declared = (manifests / "all.yaml").read_text()
    (manifests / "all.yaml").write_text(declared.replace("  prefixes:\n", "  events: {export: true}\n  prefixes:\n"))
    with up(root) as (process, output):
        secret = (root / "state" / "development-key").read_text()
        assert secret in output
        assert ask(output)["object"] == "chat.completion"
        assert {event["type"] for event in exported(root, output)} == {"AllBlocksCleared", "BlockStored"}
        pids = member_pids(root)
        assert len(pids) == 2
        process.kill()
        wait_until(lambda: all(is_gone(pid) for pid in pids), STEP_SECONDS)

    with up(root) as (process, output):
        assert secret not in output
        assert ask(output)["object"] == "chat.completion"
        assert read(root / "state" / "status.json").revision.startswith("2.")
        assert exported(root, output)  # over the sockets that the killed node has left behind
        pids = member_pids(root)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STEP_SECONDS) == 0
        assert all(is_gone(pid) for pid in pids)
