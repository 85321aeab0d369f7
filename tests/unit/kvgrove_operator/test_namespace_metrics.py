"""What is shown of namespaces, from their statuses."""

from datetime import UTC, datetime, timedelta

from kvgrove_crds.conditions import NAMESPACE_CONDITIONS, Condition
from kvgrove_crds.namespace_status import (
    ErasureStatus,
    InvalidationStatus,
    PromptCacheNamespaceStatus,
    RolloutStatus,
    WarmthStatus,
)
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.namespace_metrics import families

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
BEFORE = NOON - timedelta(seconds=90)


def samples(**statuses: PromptCacheNamespaceStatus) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families(statuses, NOON)
        for sample in family.samples
    }


def test_what_is_under_way_has_an_age_and_what_is_complete_has_none() -> None:
    under_way = PromptCacheNamespaceStatus(
        warmth=WarmthStatus(ready=3, wanted=8, started_at=BEFORE),
        invalidation=InvalidationStatus(revision=2, requested_at=BEFORE, pending=1),
        erasure=ErasureStatus(revision=1, requested_at=BEFORE),
        rollout=RolloutStatus(phase="Shifting", step=2, weight=25),
    )
    done = PromptCacheNamespaceStatus(
        invalidation=InvalidationStatus(revision=2, requested_at=BEFORE, completed_at=NOON),
        erasure=ErasureStatus(revision=1, requested_at=BEFORE, completed_at=NOON),
    )
    found = samples(a=under_way, b=done)
    for what in ("warmup", "invalidation", "erasure"):
        assert found[f"kvgrove_operator_{what}_age_seconds", "a"] == 90
        assert found[f"kvgrove_operator_{what}_age_seconds", "b"] == 0
    assert found["kvgrove_operator_warm_blocks", "a", "ready"] == 3
    assert found["kvgrove_operator_warm_blocks", "a", "wanted"] == 8
    assert found["kvgrove_operator_rollout_weight_percent", "a"] == 25
    assert found["kvgrove_operator_rollout_step", "a"] == 2


def test_what_is_suspended_warms_nothing() -> None:
    status = PromptCacheNamespaceStatus(phase="Suspended", warmth=WarmthStatus(wanted=8, started_at=BEFORE))
    assert samples(a=status)["kvgrove_operator_warmup_age_seconds", "a"] == 0


def test_a_condition_is_one_only_where_it_is_true() -> None:
    conditions = tuple(
        Condition(type=kind.value, status=status, last_transition_time=NOON, reason=ConditionReason.PROGRESSING)
        for kind, status in zip(NAMESPACE_CONDITIONS, ("True", "False", "Unknown"), strict=False)
    )
    found = samples(a=PromptCacheNamespaceStatus(conditions=conditions))
    shown = {name[2]: value for name, value in found.items() if name[0] == "kvgrove_operator_namespace_condition"}
    assert set(shown) == {kind.value for kind in NAMESPACE_CONDITIONS}
    assert [kind for kind, value in shown.items() if value] == ["Ready"]


def test_a_namespace_that_is_gone_has_no_series() -> None:
    assert samples() == {}
