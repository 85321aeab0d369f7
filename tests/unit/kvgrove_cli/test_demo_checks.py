"""A demo that shows the wrong thing fails: each expectation is broken once here."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvgrove_cli.demo import checks, table
from kvgrove_cli.demo.checks import Facts
from kvgrove_cli.demo.rows import Row

FACTS = Facts(document_invalidation_complete=True, generations_side_by_side=True, killed_node="node-0")


def row(name: str, reused: int, ttft: float = 0.3, *, node: str = "node-0", prompt: int = 1500, **missed: int) -> Row:
    missed.setdefault("partial_block", prompt - reused - sum(missed.values()))
    return Row(name=name, prompt_tokens=prompt, reused_tokens=reused, miss_reasons=missed, ttft_s=ttft, node=node)


GOOD = {
    checks.COLD: row(checks.COLD, 0, 6.0, new=1480),
    checks.WARM: row(checks.WARM, 1408),
    checks.AGAIN: row(checks.AGAIN, 1472),
    checks.OTHER_TENANT: row(checks.OTHER_TENANT, 1408, new=64),
    checks.DOCUMENT_CHANGED: row(checks.DOCUMENT_CHANGED, 1024, document_changed=384),
    checks.REWARMED: row(checks.REWARMED, 1408),
    checks.NEW_MODEL: row(checks.NEW_MODEL, 0, generation_changed=1400),
    checks.ROLLED_BACK: row(checks.ROLLED_BACK, 1408),
    checks.NODE_KILLED: row(checks.NODE_KILLED, 0, node="node-1", new=1480),
}


def test_a_good_run_passes_everything() -> None:
    assert all(checks.judge(GOOD, FACTS).values())


BROKEN = [
    ("every_token_accounted_for", checks.WARM, {"prompt_tokens": 1501}),
    ("cold_request_reuses_nothing", checks.COLD, {"reused_tokens": 32}),
    ("shared_prefix_is_reused", checks.WARM, {"reused_tokens": 992}),
    ("warm_first_token_in_a_tenth_of_the_time", checks.WARM, {"ttft_s": 0.61}),
    ("same_tenant_reuses_its_own_text", checks.AGAIN, {"reused_tokens": 1408}),
    ("other_tenant_reuses_declared_text_only", checks.OTHER_TENANT, {"reused_tokens": 1472}),
    ("other_tenant_reuses_declared_text_only", checks.OTHER_TENANT, {"reused_tokens": 0}),
    ("other_tenant_learns_nothing", checks.OTHER_TENANT, {"miss_reasons": {"new": 60, "evicted": 32}}),
    ("changed_document_is_not_reused", checks.DOCUMENT_CHANGED, {"reused_tokens": 1408}),
    ("changed_document_is_not_reused", checks.DOCUMENT_CHANGED, {"miss_reasons": {"new": 476}}),
    ("new_version_is_warm_before_it_is_asked", checks.REWARMED, {"reused_tokens": 992}),
    ("new_model_version_reuses_nothing", checks.NEW_MODEL, {"reused_tokens": 32}),
    ("new_model_version_reuses_nothing", checks.NEW_MODEL, {"miss_reasons": {"new": 1500}}),
    ("old_model_version_is_still_warm", checks.ROLLED_BACK, {"reused_tokens": 0}),
    ("a_killed_daemon_fails_no_request", checks.NODE_KILLED, {"node": "node-0"}),
]


@pytest.mark.parametrize(("check", "name", "change"), BROKEN)
def test_each_expectation_can_fail(check: str, name: str, change: dict[str, object]) -> None:
    rows = GOOD | {name: msgspec.structs.replace(GOOD[name], **change)}
    assert not checks.judge(rows, FACTS)[check]


def test_facts_of_the_fleet_count_too() -> None:
    verdicts = checks.judge(GOOD, Facts(False, False, "node-0"))
    assert not verdicts["invalidation_complete_before_the_next_request"]
    assert not verdicts["generations_live_side_by_side"]


def test_the_json_has_the_documented_shape(tmp_path: Path) -> None:
    path = tmp_path / "build" / "demo.json"
    table.write_json(path, list(GOOD.values()), checks.judge(GOOD, FACTS))
    document = json.loads(path.read_text())
    assert set(document) == {"checks", "rows"}
    assert all(isinstance(held, bool) for held in document["checks"].values())
    assert {"name", "prompt_tokens", "reused_tokens", "miss_reasons", "ttft_s"} <= set(document["rows"][0])


def test_the_table_shows_reasons_and_numbers() -> None:
    text = table.as_table(list(GOOD.values()))
    assert "1,500" in text
    assert "384 document_changed" in text
