"""Thresholds of namespaces as recording rules."""

from planning_rig import namespace

from kvgrove_operator.alerts import NAME, THRESHOLDS, thresholds


def rules(*declared: object) -> list[dict[str, object]]:
    body = thresholds(declared, "ops")  # type: ignore[arg-type]
    assert body["metadata"]["name"] == NAME
    assert body["metadata"]["namespace"] == "ops"
    return [rule for group in body["spec"]["groups"] for rule in group["rules"]]


def test_a_threshold_is_a_series_of_its_namespace_and_an_absent_one_is_none() -> None:
    found = {str(rule["record"]): rule for rule in rules(namespace("a"))}
    assert {name for name in THRESHOLDS if name in found} == {
        "kvgrove:warmup_seconds_maximum",
        "kvgrove:invalidation_seconds_maximum",
        "kvgrove:erasure_seconds_maximum",
    }
    assert found["kvgrove:warmup_seconds_maximum"] == {
        "record": "kvgrove:warmup_seconds_maximum",
        "expr": "vector(1800)",
        "labels": {"namespace": "team/a"},
    }


def test_all_thresholds_of_the_spec_are_there() -> None:
    alerts = {"minimumHitRatio": 0.75, "evictionsPerSecond": 50, "invalidationOverdueAfter": "90s"}
    found = {str(rule["record"]): rule["expr"] for rule in rules(namespace("a", alerts=alerts))}
    assert set(found) == set(THRESHOLDS)
    assert found["kvgrove:hit_ratio_minimum"] == "vector(0.75)"
    assert found["kvgrove:evictions_per_second_maximum"] == "vector(50)"
    assert found["kvgrove:invalidation_seconds_maximum"] == "vector(90)"


def test_a_namespace_without_alerts_says_so_and_nothing_else() -> None:
    (rule,) = rules(namespace("a", alerts={"enabled": False, "minimumHitRatio": 0.9}))
    assert rule == {"record": "kvgrove:alerts_off", "expr": "vector(1)", "labels": {"namespace": "team/a"}}


def test_the_order_of_namespaces_is_theirs_by_name_and_none_make_no_group() -> None:
    assert rules(namespace("b"), namespace("a")) == rules(namespace("a"), namespace("b"))
    assert thresholds([], "ops")["spec"] == {"groups": []}
