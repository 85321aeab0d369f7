"""Which objects are looked at again, and when: few enough, and never too few."""

from planning_rig import Planning, model, namespace, ready

from kvgrove_operator import notices
from kvgrove_operator.fleet_memory import with_fences
from kvgrove_operator.keys import MEMBERS, WORKLOADS, Key, Kind
from kvgrove_operator.notices import Notices
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan import Desired
from kvgrove_protocol.control import ModelReport, NamespaceReport, NodeReport, Revision
from kvgrove_protocol.fence import Fence

ONE = Revision(term=1, n=1)
A, B, M = Key(Kind.NAMESPACE, "team/a"), Key(Kind.NAMESPACE, "team/b"), Key(Kind.MODEL, "m1")
NODE = Key(Kind.NODE, "node-0")


def report(number: int, *, ready_blocks: int = 0, state: str = "ready", applied: Revision = ONE) -> NodeReport:
    fence = Fence(purge=1, documents=1, access=1)
    return NodeReport(
        report_id=number,
        applied=applied,
        models=[ModelReport(name="m1", state=state)],
        namespaces=[
            NamespaceReport(uid="uid-a", fence=fence, purge_counter=1, warm_ready=ready_blocks),
            NamespaceReport(uid="uid-b", fence=fence, purge_counter=1),
        ],
    )


def told(*reports: NodeReport) -> list[list[Key]]:
    planned = Planning()(namespace("a"), namespace("b"), observed=ready("m1"))
    memory, desired = Notices(), Desired((model(),), ())
    return [memory.report("node-0", each, planned.state, desired) for each in reports]


def test_the_first_report_of_a_member_concerns_everything_and_an_equal_one_nothing() -> None:
    first, again = told(report(1), report(2))
    assert set(first) == {NODE, A, B, M}
    assert again == []


def test_a_namespace_that_is_reported_otherwise_is_looked_at_and_no_other() -> None:
    _, later = told(report(1), report(2, ready_blocks=3))
    assert later == [NODE, A]


def test_another_model_state_or_leader_concerns_everything_and_another_plan_of_it_nobody() -> None:
    _, later, newer, other = told(
        report(1),
        report(2, state="failed"),
        report(3, state="failed", applied=Revision(1, 2)),
        report(4, state="failed", applied=Revision(2, 1)),
    )
    assert set(later) == {NODE, A, B, M}
    assert newer == [], "what it enforces now is told by its fences"
    assert set(other) == {NODE, A, B, M}


def test_a_plan_concerns_the_namespaces_that_it_changes_and_no_others() -> None:
    planning, desired = Planning(), Desired((model(),), (namespace("a"), namespace("b")))
    first = planning(*desired.namespaces, observed=ready("m1"))
    purged = planning(namespace("a", purge={"epoch": 2}), namespace("b"), observed=ready("m1"))
    assert set(notices.plan(first, purged, desired)) == {A}
    gone = planning(namespace("b"), observed=ready("m1"))
    assert A in set(notices.plan(purged, gone, desired))
    refused = planning(namespace("b", aliases=["x"]), namespace("c", aliases=["x"]), observed=ready("m1"))
    assert {B, Key(Kind.NAMESPACE, "team/c")} <= set(notices.plan(gone, refused, desired))


def test_a_namespace_that_begins_to_use_a_model_concerns_the_model() -> None:
    planning, models = Planning(), (model("m1"), model("m2"))
    first = planning(namespace("a"), models=models, observed=ready("m1", "m2"))
    moved = planning(namespace("a", model_name="m2"), models=models, observed=ready("m1", "m2"))
    assert set(notices.plan(first, moved, Desired(models, ()))) == {A, M, Key(Kind.MODEL, "m2")}


def test_a_plan_that_changes_nothing_concerns_nobody() -> None:
    planning = Planning()
    first = planning(namespace("a"), observed=ready("m1"))
    desired = Desired((model(),), ())
    assert set(notices.plan(None, first, desired)) == {WORKLOADS, A, M}
    again = planning(namespace("a"), observed=ready("m1"))
    assert not list(notices.plan(first, again, desired))
    assert MEMBERS in set(Notices().member("node-0"))
    assert A in set(notices.everything(again.state, desired))


def test_i3_counters_on_record_count_beside_those_that_members_report() -> None:
    observed = Observed(fences_seen={"u": Fence(purge=3, documents=1, access=1)})
    merged = with_fences(
        observed, {"u": Fence(purge=1, documents=5, access=0)}, {"v": Fence(purge=2, documents=0, access=0)}
    )
    assert merged.fences_seen == {
        "u": Fence(purge=3, documents=5, access=1),
        "v": Fence(purge=2, documents=0, access=0),
    }
