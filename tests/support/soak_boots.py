"""The lives of the one node that is soaked: processes one after the other over the same directories, and their planner.

Role: start, kill and end the process, keep its plan what the world wants, and ask it through its window. Must not know:
requests, what is asked for and why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
from node_rig import Rig
from soak_world import World

from kvgrove_protocol.control import ModelPlan, NodePlan, Revision

BLOCK_BYTES = 24_576
"""Of the tiny model's KV."""
POOL_SLOTS, DISK_BYTES = 96, 8 << 20
PATIENCE_S = 60.0


class Boots:
    """See the module. ``meanwhile``: what is to be done while an answer is waited for."""

    def __init__(self, model: Path, root: Path, world: World, meanwhile: Callable[[], None]) -> None:
        self.member = f"soak-{os.getpid()}"
        self._root, self._world, self._meanwhile = root, world, meanwhile
        pool = {"host": POOL_SLOTS * BLOCK_BYTES, "disk": DISK_BYTES}
        self._model = ModelPlan(name="tiny", path=str(model), pool_bytes=pool)
        self._revision = 0
        self._context = zmq.Context()
        self._window: zmq.Socket[bytes] | None = None
        self._rig: Rig | None = None

    @property
    def rig(self) -> Rig:
        assert self._rig is not None
        return self._rig

    @property
    def pid(self) -> int:
        return self.rig.process.pid

    @property
    def generation(self) -> bytes:
        return self._model.generation

    @property
    def address(self) -> str:
        """Where gateways reach it."""
        assert self.rig.hello is not None
        return self.rig.hello.address

    def start(self) -> None:
        """Another boot, ready to serve."""
        os.environ["SOAK_WINDOW"] = f"ipc://{self._root}/window"
        program = [str(Path(__file__).with_name("soak_node.py"))]
        self._rig = Rig(self._root, self.member, "--cache-dir", str(self._root / "tiers"), program=program)
        self.rig.plan = self._plan()
        if not self._model.generation:
            self._model = self.rig.name_generation(self._model)
        self.issue()
        self.rig.until(self._is_ready)
        self._window = self._context.socket(zmq.REQ)
        self._window.setsockopt(zmq.LINGER, 0)
        self._window.connect(os.environ["SOAK_WINDOW"])

    def _is_ready(self) -> bool:
        report = self.rig.report
        return report is not None and bool(report.models) and report.models[0].state == "ready"

    def _plan(self) -> NodePlan:
        self._revision += 1
        return NodePlan(
            revision=Revision(1, self._revision),
            models=[self._model],
            namespaces=self._world.plans,
            erase_uids=list(self._world.erase_uids),
        )

    def issue(self) -> None:
        """Send what the world wants now; whoever asks meanwhile meets a node that has not heard yet."""
        self.rig.plan = self._plan()
        if self.rig.hello is not None:
            self.rig.tell(self.rig.plan)

    def play(self, seconds: float) -> None:
        """Be the planner for a moment."""
        if self.rig.process.poll() is not None:
            raise AssertionError(f"the daemon ended by itself with {self.rig.process.returncode}")
        self.rig.play(seconds)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask through the window: see `soak_node`."""
        assert self._window is not None
        self._window.send(msgspec.json.encode(question))
        deadline = time.monotonic() + PATIENCE_S
        while not self._window.poll(5):
            self._meanwhile()
            if time.monotonic() > deadline:
                raise AssertionError("the core thread does not turn any more")
        answer: dict[str, Any] = msgspec.json.decode(self._window.recv())
        return answer

    def kill(self) -> None:
        """SIGKILL, whatever it was doing."""
        self.rig.process.kill()
        self.rig.process.wait()
        self.stop()

    def stop(self) -> int:
        """SIGTERM where it is still alive, and the exit status."""
        if self._window is not None:
            self._window.close(0)
        return self.rig.stop()

    def close(self) -> None:
        """Leave no process behind."""
        if self._rig is not None and self._rig.process.poll() is None:
            self.kill()
        self._context.term()
