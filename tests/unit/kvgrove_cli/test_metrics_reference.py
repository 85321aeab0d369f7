"""The metrics' reference is current, and metrics keep the field's conventions (I11, I12)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvgrove_cli.metrics_reference import (
    DEFAULT_OUT,
    LABELS,
    QUERIES,
    Entry,
    gateway_entries,
    main,
    node_entries,
    operator_entries,
    render,
)

ROOT = Path(__file__).parents[3]
ALL = [*gateway_entries(), *node_entries(), *operator_entries()]
WEIGHT = "kvgrove_operator_rollout_weight_percent"
"""As `spec.rollout` and the status say it."""
UNITS = ("seconds", "bytes", "tokens", "blocks")


def test_docs_metrics_md_is_current() -> None:
    assert (ROOT / DEFAULT_OUT).read_text() == render(), "run `python -m kvgrove_cli.metrics_reference`"


def test_a_stale_reference_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "metrics.md"
    assert main(["--out", str(file)]) == 0
    assert main(["--out", str(file), "--check"]) == 0
    file.write_text(file.read_text().replace("counter", "gauge", 1))
    assert main(["--out", str(file), "--check"]) == 1
    assert "not current" in capsys.readouterr().err


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_names_and_texts_follow_the_conventions(entry: Entry) -> None:
    assert re.fullmatch(r"kvgrove_[a-z0-9_]+", entry.name)
    assert (entry.kind == "counter") == entry.name.endswith("_total")
    if entry.name != WEIGHT:
        assert not re.search(r"_(ms|milliseconds|kb|mb|percent)(_|$)", entry.name), "base units"
    assert len(entry.text) > 10
    for unit in UNITS:
        if re.search(rf"_{unit}(_total)?$", entry.name):
            assert unit[:-1] in entry.text.lower(), f"HELP names the unit: {unit}"


def test_i11_bounded_every_label_says_what_bounds_it_and_none_names_a_caller() -> None:
    used = {label for entry in ALL for label in entry.labels}
    assert used <= LABELS.keys()
    assert not used & {"user", "tenant", "key", "prompt", "session", "request_id"}


def test_queries_name_metrics_that_exist() -> None:
    names = {entry.name for entry in ALL} | {
        f"{entry.name}_{part}" for entry in ALL if entry.kind == "histogram" for part in ("sum", "count", "bucket")
    }
    for query in QUERIES.values():
        assert set(re.findall(r"kvgrove_[a-z0-9_]+", query)) <= names


def test_no_name_is_two_metrics() -> None:
    names = [entry.name for entry in ALL]
    assert len(names) == len(set(names))
