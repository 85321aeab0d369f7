"""The command lines of a fleet's members: what the embedded mode starts for each node and gateway."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.processes import ChildSpec
from kvgrove_cli.state_dir import StateDir
from kvgrove_protocol.control import DAEMON, GATEWAY

GATEWAY_DRAIN_SECONDS = 10
DAEMON_DRAIN_SECONDS = 8
_LONGEST_SOCKET_PATH = 107
"""Bytes: what the kernel takes as the name of a Unix socket."""


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
    kv_events: bool = False
    """Each node has sockets for KV events in its directory; namespaces opt in for themselves."""
    plain_links: bool = False
    """Links without keys, as they may be on one machine."""
    explain_routes: bool = False
    reasons: str = "always"
    """Whom gateways tell why tokens were computed: ``always``, ``asked`` or ``never``."""
    """Gateways tell keys marked ``explain`` how their requests were routed."""
    oidc: Path | None = None
    """Issuers whose tokens gateways take."""
    rate_limits: Path | None = None
    """Allowances of tenants."""
    audit: bool = False
    """Each gateway writes an audit log beside its log."""

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
class EventSockets:
    """Where a node's KV events are read (ZeroMQ endpoints)."""

    live: str
    replay: str

    @classmethod
    def below(cls, directory: Path) -> Self:
        """Raises UsageProblem where the paths are too long for sockets."""
        live, replay = directory / "kv-events", directory / "kv-events-replay"
        if len(os.fsencode(replay)) > _LONGEST_SOCKET_PATH:
            raise UsageProblem(
                f"--kv-events: {replay} is longer than the {_LONGEST_SOCKET_PATH} bytes that a socket's name may have: "
                "choose a shorter --state-dir",
                field="kv_events",
            )
        return cls(f"ipc://{live}", f"ipc://{replay}")


@dataclass(frozen=True)
class Member:
    name: str
    role: str
    spec: ChildSpec
    address_file: Path | None = None
    """Where a gateway writes its base address."""
    events: EventSockets | None = None
    """Of a node that exports KV events."""
    metrics_file: Path | None = None
    """Where a node writes the address of its metrics."""


def members_of(shape: FleetShape, state_dir: StateDir, *, control: str, keys: Path) -> Iterator[Member]:
    """The members of ``shape``; daemons first. ``control``: the planner's address. Raises UsageProblem."""

    def links(role: str) -> list[str]:
        return ["--plain-links"] if shape.plain_links else ["--link-keys", str(state_dir.link_keys / role)]

    for number in range(shape.nodes):
        name = f"node-{number}"
        events = EventSockets.below(state_dir.member_dir(name)) if shape.kv_events else None
        metrics_file = state_dir.member_dir(name) / "metrics"
        metrics_file.unlink(missing_ok=True)
        yield Member(
            name,
            DAEMON,
            ChildSpec(
                name,
                [
                    *_module("kvgrove_daemon", name, control),
                    *links(DAEMON),
                    *("--listen", "tcp://127.0.0.1:0"),
                    *("--state-dir", str(state_dir.member_dir(name))),
                    *("--threads", str(shape.threads)),
                    *("--device", shape.device),
                    *("--drain", str(DAEMON_DRAIN_SECONDS)),
                    *("--metrics", "127.0.0.1:0", "--metrics-address-file", str(metrics_file)),
                    *(("--kv-events", events.live, "--kv-events-replay", events.replay) if events is not None else ()),
                ],
                state_dir.log_file(name),
                {"HF_HUB_OFFLINE": "1"},  # a fleet fetches nothing on its own
            ),
            events=events,
            metrics_file=metrics_file,
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
                    *links(GATEWAY),
                    *("--listen", f"{_bracketed(shape.host)}:{port}"),
                    *("--keys", str(keys)),
                    *("--address-file", str(address_file)),
                    *("--drain", str(GATEWAY_DRAIN_SECONDS)),
                    *("--reasons", shape.reasons),
                    *(["--explain-routes"] if shape.explain_routes else []),
                    *(["--oidc", str(shape.oidc.absolute())] if shape.oidc is not None else []),
                    *(["--rate-limits", str(shape.rate_limits.absolute())] if shape.rate_limits is not None else []),
                    *(["--audit-log", str(state_dir.audit_file(name))] if shape.audit else []),
                ],
                state_dir.log_file(name),
            ),
            address_file,
        )


def _module(module: str, name: str, control: str) -> list[str]:
    return [sys.executable, "-m", module, "--member", name, "--control", control]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
