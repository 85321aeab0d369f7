"""Values: all documented, all known to the schema, and the bad ones refused with their path."""

from __future__ import annotations

from typing import Any

import chart_values
import pytest
from chart_rig import Chart, value_sets, values_file


@pytest.mark.parametrize("name", value_sets())
def test_the_chart_lints_over_every_value_set(chart: Chart, name: str) -> None:
    done = chart.run("lint", "--strict", str(values_file(name).parents[1]), "--values", str(values_file(name)))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"gatway": {}}, "gatway"),
        ({"gateway__replica": 3}, "/gateway"),
        ({"gateway__replicas": "three"}, "/gateway/replicas"),
        ({"gateway__logLevel": "LOUD"}, "/gateway/logLevel"),
        ({"gateway__keysSecret": "Keys"}, "/gateway/keysSecret"),
        ({"gateway__podDisruptionBudget__maxUnavailable": "some"}, "/gateway/podDisruptionBudget/maxUnavailable"),
        ({"gateway__resources": {"request": {}}}, "/gateway/resources"),
        ({"operator__replicas": 3}, "/operator/replicas"),
        ({"operator__image__digest": "sha256:1"}, "/operator/image/digest"),
        ({"operator__lease__durationSeconds": 1.5}, "/operator/lease/durationSeconds"),
        ({"daemon__modelRoot": "models"}, "/daemon/modelRoot"),
        ({"daemon__rights__user": "root"}, "/daemon/rights/user"),
        ({"daemon__rights__privileged": True}, "/daemon/rights"),
        ({"daemon__metricsPort": 70_000}, "/daemon/metricsPort"),
        ({"watchNamespaces": ["Team"]}, "/watchNamespaces/0"),
        ({"networkPolicy__clients": [{"pods": {}}]}, "/networkPolicy/clients/0"),
        ({"monitoring__rules__runbookBase": "runbooks"}, "/monitoring/rules/runbookBase"),
        ({"crds__install": "yes"}, "/crds/install"),
    ],
)
def test_a_bad_value_is_refused_with_its_path(chart: Chart, values: dict[str, Any], path: str) -> None:
    assert path in chart.refuses(**values)


def test_every_value_has_a_comment() -> None:
    documented = {path for path, _, _ in chart_values.documented()}
    assert chart_values.leaves() == documented


def test_the_table_of_the_readme_is_current() -> None:
    text = chart_values.README.read_text()
    assert text == chart_values.current(text), "run: python tests/support/chart_values.py"
