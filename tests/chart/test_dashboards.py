"""Dashboards: every query parses and asks for what is shown, every panel says what it is about, nothing overlaps."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from chart_rig import DASHBOARDS, Chart, dashboards, queries, records
from document_commands import unparsed
from known_metrics import known, problems_of

from kvgrove_operator.alerts import THRESHOLDS

BUILT_IN = {"__rate_interval": "5m"}


def variables(dashboard: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in dashboard["templating"]["list"]}


def filled(query: str) -> str:
    return re.sub(r"\$(\w+)", lambda found: BUILT_IN.get(found[1], "x"), query)


def test_there_is_one_for_the_fleet_a_namespace_a_node_and_a_rollout() -> None:
    assert set(dashboards()) == {"fleet", "namespace", "node", "rollout"}
    assert len({each["uid"] for each in dashboards().values()}) == 4


@pytest.mark.parametrize("name", dashboards())
def test_every_query_parses_and_asks_for_what_is_shown(name: str, promtool: Path, tmp_path: Path) -> None:
    dashboard = dashboards()[name]
    found = [query for _, query in queries(dashboard)]
    assert found
    assert not unparsed([filled(query) for query in found], promtool, tmp_path)
    assert not [problem for query in found for problem in problems_of(query)]
    recorded = {each for query in found for each in re.findall(r"\b(?:[a-z_]+:)?kvgrove[a-z_]*:[a-z0-9_:]+", query)}
    assert recorded <= {*records(), *THRESHOLDS}


@pytest.mark.parametrize("name", dashboards())
def test_every_variable_is_used_and_takes_its_values_from_a_series(name: str) -> None:
    dashboard = dashboards()[name]
    used = {each for _, query in queries(dashboard) for each in re.findall(r"\$(\w+)", query)} - set(BUILT_IN)
    defined = variables(dashboard)
    assert used == set(defined) - {"datasource"}
    for variable in used:
        series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", defined[variable]["definition"]).groups()  # type: ignore[union-attr]
        assert series in known()
        assert label == variable
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.parametrize("name", dashboards())
def test_every_panel_says_what_it_shows_in_which_unit_and_has_a_place_of_its_own(name: str) -> None:
    panels = dashboards()[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert all(target["legendFormat"] for target in panel["targets"])
    taken = [
        {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        for at in (panel["gridPos"] for panel in panels)
    ]
    assert not [pair for pair in itertools.combinations(taken, 2) if pair[0] & pair[1]]
    assert all(x < 24 for places in taken for x, _ in places)


def test_they_come_as_config_maps_that_grafanas_sidecar_finds(chart: Chart) -> None:
    found = chart.template("production").of("ConfigMap")
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in found)
    texts = {name: text for each in found for name, text in each["data"].items()}
    assert {name: json.loads(text) for name, text in texts.items()} == {
        f"kvgrove-{path.name}": json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")
    }
