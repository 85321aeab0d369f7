"""Whether the object of a deleted namespace may go."""

from kvgrove_crds.namespace_access import ErasureWaiver, PrivacySpec
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.deletion import Debt, debt_of, judge
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.standing import Standing
from kvgrove_protocol.receipts import EraseFault, EraseOutcome, Receipt, SignedReceipt

STRICT = PrivacySpec()
WAIVER = ErasureWaiver(reason="burnt down", approved_by="the officer", nodes=("node-b",))


def failed(member: str) -> SignedReceipt:
    receipt = Receipt(uid="u", member=member, boot="a", outcome=EraseOutcome.INCOMPLETE, reason=EraseFault.NOT_EMPTY)
    return SignedReceipt(receipt=receipt, public_key=b"k")


def test_unreachable_failed_and_pending_are_told_apart() -> None:
    holders = {
        ("node-a", "1"): Standing.CONFIRMED,
        ("node-b", "1"): Standing.EXPIRED,
        ("node-c", "1"): Standing.PENDING,
        ("node-d", "1"): Standing.PENDING,
    }
    debt = debt_of(holders, {"node-a", "node-c", "node-d"}, Proof(receipts=(failed("node-d"),)))
    assert debt == Debt(unreachable=("node-b",), failed=("node-d",), pending=("node-c",))


def test_it_goes_on_evidence_and_says_what_that_is() -> None:
    verdict = judge(STRICT, Proof(confirmed=2, gone=1), Debt(), erased=True)
    assert verdict.may_go
    assert verdict.judgement.reason is ConditionReason.ERASURE_CONFIRMED
    assert verdict.judgement.message == "2 receipts, 1 gone, shredded"


def test_cor_02_it_stays_while_one_cannot_be_reached_and_names_it() -> None:
    verdict = judge(STRICT, Proof(confirmed=2, pending=1), Debt(unreachable=("node-b",)), erased=False)
    assert not verdict.may_go
    assert verdict.judgement.holds is False
    assert verdict.judgement.reason is ConditionReason.NODE_UNREACHABLE
    assert "node-b" in verdict.judgement.message


def test_a_waiver_covers_the_nodes_that_it_names_and_no_others() -> None:
    waiving = PrivacySpec(waiver=WAIVER)
    covered = judge(waiving, Proof(confirmed=2, pending=1), Debt(unreachable=("node-b",)), erased=False)
    assert covered.may_go
    assert covered.waived == ("node-b",)
    assert covered.judgement.holds is False, "nobody proved it"
    assert covered.judgement.reason is ConditionReason.ERASURE_WAIVED
    assert "the officer" in covered.judgement.message
    both = judge(waiving, Proof(pending=2), Debt(unreachable=("node-b", "node-c")), erased=False)
    assert not both.may_go


def test_best_effort_waits_for_those_who_answer_and_for_no_others() -> None:
    lenient = PrivacySpec(erase="BestEffort")
    assert not judge(lenient, Proof(pending=1), Debt(pending=("node-a",)), erased=False).may_go
    gone = judge(lenient, Proof(pending=1), Debt(unreachable=("node-b",)), erased=False)
    assert gone.may_go
    assert gone.judgement.holds is False, "it is not called verified"


def test_many_names_are_cut_short() -> None:
    names = tuple(f"node-{number}" for number in range(9))
    assert "and 4 more" in judge(STRICT, Proof(), Debt(pending=names), erased=False).judgement.message
