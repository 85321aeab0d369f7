"""I3 with a gateway that the planner cannot reach: once an invalidation is complete, nobody is given older text.

The second gateway dials through a proxy. It goes on serving callers while its link is cut, which is the dangerous case:
it cannot know that a document changed, only that its lease has ended.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fleets import NAMESPACE, STEP_SECONDS, RunningFleet, running_fleet, write_manifests
from tcp_proxy import TcpProxy

from kvgrove_cli.status import FleetStatus

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LEASE = "6s"


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[RunningFleet]:
    with running_fleet(tmp_path_factory.mktemp("cut"), model, nodes=1, gateways=2, lease=LEASE) as running:
        yield running


@pytest.fixture
def proxy(running: RunningFleet) -> Iterator[TcpProxy]:
    host, port = running.fleet.control_address.removeprefix("tcp://").split(":")
    proxy = TcpProxy((host, int(port)))
    yield proxy
    proxy.close()


@pytest.fixture
def remote(running: RunningFleet, proxy: TcpProxy, tmp_path: Path) -> Iterator[str]:
    """Base URL of a third gateway, whose control link goes through the proxy."""
    address_file = tmp_path / "address"
    command = [sys.executable, "-m", "kvgrove_gateway", "--member", "gateway-remote"]
    command += ["--control", f"tcp://127.0.0.1:{proxy.port}", "--listen", "127.0.0.1:0"]
    command += ["--link-keys", str(running.fleet.options.state_dir / "link-keys" / "gateway")]
    command += ["--keys", str(running.manifests.parent / "keys.yaml"), "--address-file", str(address_file)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: address_file.exists() and address_file.read_text() != "")
            url = f"{address_file.read_text().strip()}/v1"
            wait_until(lambda: running.post(url).status_code == 200)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STEP_SECONDS)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {STEP_SECONDS} s"
        time.sleep(0.05)


def change_document(running: RunningFleet, model: Path, version: str) -> FleetStatus:
    """Write another version; the status once its invalidation is complete."""
    before = running.fleet.status().namespace(NAMESPACE).fence
    write_manifests(running.manifests, model, version=version, lease=LEASE)
    running.do(running.fleet.apply())

    def complete(current: FleetStatus) -> bool:
        namespace = current.namespace(NAMESPACE)
        return namespace.fence != before and namespace.invalidation_complete

    return running.do(running.fleet.wait_for(complete, STEP_SECONDS))


def prompt_tokens(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens"])


def test_i3_a_gateway_without_a_link_refuses_documents_and_answers_the_rest_cold(
    running: RunningFleet, model: Path, proxy: TcpProxy, remote: str
) -> None:
    old = prompt_tokens(running.post(remote))
    private = {
        "kvgrove": {},
        "question": "How long is the way to the shop, and is there a place to lock my bicycle? " * 4,
    }
    running.post(remote, **private)
    assert running.post(remote, **private).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    proxy.cut()
    current = change_document(running, model, "v2")
    counts = current.namespace(NAMESPACE).invalidation
    assert (counts.expired, counts.pending) == (1, 0)
    assert counts.confirmed == 3

    refused = running.post(remote)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "freshness_lease_expired"
    cold = running.post(remote, **private).json()
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert cold["kvgrove"]["missed"].get("control_plane_lost", 0) > 0
    connected = [prompt_tokens(running.post(url)) for url in running.fleet.base_urls]
    assert old not in connected

    proxy.mend()
    wait_until(lambda: running.post(remote).status_code == 200)
    assert prompt_tokens(running.post(remote)) == connected[0]
    change_document(running, model, "v1")


def test_i3_a_stopped_gateway_holds_an_invalidation_up_no_longer_than_its_lease(
    running: RunningFleet, model: Path
) -> None:
    stopped = running.fleet.base_urls[1]
    old = prompt_tokens(running.post(stopped))
    running.do_now(running.fleet.child("gateway-1").signal, signal.SIGSTOP)
    try:
        counts = change_document(running, model, "v2").namespace(NAMESPACE).invalidation
        assert (counts.expired, counts.pending) == (1, 0)
    finally:
        running.do_now(running.fleet.child("gateway-1").signal, signal.SIGCONT)
    seen = {answer.status_code: answer for answer in (running.post(stopped) for _ in range(5))}
    assert set(seen) <= {200, 503}
    assert 200 not in seen or prompt_tokens(seen[200]) != old
    wait_until(lambda: running.post(stopped).status_code == 200)
    assert prompt_tokens(running.post(stopped)) != old
    change_document(running, model, "v1")
