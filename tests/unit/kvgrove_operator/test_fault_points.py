"""A process dies at a named point, the Nth time, and only if it is told to."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvgrove_operator.fault_points import VARIABLE, FaultPoint, passing


def test_nothing_happens_unless_a_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passing(FaultPoint.STATE_SAVED)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    passing(FaultPoint.STATE_SAVED)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other"))
    (tmp_path / "other").write_text("plan-sent 1")
    passing(FaultPoint.STATE_SAVED)
    assert (tmp_path / "other").exists()


def test_it_dies_the_nth_time_and_once(tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    armed.write_text("state-saved 2")
    program = (
        "from kvgrove_operator.fault_points import FaultPoint, passing\n"
        "for n in range(3):\n    print(n, flush=True)\n    passing(FaultPoint.STATE_SAVED)\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), VARIABLE: str(armed)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"0\n1\n")
    assert not armed.exists()
