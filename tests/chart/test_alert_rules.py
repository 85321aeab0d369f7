"""Alerts, judged by promtool: each fires where it should, and stays quiet at restarts, warm-ups, rollouts and rest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, Case
from chart_rig import RULES, RUNBOOKS, Chart, alerts, records, rule_files, rules_in

from kvgrove_operator.alerts import OFF, THRESHOLDS

DESIGNED = {
    "HitRatioCollapse", "EvictionStorm", "WarmupStuck", "InvalidationOverdue", "EraseOverdue", "IndexDrift", "EventGap",
    "FlightTimeouts", "PoolPressure", "OperatorSilent", "CrossTenantProbe",
}  # fmt: skip
SEVERITIES = {"warning", "critical"}


def filled(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)


def as_test(case: Case) -> dict[str, Any]:
    """In promtool's words: what fires at the moment of the case; where nothing may, in every minute up to it."""
    rule = alerts()[case.alert]
    expected = [
        {
            "exp_labels": {**labels, **rule["labels"]},
            "exp_annotations": {name: filled(text, dict(labels)) for name, text in rule["annotations"].items()},
        }
        for labels in case.fires
    ]
    return {
        "name": case.story,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": expected}
            for minute in ([case.at] if case.fires else range(1, case.at + 1))
        ],
    }


def judged(promtool: Path, folder: Path, cases: list[Case]) -> subprocess.CompletedProcess[str]:
    names = sorted({case.alert for case in cases})
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(RULES / "recording.yaml"), *(str(RULES / f"{name}.yaml") for name in names)],
                "evaluation_interval": "1m",
                "group_eval_order": ["kvgrove-records", *names],
                "tests": [as_test(case) for case in cases],
            },
            sort_keys=False,
        )
    )
    return subprocess.run(
        [str(promtool), "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("alert", sorted({case.alert for case in CASES}))
def test_an_alert_fires_where_it_should_and_nowhere_else(promtool: Path, tmp_path: Path, alert: str) -> None:
    done = judged(promtool, tmp_path, [case for case in CASES if case.alert == alert])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_that_is_wrong_is_seen(promtool: Path, tmp_path: Path) -> None:
    quiet = next(case for case in CASES if not case.fires)
    wrong = Case(quiet.alert, quiet.story, quiet.at, quiet.series, ({"namespace": "shop/bot", "cause": "new"},))
    assert judged(promtool, tmp_path, [wrong]).returncode != 0


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_each_alert_has_cases_for_both(alert: str) -> None:
    mine = [case for case in CASES if case.alert == alert]
    assert [case for case in mine if case.fires]
    quiet = [case for case in mine if not case.fires]
    assert quiet
    assert all(case.story.startswith("quiet: ") for case in quiet)


def test_the_alerts_are_the_designed_ones_each_in_its_own_file() -> None:
    assert set(alerts()) == {f"Kvgrove{name}" for name in DESIGNED}
    for name in alerts():
        assert [rule["alert"] for rule in rules_in(RULES / f"{name}.yaml")] == [name]
    assert {path.stem for path in rule_files()} == {*alerts(), "recording"}


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_an_alert_says_for_how_long_how_bad_and_what_to_read(alert: str) -> None:
    rule = alerts()[alert]
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in SEVERITIES
    url = rule["annotations"]["runbook_url"]
    assert url == f"https://github.com/kvgrove/kvgrove/blob/main/docs/runbooks/{alert}.md"
    assert (RUNBOOKS / f"{alert}.md").is_file()


def test_every_threshold_of_a_namespace_is_compared_with() -> None:
    text = "".join(rule["expr"] for rule in alerts().values())
    for series in (*THRESHOLDS, OFF):
        assert re.search(rf"\b{series}\b", text), series
    known = {*records(), *THRESHOLDS, OFF}
    used = set(
        re.findall(r"\b[a-z_]*:?kvgrove[a-z_]*:[a-z0-9_:]+", text + "".join(r["expr"] for r in records().values()))
    )
    assert used <= known


def test_the_rules_are_sound_and_rendered_as_they_are(chart: Chart, promtool: Path, tmp_path: Path) -> None:
    rendered = chart.template("production").one("PrometheusRule", "kvgrove")
    groups = {group["name"]: group for group in rendered["spec"]["groups"]}
    for path in rule_files():
        for group in yaml.safe_load(path.read_text())["groups"]:
            expected = yaml.safe_load(
                yaml.safe_dump(group).replace(
                    "https://github.com/kvgrove/kvgrove/blob/main/docs/runbooks/",
                    "https://runbooks.example.com/kvgrove/",
                )
            )
            assert groups.pop(group["name"]) == expected
    assert not groups
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": rendered["spec"]["groups"]}))
    done = subprocess.run([str(promtool), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
