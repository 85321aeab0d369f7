"""Who has to prove an erasure, what counts as proof, and what becomes of those that go (I8)."""

from __future__ import annotations

from math import inf

import pytest
from receipt_rig import KEY, SEAL, receipt

from kvgrove_link.member_key import MemberKey
from kvgrove_operator.holdings import CLOCK_MARGIN
from kvgrove_operator.member_events import (
    HelloReceived,
    Issued,
    Leading,
    MemberEnded,
    MemberRecord,
    PlanIssued,
    ReportReceived,
    Tick,
)
from kvgrove_operator.members import MemberLedger
from kvgrove_protocol.control import DAEMON, GATEWAY, Hello, NamespaceReport, NodeReport
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.receipts import EraseOutcome, Receipt

FENCE = Fence(1, 1, 1)
LEASE = 10.0
OTHER_SEAL = b"another!"


class Story:
    def __init__(self, records: tuple[MemberRecord, ...] = ()) -> None:
        self.now = 0.0
        self.ledger = MemberLedger(1, 0.0, records)
        self.ledger.step(Leading(0.0, inf))

    def issue(self, *ids: str, seal: bytes = SEAL) -> None:
        self.ledger.step(PlanIssued(self.now, {"u1": Issued(FENCE, LEASE, ids, seal)}))

    def join(self, member: str, role: str = DAEMON, boot: str = "a", holds: tuple[str, ...] = ()) -> None:
        hello = Hello(member=member, role=role, boot=boot, namespace_uids=[*holds], public_key=KEY.public)
        self.ledger.step(HelloReceived(self.now, f"{member}/{boot}".encode(), hello))

    def report(self, member: str, *receipts: Receipt, boot: str = "a") -> None:
        namespaces = [NamespaceReport(uid="u1", fence=FENCE, purge_counter=1)]
        report = NodeReport(report_id=1, applied=self.ledger.revision, namespaces=namespaces, receipts=[*receipts])
        self.ledger.step(ReportReceived(self.now, f"{member}/{boot}".encode(), report))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.ledger.step(Tick(self.now))

    def counts(self, erasure: str = "e1") -> tuple[int, int, int]:
        """confirmed, gone, pending"""
        proof = self.ledger.proofs("u1")[erasure]
        assert proof.complete is (proof.pending == 0)
        return proof.confirmed, proof.gone, proof.pending


@pytest.fixture
def story() -> Story:
    """A daemon and a gateway with leases; then an erasure is issued."""
    story = Story()
    story.issue()
    for member, role in (("node-0", DAEMON), ("gateway-0", GATEWAY)):
        story.join(member, role)
        story.report(member)
    story.issue("e1")
    return story


def test_i8_each_holder_has_to_give_a_receipt(story: Story) -> None:
    assert story.counts() == (0, 0, 2)
    story.report("node-0", receipt("u1", "e1"))
    assert story.counts() == (1, 0, 1)
    story.report("gateway-0", receipt("u1", "e1", member="gateway-0", seal=b""))
    assert story.counts() == (2, 0, 0)


@pytest.mark.parametrize(
    "unproven",
    [
        receipt("u1", "e1", outcome=EraseOutcome.PENDING),
        receipt("u1", "e1", outcome=EraseOutcome.INCOMPLETE),
        receipt("u1", "e1", seal=OTHER_SEAL),
        receipt("u1", "e1", seal=b""),
        receipt("u2", "e1"),
        receipt("u1", "e2"),
        receipt("u1", "e1", member="gateway-0"),
        receipt("u1", "e1", boot="b"),
        receipt("u1", "e1", key=MemberKey.fresh()),
    ],
    ids=["pending", "incomplete", "old secret", "no secret", "namespace", "id", "member", "boot", "key"],
)
def test_i8_nothing_but_the_members_own_proof_under_the_secret_of_now_counts(story: Story, unproven: Receipt) -> None:
    story.report("node-0", unproven)
    assert story.counts() == (0, 0, 2)


def test_i8_proof_that_is_taken_back_counts_no_more(story: Story) -> None:
    story.report("node-0", receipt("u1", "e1"))
    story.report("node-0", receipt("u1", "e1", outcome=EraseOutcome.INCOMPLETE))
    assert story.counts() == (0, 0, 2)


def test_i8_a_cut_off_holder_stays_pending_whatever_its_lease(story: Story) -> None:
    story.pass_time(10 * LEASE)
    assert story.counts() == (0, 0, 2)


def test_i8_a_holder_that_was_seen_to_end_is_gone(story: Story) -> None:
    story.report("gateway-0", receipt("u1", "e1", member="gateway-0"))
    story.ledger.step(MemberEnded(story.now, "node-0"))
    assert story.counts() == (1, 1, 0)


def test_i8_a_replaced_boot_is_gone_when_its_lease_has_ended(story: Story) -> None:
    assert story.counts() == (0, 0, 2)
    story.join("node-0", boot="b")
    assert story.counts() == (0, 0, 2)
    story.pass_time(LEASE * (1 + CLOCK_MARGIN))
    assert story.counts() == (0, 1, 1)


def test_i8_one_that_gave_its_receipt_and_ended_stays_confirmed(story: Story) -> None:
    story.report("node-0", receipt("u1", "e1"))
    story.ledger.step(MemberEnded(story.now, "node-0"))
    assert story.counts() == (1, 0, 1)


def test_i8_a_member_that_says_it_holds_bytes_is_asked_although_it_never_had_a_lease(story: Story) -> None:
    story.join("node-1", holds=("u1",))
    story.join("node-2", holds=("u2",))
    assert story.counts() == (0, 0, 3)
    story.report("node-1", receipt("u1", "e1", member="node-1"))
    assert story.counts() == (1, 0, 2)


def test_i8_another_secret_asks_daemons_anew_and_gateways_not(story: Story) -> None:
    story.report("node-0", receipt("u1", "e1"))
    story.report("gateway-0", receipt("u1", "e1", member="gateway-0", seal=b""))
    story.issue("e1", seal=OTHER_SEAL)
    assert story.counts() == (1, 0, 1)
    story.report("node-0", receipt("u1", "e1", seal=OTHER_SEAL))
    assert story.counts() == (2, 0, 0)


def test_i8_a_new_planner_knows_the_holders_and_asks_them_all(story: Story) -> None:
    later = Story(story.ledger.records())
    assert later.ledger.proofs("u1") == {}
    later.issue("e1")
    assert later.counts() == (0, 0, 2)


def test_i8_an_erasure_of_what_nobody_ever_held_is_proven() -> None:
    story = Story()
    story.issue("e1")
    assert story.counts() == (0, 0, 0)


def test_an_erasure_that_is_no_longer_asked_for_is_forgotten(story: Story) -> None:
    story.report("node-0", receipt("u1", "e1"))
    story.issue()
    assert story.ledger.proofs("u1") == {}


def test_receipts_are_kept_with_the_key_they_were_checked_with(story: Story) -> None:
    story.report("node-0", receipt("u1", "e1"))
    (signed,) = story.ledger.proofs("u1")["e1"].receipts
    assert (signed.receipt, signed.public_key) == (receipt("u1", "e1"), KEY.public)


def test_i11_the_receipts_kept_of_an_erasure_are_bounded(monkeypatch: pytest.MonkeyPatch, story: Story) -> None:
    monkeypatch.setattr("kvgrove_operator.evidence.MAX_RECEIPTS", 1)
    story.report("node-0", receipt("u1", "e1"))
    story.report("gateway-0", receipt("u1", "e1", member="gateway-0"))
    assert story.counts() == (2, 0, 0)
    assert len(story.ledger.proofs("u1")["e1"].receipts) == 1
