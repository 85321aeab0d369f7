"""What every test may use: models made or prepared on first use, and kept for later runs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

# Before anything imports torch: where tests run beside each other, threads that spin while they wait for one without a
# core make every forward many times slower. Inherited by the daemons that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# importlib mode puts no test folder on sys.path; the helpers are one folder of plain modules.
sys.path.insert(0, str(Path(__file__).parent / "support"))


PROCESSES = ("e2e", "kube", "chart")
"""Folders whose tests start real processes and wait for them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for real processes may fail for a machine that had no time for them: it is run once more.

    The closing lines name and count such runs, and a test that fails twice has failed. Whatever computes in this
    process alone gets no second run.
    """
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=5))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """One that is marked ``alone`` waits for the tests of other workers, and they for it; no time-out counts that."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    from taking_turns import turn

    folder = Path(tempfile.gettempdir()) / f"kvgrove-turns-{run}"
    folder.mkdir(exist_ok=True)
    with turn(folder, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """``tiny_model("llama")``: the directory of a tiny random model of that family (see ``support/tiny_models.py``)."""
    from tiny_models import cached_tiny_model

    return cached_tiny_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The directory of SmolLM2-135M-Instruct in fp32."""
    from kvgrove_cli.smollm2 import default_cache, prepare

    return prepare(default_cache(), lambda _stage, _fraction: None)
