"""The chart as tests see it: rendered over values, and its rules, dashboards and documents as data."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "kvgrove"
RULES = CHART / "rules"
DASHBOARDS = CHART / "dashboards"
RUNBOOKS = ROOT / "docs" / "runbooks"
RELEASE, NAMESPACE = "kvgrove", "kvgrove-system"

Object = dict[str, Any]


def value_sets() -> list[str]:
    """Names of the value sets in ``ci/``."""
    return sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))


def values_file(name: str) -> Path:
    return CHART / "ci" / f"{name}-values.yaml"


@dataclass(frozen=True)
class Rendered:
    """What one release would apply."""

    text: str

    @cached_property
    def objects(self) -> list[Object]:
        return [each for each in yaml.safe_load_all(self.text) if each]

    def of(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str, namespace: str = "") -> Object:
        found = [
            each
            for each in self.of(kind)
            if each["metadata"]["name"] == name and (not namespace or each["metadata"].get("namespace") == namespace)
        ]
        assert len(found) == 1, f"{len(found)} objects {kind}/{name}"
        return found[0]

    def pod(self, name: str) -> Object:
        """The Pod template of a Deployment."""
        return dict(self.one("Deployment", name)["spec"]["template"])


@dataclass(frozen=True)
class Chart:
    helm: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.helm), *arguments], capture_output=True, text=True, check=False, timeout=60)

    def template(self, name: str = "default", *arguments: str, values: Mapping[str, Any] | None = None) -> Rendered:
        """Over a value set of ``ci/``, with ``values`` above it."""
        more = [f"--set-json={key}={json.dumps(value)}" for key, value in (values or {}).items()]
        return Rendered(_rendered(self, name, (*more, *arguments)))

    def refuses(self, **values: Any) -> str:
        """What it says to these values (``a__b`` is a.b), which it must not take."""
        more = [f"--set-json={key.replace('__', '.')}={json.dumps(value)}" for key, value in values.items()]
        done = self.run("template", RELEASE, str(CHART), *more)
        assert done.returncode != 0, f"taken: {values}"
        return done.stderr


@cache
def _rendered(chart: Chart, name: str, more: tuple[str, ...]) -> str:
    command = ["template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", str(values_file(name))]
    done = chart.run(*command, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rule_files() -> list[Path]:
    """All files of rules: one for each alert, and one of recording rules."""
    return sorted(RULES.glob("*.yaml"))


def rules_in(path: Path) -> list[Object]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Object]:
    """Name -> the alert's rule."""
    return {rule["alert"]: rule for path in rule_files() for rule in rules_in(path) if "alert" in rule}


def records() -> dict[str, Object]:
    """Name -> the recording rule."""
    return {rule["record"]: rule for path in rule_files() for rule in rules_in(path) if "record" in rule}


def dashboards() -> dict[str, Object]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def queries(dashboard: Object) -> Iterator[tuple[str, str]]:
    """(title of the panel, query) of all panels and variables."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
