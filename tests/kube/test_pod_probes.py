"""Probes of the test nodes: what one attempt finds, and how many it takes to change a verdict."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods.container import Container, Launch
from pods.environment import expand
from pods.probes import ProbeCount, attempt


def try_once(probe: dict[str, object], address: str = "127.0.0.1", **ports: int) -> bool:
    return attempt(probe, address=address, ports=ports, rewrite=str, environment=dict(os.environ))


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_verdict_changes_after_as_many_in_a_row_as_its_threshold_wants() -> None:
    count = ProbeCount.of({"periodSeconds": 5, "failureThreshold": 2, "successThreshold": 2}, now=100.0)
    verdicts = []
    for success in (True, True, False, True, False, False, True, True):
        count.observe(success, now=200.0)
        verdicts.append(count.verdict)
    assert verdicts == [None, True, True, True, True, False, False, True]
    assert count.due == 205.0


def test_the_first_attempt_waits_for_the_initial_delay() -> None:
    assert ProbeCount.of({"initialDelaySeconds": 7}, now=100.0).due == 107.0


def test_exec_is_judged_by_its_exit_status_and_its_time() -> None:
    assert try_once({"exec": {"command": ["true"]}})
    assert not try_once({"exec": {"command": ["false"]}})
    assert not try_once({"exec": {"command": ["no-such-program"]}})
    assert not try_once({"exec": {"command": ["sleep", "60"]}, "timeoutSeconds": 1})


def test_tcp_wants_a_listener_and_knows_ports_by_name(listening: int) -> None:
    assert try_once({"tcpSocket": {"port": listening}})
    assert try_once({"tcpSocket": {"port": "main"}}, main=listening)
    assert not try_once({"tcpSocket": {"port": listening}}, address="127.0.0.2")


def test_http_wants_an_answer_that_is_no_error(listening: int) -> None:
    assert not try_once({"httpGet": {"port": listening}}), "it listens and never answers"


def test_references_are_expanded_and_unknown_ones_left() -> None:
    assert expand("$(A)/$$(A)/$(B)", {"A": "1"}) == "1/$(A)/$(B)"


def container(tmp_path: Path, probes: dict[str, object], command: list[str]) -> Container:
    made = Container({"name": "main", **probes}, "Always")
    made.launch = Launch(command, dict(os.environ), tmp_path, tmp_path / "log", "127.0.0.1", str)
    return made


def test_a_container_is_not_started_before_its_startup_probe_says_so(tmp_path: Path) -> None:
    probe = {"exec": {"command": ["test", "-e", str(tmp_path / "up")]}, "periodSeconds": 1, "failureThreshold": 1000}
    made = container(tmp_path, {"startupProbe": probe}, ["sleep", "600"])
    try:
        made.tick(0.0)
        made.tick(1.0)
        assert (made.status()["started"], made.is_ready) == (False, False)
        (tmp_path / "up").touch()
        made.tick(float(2**40))
        assert (made.status()["started"], made.is_ready) == (True, True)
    finally:
        stop(made)


def test_a_failing_liveness_probe_kills_and_the_back_off_doubles(tmp_path: Path) -> None:
    probe = {"exec": {"command": ["false"]}, "failureThreshold": 1}
    made = container(tmp_path, {"livenessProbe": probe}, [sys.executable, "-c", "import time; time.sleep(600)"])
    moment, waits = 0.0, []
    try:
        for _ in range(6):
            made.tick(moment)  # starts
            made.tick(moment)  # probes, and kills
            while not made.has_ended(moment):
                pass
            reason, message = made.waiting or ("", "")
            assert reason == "CrashLoopBackOff"
            waits.append(float(message.rsplit(" ", 2)[-2]))
            made.tick(moment)
            assert made.pid is None, "not before the back-off is over"
            moment += waits[-1]
        assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
        assert made.restart_count == 5
    finally:
        stop(made)


def stop(made: Container) -> None:
    made.signal(signal.SIGKILL)
    while not made.has_ended(0.0):
        pass
