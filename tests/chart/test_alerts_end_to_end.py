"""The chart's rules in a real Prometheus, with a real Alertmanager behind it: who is told what, and that it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chart_rig import rule_files
from chart_tools import ToolProblem
from monitored_fleet import TIMES, Watched, quickened, watched_fleet

from kvgrove_protocol.reasons import MissReason

GOOD = (0.9, MissReason.PARTIAL_BLOCK)
CAUSES = {
    "shop/template": MissReason.GENERATION_CHANGED,  # a template changed
    "shop/flooded": MissReason.EVICTED,  # tenants flood the pools
    "shop/clock": MissReason.NEW,  # a clock entered the system prompt
}
WELL = "shop/well"
WAIT_SECONDS = 150


def wait_for(reached: Callable[[], bool], what: str, found: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"never came: {what}; there is {found()}"
        time.sleep(0.5)


def test_every_time_of_the_rules_is_quickened() -> None:
    for path in rule_files():
        quick = quickened(path.read_text())
        assert not [
            slow for slow in TIMES if f"[{slow}]" in quick or f"for: {slow}\n" in quick or f"offset {slow}" in quick
        ]


@pytest.mark.timeout(600)
def test_each_collapse_reaches_alertmanager_with_its_cause_and_no_other_does_and_recovery_resolves_it(
    tmp_path: Path,
) -> None:
    try:
        with watched_fleet(tmp_path, (*CAUSES, WELL)) as watched:
            _tell(watched)
    except ToolProblem as problem:
        pytest.skip(f"no Prometheus: {problem}")


def _tell(watched: Watched) -> None:
    everybody = dict.fromkeys((*CAUSES, WELL), GOOD)
    watched.load.shares = everybody
    time.sleep(45)  # what is usual has to be seen before something else can be told from it
    assert watched.firing() == set()
    watched.load.shares = everybody | {name: (0.1, cause) for name, cause in CAUSES.items()}
    expected = {("KvgroveHitRatioCollapse", name, cause.value) for name, cause in CAUSES.items()}
    wait_for(lambda: watched.firing() == expected, "each with its cause, and nothing else", watched.firing)
    watched.load.shares = everybody
    wait_for(lambda: not watched.firing(), "the end of all", watched.firing)
