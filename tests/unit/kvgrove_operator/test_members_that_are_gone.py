"""Members whose machine was taken out of the fleet: their leases run out, then they hold nothing (I3, I8)."""

from kvgrove_operator.evidence import WHOLE
from kvgrove_operator.member_events import (
    HelloReceived,
    Issued,
    Leading,
    MemberGone,
    MemberRecord,
    PlanIssued,
    ReportReceived,
    Tick,
)
from kvgrove_operator.members import MemberLedger
from kvgrove_operator.standing import Standing
from kvgrove_protocol.control import Hello, NamespaceReport, NodeReport
from kvgrove_protocol.fence import Fence

FENCE = Fence(purge=1, documents=1, access=1)
RECORD = MemberRecord(uid="u1", member="node-0", boot="a", role="daemon", seconds=30.0)


def ledger(*records: MemberRecord) -> MemberLedger:
    made = MemberLedger(2, 0.0, records)
    made.step(Leading(0.0, 1e9))
    return made


def test_a_member_that_is_gone_holds_nothing_once_its_leases_have_run_out() -> None:
    fleet = ledger(RECORD)
    fleet.step(PlanIssued(1.0, {}))
    fleet.step(MemberGone(2.0, "node-0"))
    assert fleet.holders("u1") == {("node-0", "a"): Standing.PENDING}
    assert not fleet.erased("u1"), "its process may still run, under a lease"
    fleet.step(Tick(29.0))
    assert not fleet.erased("u1")
    fleet.step(Tick(31.0))
    assert fleet.erased("u1")
    proof = fleet.final_proof("u1")
    assert proof is not None
    assert (proof.confirmed, proof.gone, proof.pending) == (0, 1, 0)


def test_one_that_is_only_cut_off_is_waited_for() -> None:
    fleet = ledger(RECORD)
    fleet.step(PlanIssued(1.0, {}))
    fleet.step(Tick(1_000.0))
    assert not fleet.erased("u1"), "its memory is still there"
    assert fleet.final_proof("u1") is None
    assert fleet.proofs("u1")[WHOLE].pending == 1


def test_a_member_that_is_heard_is_there_whatever_is_said_of_its_machine() -> None:
    fleet = ledger()
    fleet.step(PlanIssued(0.0, {"u1": Issued(FENCE, 10.0)}))
    fleet.step(HelloReceived(1.0, b"p", Hello(member="node-0", role="daemon", boot="a")))
    enforced = [NamespaceReport(uid="u1", fence=FENCE, purge_counter=1)]
    report = NodeReport(report_id=1, applied=fleet.revision, namespaces=enforced)
    fleet.step(ReportReceived(2.0, b"p", report))
    fleet.step(MemberGone(3.0, "node-0"))
    fleet.step(Tick(13.0))
    assert fleet.holders("u1") == {("node-0", "a"): Standing.CONFIRMED}


def test_i5_one_that_held_no_lease_for_a_while_is_waited_for_again_once_it_has_one() -> None:
    fleet = ledger()
    fleet.step(PlanIssued(0.0, {"u1": Issued(FENCE, 10.0)}))
    fleet.step(HelloReceived(1.0, b"p", Hello(member="node-0", role="daemon", boot="a")))
    enforced = [NamespaceReport(uid="u1", fence=FENCE, purge_counter=1)]

    def report(now: float) -> None:
        fleet.step(HelloReceived(now, b"p", Hello(member="node-0", role="daemon", boot="a")))
        report = NodeReport(report_id=int(now), applied=fleet.revision, namespaces=enforced)
        fleet.step(ReportReceived(now, b"p", report))

    report(2.0)
    fleet.step(Tick(30.0))
    report(100.0)
    newer = Fence(purge=2, documents=1, access=1)
    fleet.step(PlanIssued(101.0, {"u1": Issued(newer, 10.0)}))
    fleet.step(Tick(102.0))
    assert fleet.holders("u1") == {("node-0", "a"): Standing.PENDING}, "its second lease runs"
    fleet.step(Tick(111.0))
    assert fleet.holders("u1") == {("node-0", "a"): Standing.EXPIRED}


def test_i3_one_whose_lease_ran_out_before_a_fence_was_issued_is_not_waited_for() -> None:
    fleet = ledger()
    fleet.step(PlanIssued(0.0, {"u1": Issued(FENCE, 10.0)}))
    fleet.step(HelloReceived(1.0, b"p", Hello(member="node-0", role="daemon", boot="a")))
    enforced = [NamespaceReport(uid="u1", fence=FENCE, purge_counter=1)]
    fleet.step(ReportReceived(2.0, b"p", NodeReport(report_id=1, applied=fleet.revision, namespaces=enforced)))
    fleet.step(Tick(30.0))
    assert fleet.holders("u1") == {("node-0", "a"): Standing.CONFIRMED}
    fleet.step(PlanIssued(31.0, {"u1": Issued(Fence(purge=2, documents=1, access=1), 10.0)}))
    assert fleet.holders("u1") == {("node-0", "a"): Standing.EXPIRED}
