"""Probes of a container: one attempt (exec, HTTP, TCP), and the counting that turns attempts into a verdict."""

from __future__ import annotations

import http.client
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(slots=True)
class ProbeCount:
    """Attempts so far. ``verdict`` is None until one threshold is reached, then the last one that was."""

    period: float
    initial_delay: float
    success_threshold: int
    failure_threshold: int
    due: float = 0.0
    successes: int = 0
    failures: int = 0
    verdict: bool | None = None

    @classmethod
    def of(cls, probe: Json, now: float) -> ProbeCount:
        """With Kubernetes' defaults, for a container that started ``now``."""
        delay = float(probe.get("initialDelaySeconds", 0))
        period, failures = float(probe.get("periodSeconds", 10)), int(probe.get("failureThreshold", 3))
        return cls(period, delay, int(probe.get("successThreshold", 1)), failures, due=now + delay)

    def observe(self, success: bool, now: float) -> None:
        """Records an attempt. Only as many in a row as the threshold wants change the verdict."""
        self.due = now + self.period
        self.successes = self.successes + 1 if success else 0
        self.failures = 0 if success else self.failures + 1
        if self.successes >= self.success_threshold:
            self.verdict = True
        elif self.failures >= self.failure_threshold:
            self.verdict = False


def attempt(
    probe: Json, *, address: str, ports: Mapping[str, int], rewrite: Callable[[str], str], environment: dict[str, str]
) -> bool:
    """One try, at most timeoutSeconds long. ``address``: where it listens unless the probe says otherwise."""
    seconds = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        return _exec([rewrite(part) for part in probe["exec"]["command"]], environment, seconds)
    if "httpGet" in probe:
        wanted = probe["httpGet"]
        return _http(wanted.get("host") or address, _port(wanted["port"], ports), wanted, seconds)
    wanted = probe["tcpSocket"]
    try:
        with socket.create_connection((wanted.get("host") or address, _port(wanted["port"], ports)), seconds):
            return True
    except OSError:
        return False


def _port(port: int | str, ports: Mapping[str, int]) -> int:
    return port if isinstance(port, int) else ports.get(port) or int(port)


def _exec(command: Sequence[str], environment: dict[str, str], seconds: float) -> bool:
    try:
        done = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _http(host: str, port: int, wanted: Json, seconds: float) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    headers = {header["name"]: header["value"] for header in wanted.get("httpHeaders", [])}
    try:
        connection.request("GET", wanted.get("path", "/"), headers=headers)
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
