"""What is sent over the fleet link as changes is the same plan and the same report at the other end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgrove_protocol.changes import plan_since, plan_with, report_since, report_with
from kvgrove_protocol.control import (
    TO_MEMBER,
    TO_PLANNER,
    ModelPlan,
    ModelReport,
    NamespacePlan,
    NamespaceReport,
    NodeEndpoint,
    NodePlan,
    NodeReport,
    PlanChanges,
    Revision,
)
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.receipts import EraseOutcome, Receipt

uids = st.sampled_from("abcdef")
counters = st.integers(1, 3)
fences = st.builds(Fence, counters, counters, counters)


def namespace_plan(uid: str, fence: Fence, suspended: bool) -> NamespacePlan:
    purge = Purge(fence.purge, b"n")
    return NamespacePlan(uid=uid, name=f"team/{uid}", model="m", purge=purge, fence=fence, suspended=suspended)


def namespace_report(uid: str, fence: Fence, blocks: int) -> NamespaceReport:
    return NamespaceReport(uid=uid, fence=fence, purge_counter=fence.purge, blocks=blocks)


@st.composite
def plans(draw: st.DrawFn, n: int) -> NodePlan:
    named = sorted(draw(st.sets(uids)))
    return NodePlan(
        revision=Revision(1, n),
        models=[ModelPlan(name=name, path="/m") for name in draw(st.lists(st.sampled_from("xy"), unique=True))],
        namespaces=[namespace_plan(uid, draw(fences), draw(st.booleans())) for uid in named],
        erase_uids=sorted(draw(st.sets(uids))),
        nodes=[NodeEndpoint(member=uid, boot="1", address="tcp://a") for uid in sorted(draw(st.sets(uids)))],
    )


@st.composite
def reports(draw: st.DrawFn, report_id: int) -> NodeReport:
    outcome = st.sampled_from(EraseOutcome)
    return NodeReport(
        report_id=report_id,
        applied=Revision(1, draw(counters)),
        models=[ModelReport(name=name, state="ready") for name in draw(st.lists(st.sampled_from("xy"), unique=True))],
        namespaces=[namespace_report(uid, draw(fences), draw(counters)) for uid in draw(st.lists(uids, unique=True))],
        receipts=[Receipt(uid=uid, member="m", boot="b", outcome=draw(outcome)) for uid in draw(st.sets(uids))],
    )


@given(plans(1), plans(2))
def test_a_plan_is_its_base_with_what_changed_since(base: NodePlan, plan: NodePlan) -> None:
    changes = TO_MEMBER.decode(TO_MEMBER.encode(plan_since(base, plan)))
    assert isinstance(changes, PlanChanges)
    assert plan_with(base, changes) == plan


@given(plans(1), plans(2))
def test_changes_name_only_what_is_not_in_their_base(base: NodePlan, plan: NodePlan) -> None:
    changes = plan_since(base, plan)
    assert not [each for each in changes.namespaces if each in base.namespaces]
    assert (changes.models is None) == (plan.models == base.models)


@given(st.tuples(*(reports(number) for number in range(1, 6))))
def test_reports_sent_as_changes_are_the_same_reports(told: tuple[NodeReport, ...]) -> None:
    before: NodeReport | None = None
    heard: NodeReport | None = None
    for report in told:
        sent = TO_PLANNER.decode(TO_PLANNER.encode(report if before is None else report_since(before, report)))
        assert isinstance(sent, NodeReport)
        held, heard = heard, report_with(heard, sent)
        assert (heard.report_id, heard.applied, heard.models) == (report.report_id, report.applied, report.models)
        assert heard.receipts == report.receipts
        assert {each.uid: each for each in heard.namespaces} == {each.uid: each for each in report.namespaces}
        assert len(heard.namespaces) == len(report.namespaces)
        known = {} if held is None else {each.uid: each for each in held.namespaces}
        for each in heard.namespaces:  # what did not change is the same object: whoever looks again need not
            assert each is known[each.uid] if each == known.get(each.uid) else True
        before = report


@given(plans(1), plans(2), plans(3))
def test_changes_of_another_plan_are_refused(base: NodePlan, plan: NodePlan, other: NodePlan) -> None:
    with pytest.raises(Malformed, match="base"):
        plan_with(other, plan_since(base, plan))


@given(reports(1), reports(2), reports(3))
def test_changes_of_another_report_are_refused(base: NodeReport, report: NodeReport, other: NodeReport) -> None:
    for held in (other, None):
        with pytest.raises(Malformed, match="base"):
            report_with(held, report_since(base, report))
