"""The command lines of a fleet's members: what the embedded mode starts for each node and gateway."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.processes import ChildSpec
from kvgrove_cli.state_dir import StateDir
from kvgrove_protocol.control import DAEMON, GATEWAY

GATEWAY_DRAIN_SECONDS = 10


@dataclass(frozen=True)
class FleetShape:
    """How many members, and where. Raises UsageProblem for a shape that cannot be."""

    nodes: int = 1
    gateways: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    """Of the first gateway; the others take the ports after it. 0: any free ones."""
    threads_per_node: int | None = None
    """None: the processors that this process may use, divided among the nodes."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UsageProblem("--nodes: at least 1 is needed", field="nodes")
        if self.gateways < 1:
            raise UsageProblem("--gateways: at least 1 is needed", field="gateways")
        if self.threads_per_node is not None and self.threads_per_node < 1:
            raise UsageProblem("--threads-per-node: at least 1 is needed", field="threads_per_node")
        if self.port + self.gateways - 1 > 65_535:
            raise UsageProblem(f"--listen: {self.gateways} ports from {self.port} on are needed", field="listen")

    @property
    def threads(self) -> int:
        return self.threads_per_node or max(1, len(os.sched_getaffinity(0)) // self.nodes)


@dataclass(frozen=True)
class Member:
    name: str
    role: str
    spec: ChildSpec
    address_file: Path | None = None
    """Where a gateway writes its base address."""


def members_of(shape: FleetShape, state_dir: StateDir, *, control: str, keys: Path) -> Iterator[Member]:
    """The members of ``shape``; daemons first. ``control``: the planner's address."""
    for number in range(shape.nodes):
        name = f"node-{number}"
        yield Member(
            name,
            DAEMON,
            ChildSpec(
                name,
                [
                    *_module("kvgrove_daemon", name, control),
                    *("--listen", "tcp://127.0.0.1:0"),
                    *("--state-dir", str(state_dir.member_dir(name))),
                    *("--threads", str(shape.threads)),
                    *("--device", shape.device),
                ],
                state_dir.log_file(name),
                {"HF_HUB_OFFLINE": "1"},  # a fleet fetches nothing on its own
            ),
        )
    for number in range(shape.gateways):
        name = f"gateway-{number}"
        address_file = state_dir.member_dir(name) / "address"
        address_file.unlink(missing_ok=True)
        port = shape.port + number if shape.port else 0
        yield Member(
            name,
            GATEWAY,
            ChildSpec(
                name,
                [
                    *_module("kvgrove_gateway", name, control),
                    *("--listen", f"{_bracketed(shape.host)}:{port}"),
                    *("--keys", str(keys)),
                    *("--address-file", str(address_file)),
                    *("--drain", str(GATEWAY_DRAIN_SECONDS)),
                ],
                state_dir.log_file(name),
            ),
            address_file,
        )


def _module(module: str, name: str, control: str) -> list[str]:
    return [sys.executable, "-m", module, "--member", name, "--control", control]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
