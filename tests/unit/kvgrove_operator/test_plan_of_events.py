"""The export of KV events reaches a node only where the namespace asks for it (I12)."""

from planning_rig import Planning, namespace, only, ready


def test_i12_quiet_events_are_exported_only_where_the_namespace_asks_for_it() -> None:
    planning = Planning()
    assert only(planning(namespace(), observed=ready("m1"))).events_export is False
    assert only(planning(namespace(events={"export": True}), observed=ready("m1"))).events_export is True
    assert only(planning(namespace(events={"export": False}), observed=ready("m1"))).events_export is False
