"""The examples for Argo CD and Flux: they install this chart, with values that it takes, and know our conditions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_rig import CHART, NAMESPACE, ROOT, Chart

from kvgrove_crds.conditions import ConditionType
from kvgrove_crds.reasons import ConditionReason

GITOPS = ROOT / "docs" / "gitops"


def loaded(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((GITOPS / path).read_text()))


@pytest.mark.parametrize("path", ["argocd/application.yaml", "flux/helm-release.yaml"])
def test_the_chart_takes_the_values_of_an_example(chart: Chart, tmp_path: Path, path: str) -> None:
    spec = loaded(path)["spec"]
    if "source" in spec:
        folder, values = spec["source"]["path"], spec["source"]["helm"]["valuesObject"]
        assert spec["destination"]["namespace"] == NAMESPACE
    else:
        folder, values = spec["chart"]["spec"]["chart"], spec["values"]
        assert spec["targetNamespace"] == NAMESPACE
    assert ROOT / folder == CHART
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    rendered = chart.template("default", "--values", str(file))
    assert rendered.of("PrometheusRule")


def test_the_health_of_flux_speaks_of_conditions_and_reasons_that_there_are() -> None:
    expressions = [
        text
        for each in loaded("flux/kustomization.yaml")["spec"]["healthCheckExprs"]
        for name, text in each.items()
        if name in ("inProgress", "failed", "current")
    ]
    assert len(expressions) == 6
    said = {word for text in expressions for word in re.findall(r"'([A-Z]\w+)'", text)} - {"True", "False"}
    assert said <= {each.value for each in ConditionType} | {str(each.value) for each in ConditionReason}


def test_every_file_for_gitops_is_yaml() -> None:
    files = list(Path(GITOPS).rglob("*.yaml"))
    assert len(files) > 30
    for file in files:
        assert list(yaml.safe_load_all(file.read_text())), file
