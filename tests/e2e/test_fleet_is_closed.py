"""What a stranger on the network finds of a running fleet: the documented ports, and nothing behind them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq
from fleets import RunningFleet, running_fleet

from kvgrove_link.gatekeeper import dial_with
from kvgrove_link.link_keys import OPERATOR, DirectoryKeys, HeldKeys, LinkKeys, fresh_pair
from kvgrove_protocol.control import DAEMON, GATEWAY, TO_PLANNER, Hello
from kvgrove_protocol.data import TO_NODE, ClientHello

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STAYS_SILENT_MS = 1_500


@pytest.fixture(scope="module")
def before() -> set[int]:
    """Ports that this process listens on for other reasons."""
    return listening(os.getpid())


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path], before: set[int]
) -> Iterator[RunningFleet]:
    del before  # was looked at first
    with running_fleet(tmp_path_factory.mktemp("closed"), tiny_model("llama"), nodes=1, gateways=1) as running:
        yield running


def listening(*pids: int) -> set[int]:
    return {
        each.laddr.port
        for each in psutil.net_connections("inet")
        if each.status == psutil.CONN_LISTEN and each.pid in pids
    }


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2].removesuffix("/v1"))


def data_port(running: RunningFleet) -> int:
    (status,) = [member for member in running.fleet.status().members if member.name == "node-0"]
    (port,) = listening(status.pid or 0) - {metrics_port(running)}
    return port


def metrics_port(running: RunningFleet) -> int:
    (status,) = [member for member in running.fleet.status().members if member.name == "node-0"]
    return port_of(status.metrics.removesuffix("/metrics"))


def test_a_running_fleet_listens_on_the_documented_ports_alone(running: RunningFleet, before: set[int]) -> None:
    families = {member.name: member.pid for member in running.fleet.status().members}
    found = {
        name: listening(*(each.pid for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]))
        for name, pid in families.items()
        if pid is not None
    }
    assert found["gateway-0"] == {port_of(running.fleet.base_url)}, "the API"
    assert found["node-0"] == {data_port(running), metrics_port(running)}, "the data link, and metrics"
    assert listening(os.getpid()) - before == {port_of(running.fleet.control_address)}, "the fleet link"


def intruders(folder: Path) -> dict[str, LinkKeys | None]:
    """Who knows every public key, and has the wrong secret."""
    true = DirectoryKeys(folder / GATEWAY, GATEWAY)
    publics = {role: true.public(role) for role in (OPERATOR, DAEMON, GATEWAY)}
    return {
        "no keys": None,
        "a stale key": HeldKeys(fresh_pair(), lambda: publics),
        "the wrong role": HeldKeys(DirectoryKeys(folder / OPERATOR, OPERATOR).own(), lambda: publics),
    }


@pytest.mark.parametrize("link", ["fleet", "data"])
@pytest.mark.parametrize("who", ["no keys", "a stale key", "the wrong role"])
def test_a_peer_without_the_right_key_gets_nothing(running: RunningFleet, link: str, who: str) -> None:
    keys = intruders(running.fleet.options.state_dir / "link-keys")[who]
    if link == "fleet":
        address, server = running.fleet.control_address, OPERATOR
        hello = TO_PLANNER.encode(Hello(member="node-0", role=DAEMON, boot="b" * 32))
    else:
        address, server = f"tcp://127.0.0.1:{data_port(running)}", DAEMON
        hello = TO_NODE.encode(ClientHello(member="gateway-0", boot="b" * 32))
    counted = sum(running.fleet.peers_refused.values())
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        if keys is not None:
            dial_with(peer, keys, server, 0)
        peer.connect(address)
        peer.send(hello)
        assert peer.poll(STAYS_SILENT_MS) == 0
    if link == "fleet":
        assert sum(running.fleet.peers_refused.values()) > counted


def test_the_right_key_is_answered(running: RunningFleet) -> None:
    """Or the tests above would prove nothing."""
    keys = DirectoryKeys(running.fleet.options.state_dir / "link-keys" / GATEWAY, GATEWAY)
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        dial_with(peer, keys, DAEMON, 0)
        peer.connect(f"tcp://127.0.0.1:{data_port(running)}")
        peer.send(TO_NODE.encode(ClientHello(member="gateway-9", boot="b" * 32)))
        assert peer.poll(20_000) == zmq.POLLIN


def test_rubbish_on_every_port_ends_nothing(running: RunningFleet) -> None:
    ports = [port_of(running.fleet.control_address), data_port(running), port_of(running.fleet.base_url)]
    for port in ports:
        for rubbish in (
            b"\x00" * 64,
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(4_096),
            b"\xff" + b"\x00" * 8 + b"\x01\x7f",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
                peer.sendall(rubbish)
    assert running.post(running.fleet.base_url).status_code == 200
