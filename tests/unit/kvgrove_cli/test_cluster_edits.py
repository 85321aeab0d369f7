"""What people see of a fleet on Kubernetes, and which edit of a spec does what they ask for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kvgrove_cli.cluster import edits, tables
from kvgrove_cli.errors import UsageProblem

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
OLD, NEW = "a" * 64, "b" * 64
MODELS = [
    {"metadata": {"name": "m1"}, "status": {"generation": OLD}},
    {"metadata": {"name": "m2"}, "status": {"generation": NEW}},
    {"metadata": {"name": "m3"}},
]


def namespace(model: str = "m2", **status: Any) -> dict[str, Any]:
    spec = {"modelVersionRef": {"name": model}, "purge": {"epoch": 4}}
    metadata = {"name": "bot", "namespace": "shop", "generation": 7, "creationTimestamp": "2026-11-30T11:00:00Z"}
    return {"kind": "PromptCacheNamespace", "metadata": metadata, "spec": spec, "status": status}


def ready(observed: int = 7, status: str = "True") -> list[dict[str, Any]]:
    return [{"type": "Ready", "status": status, "observedGeneration": observed}]


def test_a_purge_raises_the_epoch_and_a_namespace_that_never_had_one_begins_at_two() -> None:
    assert edits.purge(namespace()) == {"purge": {"epoch": 5}}
    assert edits.purge({"spec": {}}) == {"purge": {"epoch": 2}}


def test_approval_names_the_generation_that_waits_and_no_other() -> None:
    waiting = namespace(activeGeneration=OLD, desiredGeneration=NEW)
    assert edits.approve(waiting) == {"rollout": {"approvedGeneration": NEW}}
    with pytest.raises(UsageProblem, match="no generation waits"):
        edits.approve(namespace(activeGeneration=NEW, desiredGeneration=NEW))


def test_undo_goes_back_to_who_answers_while_another_is_on_its_way_and_else_to_the_one_before() -> None:
    moving = namespace(activeGeneration=OLD, desiredGeneration=NEW)
    assert edits.undo(moving, MODELS) == {"modelVersionRef": {"name": "m1"}}
    promoted = namespace(activeGeneration=NEW, desiredGeneration=NEW, previousGeneration=OLD)
    assert edits.undo(promoted, MODELS) == {"modelVersionRef": {"name": "m1"}}
    assert edits.undo(promoted, MODELS, "m3") == {"modelVersionRef": {"name": "m3"}}
    with pytest.raises(UsageProblem, match="no ModelVersion of an earlier generation"):
        edits.undo(namespace(activeGeneration=NEW, desiredGeneration=NEW), MODELS)
    with pytest.raises(UsageProblem, match="names m2 already"):
        edits.undo(promoted, MODELS, "m2")
    with pytest.raises(UsageProblem, match="there is no ModelVersion m9; it is one of m1, m2, m3"):
        edits.undo(promoted, MODELS, "m9")


def test_pausing_twice_is_an_error_that_says_so() -> None:
    assert edits.suspend(namespace(), suspended=True) == {"suspend": True}
    with pytest.raises(UsageProblem, match="not paused already"):
        edits.suspend(namespace(), suspended=False)


def test_history_names_each_generation_once_with_its_model() -> None:
    promoted = namespace(activeGeneration=NEW, desiredGeneration=NEW, previousGeneration=OLD)
    assert edits.history(promoted, MODELS) == [["desired", NEW[:12], "m2"], ["previous", OLD[:12], "m1"]]


def test_columns_are_as_kubectl_prints_them() -> None:
    shown = namespace(phase="Ready", conditions=ready(), summary={"generation": "aaa", "warm": "3/3"})
    headings, line = tables.namespaces([shown], NOW, all_of_them=True).splitlines()
    assert headings.split()[:4] == ["NAMESPACE", "NAME", "READY", "PHASE"]
    assert line.split() == ["shop", "bot", "True", "Ready", "m2", "aaa", "3/3", "<none>", "<none>", "60m"]
    assert headings.index("WARM") == line.index("3/3")


def test_progress_is_of_traffic_while_that_moves_and_of_warmth_before() -> None:
    warming = namespace(phase="Warming", warmth={"ready": 6, "wanted": 12})
    assert tables.progress(warming) == f"Warming          [{'#' * 12}{'-' * 12}] 50%, 6 of 12 blocks warm"
    shifting = namespace(phase="RollingOut", rollout={"phase": "Shifting", "weight": 25, "step": 1})
    assert tables.progress(shifting).endswith("25% of new conversations, step 2 of 3")
    assert "100%" in tables.progress(namespace(conditions=[{"type": "Warm", "status": "True"}]))


def test_a_condition_of_an_older_spec_is_not_current() -> None:
    assert tables.is_current(namespace(conditions=ready()), "Ready")
    assert not tables.is_current(namespace(conditions=ready(observed=6)), "Ready")
    assert not tables.is_current(namespace(conditions=ready(status="False")), "Ready")
    assert not tables.is_current(namespace(), "Ready")
