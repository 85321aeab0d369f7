"""The chart's rules and dashboards over a real fleet under load: who is told what, that it ends, and what is shown.

Three collapses are caused for real: a ModelVersion with another chat template takes a namespace over, tenants of
another namespace flood the pool, and an application begins to tell the model the time first. A minute of the rules is a
second here (`prometheus_rig`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alert_load import at_a_clock
from alert_world import CLOCK, FLOODED, NODE, TEMPLATE, WELL, World, watched_fleet
from chart_rig import dashboards, queries, rule_files
from chart_tools import ToolProblem
from controlplane.plane import Plane
from prometheus_rig import Watch, quickened

from kvgrove_protocol.reasons import MissReason

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

Alert = tuple[str, str, str]
"""Name, namespace or node, cause."""

WAIT_SECONDS = 150
FLOODS_PER_SECOND = 4.0
"""Requests of each tenant that floods."""


def collapse(namespace: str, cause: MissReason) -> Alert:
    return ("KvgroveHitRatioCollapse", namespace, cause.value)


FLOODED_OUT = collapse(FLOODED, MissReason.EVICTED)
CLOCK_TOLD = collapse(CLOCK, MissReason.NEW)
TEMPLATE_CHANGED = collapse(TEMPLATE, MissReason.GENERATION_CHANGED)

FILLED = {"namespace": TEMPLATE, "node": NODE, "__rate_interval": "5s"}
"""Variables of dashboards, and what Grafana takes for a rate's range."""
_RESTORED = 'sum by (le) (rate(kvgrove_node_restore_seconds_bucket{node="node-a"}[5s]))'
_COMPUTED = "a model this small computes quicker than a disk loads, so that nothing is restored"
EMPTY = {
    ("node", "Restore", f"histogram_quantile(0.5, {_RESTORED})"): _COMPUTED,
    ("node", "Restore", f"histogram_quantile(0.95, {_RESTORED})"): _COMPUTED,
    ("node", "Suspended", 'max by (tier, reason) (kvgrove_tier_suspended{node="node-a"})'): "the disk is well",
}
"""Queries of (dashboard, panel), as filled, that show nothing here, and why. All others return numbers."""


def test_every_time_of_the_rules_is_quickened_by_one_factor_and_nothing_else_of_them_changes() -> None:
    duration = r"(?<![a-z\d])\d+[dhm]\b|\b600\b"
    for path in rule_files():
        before, after = (without_comments(text) for text in (path.read_text(), quickened(path.read_text())))
        assert not re.findall(duration, after)
        for rest in re.split(duration, before):
            assert rest in after
    assert quickened("rate(x[15m] offset 30m)\nfor: 10m\n[1d]") == "rate(x[15s] offset 30s)\nfor: 10s\n[1440s]"


def without_comments(text: str) -> str:
    return re.sub(r"(?m)^\s*#.*$|annotations:(\n {6}.*)*", "", text)


def test_each_collapse_reaches_alertmanager_with_its_cause_and_no_other_does_and_recovery_resolves_it(
    own_control_plane: Plane, tmp_path: Path
) -> None:
    try:
        with watched_fleet(own_control_plane, tmp_path) as world:
            _tell(world)
    except ToolProblem as problem:
        pytest.skip(f"no Prometheus: {problem}")


def _tell(world: World) -> None:
    watch, clock = world.watch, world.callers[CLOCK]
    usual = clock.bodies
    _until(watch, set(), lambda _: {TEMPLATE, CLOCK, FLOODED, WELL} <= _known(watch), "what is usual")

    # when tenants of another namespace flood the pool
    world.flood(FLOODS_PER_SECOND)
    _until(watch, {FLOODED_OUT}, lambda firing: FLOODED_OUT in firing, "evicted")

    # when a clock enters the system prompt of one namespace, and another chat template takes another one over
    clock.bodies = at_a_clock(usual)
    world.move_to(TEMPLATE, "tiny-next")
    expected = {FLOODED_OUT, CLOCK_TOLD, TEMPLATE_CHANGED}
    _until(watch, expected, lambda firing: firing == expected, "all three")
    assert "clock" in {labels["kind"] for labels, count in watch.query(_FINDINGS) if count}
    _look_at_dashboards(watch)

    # when the flood ends, the clock is taken out, and all conversations have met the new template
    world.flood(0)
    clock.bodies = usual
    _until(watch, expected, lambda firing: not firing, "the end of all")
    assert all(set(caller.answers) <= caller.expected for caller in world.callers.values())


_FINDINGS = f'sum by (kind) (kvgrove_lint_findings_total{{namespace="{CLOCK}"}})'


def _known(watch: Watch) -> set[str]:
    """Namespaces of which it is known what is usual."""
    return {labels["namespace"] for labels, _ in watch.query("namespace:kvgrove_hit_ratio:avg1d")}


def _until(watch: Watch, allowed: set[Alert], reached: Callable[[set[Alert]], bool], what: str) -> None:
    """Waits; on the way Alertmanager is told of nothing that is not ``allowed``."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not reached(firing := watch.firing()):
        assert firing <= allowed, f"on the way to {what}: {firing - allowed}\n{_figures(watch)}"
        assert time.monotonic() < deadline, f"never came: {what}; there is {firing}\n{_figures(watch)}"
        time.sleep(0.5)
    assert firing <= allowed


def _figures(watch: Watch) -> str:
    shown = (
        "namespace:kvgrove_hit_ratio:ratio_rate15m",
        "namespace:kvgrove_hit_ratio:avg1d",
        "namespace_reason:kvgrove_miss_share:gain",
        "node:kvgrove_evictions:rate5m",
        "ALERTS",
    )
    return "\n".join(f"{labels} {value:.3f}" for each in shown for labels, value in watch.query(each) if value)


# -- dashboards --------------------------------------------------------------------------------------------------------


def _look_at_dashboards(watch: Watch) -> None:
    """While all three alerts fire, every query of every panel returns numbers."""
    for dashboard in dashboards().values():
        for series, label in _variables(dashboard):
            assert FILLED[label] in watch.label_values(series, label)
    asked = {
        (name, title, re.sub(r"\$(\w+)", lambda found: FILLED[found[1]], query))
        for name, dashboard in dashboards().items()
        for title, query in queries(dashboard)
    }
    empty = {each for each in asked if not any(math.isfinite(value) for _, value in watch.query(each[2]))}
    assert empty == set(EMPTY), f"empty and not listed: {empty - set(EMPTY)}; not empty: {set(EMPTY) - empty}"


def _variables(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(series, label) that a variable takes its values from."""
    for each in dashboard["templating"]["list"]:
        if each["name"] != "datasource":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["definition"])
            assert found is not None
            yield found[1], found[2]
