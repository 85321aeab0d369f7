"""One program of a control plane as a process: started, watched until it says that it is ready, stopped by its own id.

Knows nothing of Kubernetes. Its output goes to a file, and what it said last stands in every error.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

GUARD = Path(__file__).with_name("guarded.py")
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.1


class PlaneProblem(Exception):
    """A program that did not start or did not get ready, with what it said last."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a program says that it is ready: an address, and a bearer token where it wants one."""

    url: str
    token: str = ""

    def answers(self) -> bool:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310 (our own address)
        try:
            with urllib.request.urlopen(request, timeout=5, context=_UNVERIFIED) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


# The programs make their own certificates on first start, so that there is nothing to verify them against before that.
_UNVERIFIED = ssl._create_unverified_context()  # noqa: S323


@dataclass(slots=True)
class Component:
    """One program. ``tied``: the kernel kills it when the process (or thread) that started it ends."""

    name: str
    command: Sequence[str]
    probe: Probe
    log: Path
    tied: bool = True
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        if self.process is None:
            raise PlaneProblem(f"{self.name} is not running: start it first")
        return self.process.pid

    def start(self) -> None:
        """Starts it anew; does not wait. Appends to its log."""
        guard = [sys.executable, str(GUARD), str(os.getpid())] if self.tied else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*guard, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C of the test run reaches us, and we stop the programs in order
            )

    def wait_ready(self, seconds: float) -> None:
        """Raises `PlaneProblem` if it ends first, or is not ready in time."""
        deadline = time.monotonic() + seconds
        while not self.probe.answers():
            if self.process is None or self.process.poll() is not None:
                raise PlaneProblem(f"{self.name} ended before it was ready: {self.last_words()}")
            if time.monotonic() > deadline:
                raise PlaneProblem(f"{self.name} was not ready in {seconds:.0f} s: {self.last_words()}")
            time.sleep(_POLL_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT make it deaf for a while; SIGKILL is an accident (see `stop` for the orderly way)."""
        os.kill(self.pid, number)
        if number is signal.SIGKILL and self.process is not None:
            self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL when it takes too long. Nothing happens where it does not run."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # a stopped one would not hear the other
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def last_words(self) -> str:
        """The end of its log, on one line."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-5:]) or "it said nothing"
