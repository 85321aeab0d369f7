"""Runbooks: whole, with commands that exist and queries over series that somebody shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from chart_rig import ROOT, RUNBOOKS, Chart, alerts, records, rule_files
from document_commands import blocks, commands, problems_of_command, unparsed
from known_metrics import known, problems_of, series_in

from kvgrove_protocol.reasons import MissReason

PAGES = sorted(path for path in RUNBOOKS.glob("Kvgrove*.md"))
DOCUMENTS = [
    *PAGES,
    ROOT / "docs" / "install.md",
    ROOT / "charts" / "kvgrove" / "README.md",
    *sorted((ROOT / "docs" / "gitops").rglob("*.md")),
]
SECTIONS = ("## Meaning", "## Impact", "## Diagnosis", "## Mitigation")


def test_there_is_one_for_each_alert_and_none_of_another() -> None:
    assert {path.stem for path in PAGES} == set(alerts())
    index = (RUNBOOKS / "README.md").read_text()
    for name, rule in alerts().items():
        assert f"| [{name}]({name}.md) | {rule['labels']['severity']} |" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_each_says_what_it_means_costs_where_to_look_and_what_to_do(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == list(SECTIONS)
    assert list(commands(text)), "there is nothing to type"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: path.stem)
def test_every_command_is_one_that_its_program_takes(page: Path, kubectl: Path, chart: Chart) -> None:
    found = [
        problem for words in commands(page.read_text()) for problem in problems_of_command(words, kubectl, chart.helm)
    ]
    assert not found


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["kubectl", "frobnicate", "pods"], "no such command"),
        (["kubectl", "get", "pods", "--colour"], "has no --colour"),
        (["kubectl", "get", "promptcaches"], "no kind"),
        (["kvgrove", "status", "--wach"], "No such option"),
        (["kvgrove", "polish"], "No such command"),
        (["helm", "upgrade", "--instal"], "has no --instal"),
        (["curl", "x"], "no program"),
    ],
)
def test_a_command_that_is_wrong_is_seen(line: list[str], says: str, kubectl: Path, chart: Chart) -> None:
    assert any(says in problem for problem in problems_of_command(line, kubectl, chart.helm))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_query_parses_and_asks_for_what_is_shown(page: Path, promtool: Path, tmp_path: Path) -> None:
    text = page.read_text()
    queries = blocks(text, "promql")
    assert not unparsed(queries, promtool, tmp_path)
    assert not [problem for query in queries for problem in problems_of(query)]
    assert not [name for name in series_in(text) if name not in known()]


@pytest.mark.parametrize("file", rule_files(), ids=lambda path: path.stem)
def test_every_rule_asks_for_what_is_shown(file: Path) -> None:
    everything = {**alerts(), **records()}
    mine = [rule for name, rule in everything.items() if f" {name}\n" in file.read_text()]
    assert mine
    assert not [problem for rule in mine for problem in problems_of(rule["expr"])]


def test_a_series_a_label_or_a_value_that_nobody_has_is_seen() -> None:
    assert list(problems_of("rate(kvgrove_hits_total[5m])"))
    assert list(problems_of('rate(kvgrove_missed_tokens_total{tenant="acme"}[5m])'))
    assert list(problems_of('rate(kvgrove_missed_tokens_total{reason="bad_luck"}[5m])'))
    assert not list(problems_of('rate(kvgrove_missed_tokens_total{reason=~"new|evicted"}[5m])'))


def test_the_page_about_the_hit_ratio_knows_every_cause() -> None:
    text = (RUNBOOKS / "KvgroveHitRatioCollapse.md").read_text()
    assert not [reason.value for reason in MissReason if f"`{reason.value}`" not in text]
