"""The ledger of members: who is granted what, and when an invalidation is complete (I3)."""

from math import inf

import pytest
from receipt_rig import KEY, receipt

from kvgrove_link.member_key import MemberKey
from kvgrove_operator.holdings import CLOCK_MARGIN
from kvgrove_operator.member_events import (
    Effect,
    GoodbyeReceived,
    HelloReceived,
    Issued,
    Leading,
    MemberEnded,
    MemberRecord,
    Outranked,
    Persist,
    PlanIssued,
    ReportReceived,
    Send,
    SendPlan,
    Tick,
)
from kvgrove_operator.members import RESEND_SECONDS, SILENT_SECONDS, Invalidation, MemberLedger
from kvgrove_protocol.changes import report_since
from kvgrove_protocol.control import (
    DAEMON,
    GATEWAY,
    NO_REVISION,
    Hello,
    LeaseGrant,
    NamespaceReport,
    NodeEndpoint,
    NodeReport,
    Refused,
    Revision,
)
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.receipts import EraseOutcome, Receipt

F1, F2 = Fence(1, 1, 1), Fence(1, 2, 1)
LEASE = 10.0
RUN_OUT = LEASE * (1 + CLOCK_MARGIN)


def hello(member: str = "node-0", boot: str = "a", role: str = DAEMON) -> Hello:
    address = f"tcp://{member}" if role == DAEMON else ""
    return Hello(member=member, role=role, boot=boot, address=address, public_key=KEY.public)


class Story:
    """Drives a ledger; remembers the effects of the last step."""

    def __init__(self, *, term: int = 1, now: float = 0.0, records: tuple[MemberRecord, ...] = ()) -> None:
        self.now = now
        self.ledger = MemberLedger(term, now, records)
        self.effects: tuple[Effect, ...] = ()
        self.reports = 0
        self.told: dict[bytes, NodeReport] = {}
        self.step(Leading(now, inf))

    def step(self, event: object) -> tuple[Effect, ...]:
        self.effects = self.ledger.step(event)  # type: ignore[arg-type]
        return self.effects

    def issue(self, fence: Fence = F1, *, lease: float = LEASE) -> None:
        self.step(PlanIssued(self.now, {"u1": Issued(fence, lease)}))

    def join(self, member: str = "node-0", boot: str = "a", role: str = DAEMON, peer: bytes = b"") -> None:
        peer = peer or f"{member}/{boot}".encode()
        self.told.pop(peer, None)
        self.step(HelloReceived(self.now, peer, hello(member, boot, role)))

    def report(
        self,
        fence: Fence | None = F1,
        *,
        member: str = "node-0",
        boot: str = "a",
        applied: Revision | None = None,
        receipts: tuple[Receipt, ...] = (),
    ) -> dict[str, float]:
        """The seconds granted. Sent as members do: what changed since the report before on the same connection."""
        self.reports += 1
        peer = f"{member}/{boot}".encode()
        report = NodeReport(
            report_id=self.reports,
            applied=applied or self.ledger.revision,
            namespaces=[NamespaceReport(uid="u1", fence=fence, purge_counter=fence.purge)] if fence else [],
            receipts=[*receipts],
        )
        before = self.told.get(peer)
        self.told[peer] = report
        self.step(ReportReceived(self.now, peer, report if before is None else report_since(before, report)))
        if self.refusal is not None:
            del self.told[peer]
        granted: dict[str, float] = {}
        for effect in self.effects:
            if isinstance(effect, Send) and isinstance(effect.message, LeaseGrant):
                assert effect.message.report_id == self.reports
                granted |= effect.message.seconds
        return granted

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.step(Tick(self.now))

    @property
    def refusal(self) -> str | None:
        codes = [
            effect.message.code
            for effect in self.effects
            if isinstance(effect, Send) and isinstance(effect.message, Refused)
        ]
        return codes[0] if codes else None

    @property
    def plans(self) -> list[SendPlan]:
        return [effect for effect in self.effects if isinstance(effect, SendPlan)]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """confirmed, expired, gone, pending"""
        found = self.ledger.invalidation("u1")
        assert found is not None
        return found.confirmed, found.expired, found.gone, found.pending


@pytest.fixture
def story() -> Story:
    """One daemon with a lease under F1."""
    story = Story()
    story.issue()
    story.join()
    assert story.report() == {"u1": LEASE}
    return story


# -- plans and reports as changes --------------------------------------------------------------------------------------


def test_a_member_is_sent_what_changed_since_the_plan_it_has_applied(story: Story) -> None:
    had = story.ledger.revision
    story.issue(F2)
    (sent,) = story.plans
    assert (sent.base, sent.revision) == (had, story.ledger.revision)


def test_a_member_that_has_applied_nothing_is_sent_the_whole_plan() -> None:
    story = Story()
    story.issue()
    story.join()
    (sent,) = story.plans
    assert sent.base == NO_REVISION


def test_a_member_that_lacks_the_base_is_sent_the_whole_plan(story: Story) -> None:
    had = story.ledger.revision
    story.issue(F2)
    wanting = NodeReport(report_id=7, applied=had, plan_wanted=True)
    story.step(ReportReceived(story.now, b"node-0/a", wanting))
    (sent,) = story.plans
    assert (sent.base, sent.revision) == (NO_REVISION, story.ledger.revision)


def test_what_a_report_leaves_out_as_unchanged_is_granted_as_before(story: Story) -> None:
    same = NodeReport(report_id=8, applied=story.ledger.revision, base=story.reports)
    story.step(ReportReceived(story.now, b"node-0/a", same))
    (grant,) = [effect.message for effect in story.effects if isinstance(effect, Send)]
    assert isinstance(grant, LeaseGrant)
    assert grant.seconds == {"u1": LEASE}


def test_what_a_report_says_is_gone_is_not_granted(story: Story) -> None:
    gone = NodeReport(report_id=8, applied=story.ledger.revision, base=story.reports, gone=["u1"])
    story.step(ReportReceived(story.now, b"node-0/a", gone))
    (grant,) = [effect.message for effect in story.effects if isinstance(effect, Send)]
    assert isinstance(grant, LeaseGrant)
    assert grant.seconds == {}


def test_a_report_after_one_that_is_missing_proves_nothing(story: Story) -> None:
    story.issue(F2)
    late = NodeReport(report_id=9, applied=story.ledger.revision, base=story.reports + 1)
    story.step(ReportReceived(story.now, b"node-0/a", late))
    assert story.refusal == "report_lost"
    assert story.counts == (0, 0, 0, 1)


# -- grants ------------------------------------------------------------------------------------------------------------


def test_a_member_gets_the_plan_when_it_says_hello_and_when_a_new_one_is_issued() -> None:
    story = Story()
    story.join()
    assert story.plans == []  # there is none yet
    story.issue()
    (sent,) = story.plans
    assert sent.revision == story.ledger.revision
    story.join("gateway-0", role=GATEWAY)
    assert [(plan.peer, plan.role) for plan in story.plans] == [(b"gateway-0/a", GATEWAY)]


def test_i3_the_record_is_made_durable_before_the_first_grant_is_sent() -> None:
    story = Story()
    story.issue()
    story.join()
    story.report()
    persist, send = story.effects
    record = MemberRecord(uid="u1", member="node-0", boot="a", role=DAEMON, seconds=LEASE)
    assert persist == Persist("node-0", (record,))
    assert isinstance(send, Send)
    assert story.ledger.records() == (record,)


def test_later_grants_write_nothing(story: Story) -> None:
    story.now += 3
    story.report()
    assert not any(isinstance(effect, Persist) for effect in story.effects)


def test_i3_nothing_is_granted_to_a_member_that_has_not_confirmed_the_newest_fence(story: Story) -> None:
    story.issue(F2)
    assert story.report(F1) == {}
    assert story.report(None) == {}
    assert story.report(F2) == {"u1": LEASE}


def test_i3_a_fence_reported_without_our_plan_applied_confirms_nothing(story: Story) -> None:
    """The counters may be those of a planner whose memory was better than ours."""
    story.issue(F2)
    assert story.report(F2, applied=Revision(term=1, n=1)) == {}
    assert story.counts == (0, 0, 0, 1)


def test_i3_a_member_that_falls_back_behind_our_plan_is_granted_nothing(story: Story) -> None:
    assert story.report(applied=Revision(term=0, n=9)) == {}
    assert story.report() == {"u1": LEASE}


def test_a_lease_that_is_declared_shorter_is_granted_shorter_at_once(story: Story) -> None:
    story.issue(lease=100.0)
    assert story.report() == {"u1": 100.0}
    story.issue(lease=1.0)
    assert [story.report(), story.report()] == [{"u1": 1.0}] * 2


def test_without_the_lead_nothing_is_granted_or_welcomed(story: Story) -> None:
    story.step(Leading(story.now, story.now + 5))
    story.now += 5
    assert story.report() == {}
    assert story.refusal == "not_leading"
    story.join("node-1")
    assert story.refusal == "not_leading"
    story.issue(F2)
    assert story.plans == []


def test_a_report_from_a_connection_that_did_not_say_hello_is_sent_back() -> None:
    story = Story()
    story.issue()
    assert story.report() == {}
    assert story.refusal == "hello_first"


def test_a_later_term_seen_at_a_member_ends_the_granting(story: Story) -> None:
    assert story.report(applied=Revision(term=7, n=1)) == {}
    assert Outranked(7) in story.effects
    assert story.report() == {}
    assert not any(isinstance(effect, Outranked) for effect in story.effects)  # said once
    assert story.refusal == "not_leading"


def test_a_fence_that_falls_is_refused(story: Story) -> None:
    with pytest.raises(Malformed, match="fence"):
        story.issue(Fence(1, 0, 1))
    assert story.report() == {"u1": LEASE}


# -- completion --------------------------------------------------------------------------------------------------------


def test_complete_by_confirmation(story: Story) -> None:
    story.issue(F2)
    assert story.counts == (0, 0, 0, 1)
    story.report(F2)
    assert story.counts == (1, 0, 0, 0)
    assert story.ledger.invalidation("u1") == Invalidation(F2, 1, 0, 0, 0)


def test_complete_by_the_end_of_the_last_lease_counted_from_its_grant(story: Story) -> None:
    story.now += 6
    story.report()
    story.issue(F2)
    story.pass_time(RUN_OUT - 0.001)
    assert story.counts == (0, 0, 0, 1)
    story.pass_time(0.002)
    assert story.counts == (0, 1, 0, 0)
    assert story.report(F2) == {"u1": LEASE}
    assert story.counts == (1, 0, 0, 0)  # it came back


def test_a_lease_granted_after_all_had_run_out_runs_out_too(story: Story) -> None:
    story.issue(lease=5.0)
    story.pass_time(RUN_OUT + 1)
    assert story.report() == {"u1": 5.0}
    story.issue(F2)
    story.pass_time(RUN_OUT / 2 - 0.001)
    assert story.counts == (0, 0, 0, 1)
    story.pass_time(0.002)
    assert story.counts == (0, 1, 0, 0)


def test_what_was_granted_on_a_connection_that_is_over_runs_on(story: Story) -> None:
    story.now += 6
    story.report()  # says nothing new, and is granted as before
    story.now += 3
    story.join()
    story.issue(F2)
    story.pass_time(RUN_OUT - 3 - 0.001)
    assert story.counts == (0, 0, 0, 1)
    story.pass_time(0.002)
    assert story.counts == (0, 1, 0, 0)


def test_what_was_granted_by_the_last_report_runs_on_when_the_next_one_is_granted_nothing(story: Story) -> None:
    story.now += 6
    story.report()
    story.issue(F2)
    story.now += 1
    assert story.report(F1) == {}
    story.now += 4
    story.issue(Fence(2, 2, 1))
    assert story.counts == (0, 0, 0, 1)
    story.pass_time(RUN_OUT - 5 - 0.001)
    assert story.counts == (0, 0, 0, 1)
    story.pass_time(0.002)
    assert story.counts == (0, 1, 0, 0)


def test_the_longest_of_several_grants_counts(story: Story) -> None:
    story.issue(lease=100.0)
    story.report()
    story.issue(lease=1.0)
    story.report()
    story.issue(F2, lease=1.0)
    story.pass_time(99)
    assert story.counts == (0, 0, 0, 1)
    story.pass_time(2)
    assert story.counts == (0, 1, 0, 0)


def test_who_has_expired_is_not_waited_for_again(story: Story) -> None:
    story.issue(F2)
    story.pass_time(RUN_OUT)
    story.issue(Fence(2, 2, 1))
    assert story.counts == (0, 1, 0, 0)


def test_gone_by_goodbye_at_once(story: Story) -> None:
    story.issue(F2)
    story.step(GoodbyeReceived(story.now, b"node-0/a"))
    assert story.counts == (0, 0, 1, 0)
    assert story.effects[0] == Persist("node-0", ())


def test_a_replaced_boot_is_gone_only_when_its_lease_has_run_out(story: Story) -> None:
    """Nobody has seen the old process end: it may still be serving."""
    story.join(boot="b")
    story.issue(F2)
    story.report(F2, boot="b")
    assert story.counts == (1, 0, 0, 1)
    story.pass_time(RUN_OUT)
    assert story.counts == (1, 0, 1, 0)
    assert [record.boot for record in story.ledger.records()] == ["b"]


def test_a_member_that_was_seen_to_end_is_gone_at_once(story: Story) -> None:
    story.issue(F2)
    story.step(MemberEnded(story.now, "node-0"))
    assert story.counts == (0, 0, 1, 0)
    assert story.ledger.members == ()


def test_a_namespace_nobody_holds_is_complete_at_once() -> None:
    story = Story()
    story.issue()
    assert story.counts == (0, 0, 0, 0)
    assert story.ledger.invalidation("unknown") is None


def test_gateways_count_like_nodes(story: Story) -> None:
    story.join("gateway-0", role=GATEWAY)
    story.report(member="gateway-0")
    story.issue(F2)
    story.report(F2)
    assert story.counts == (1, 0, 0, 1)


# -- restarts of the planner -------------------------------------------------------------------------------------------


def test_i3_after_a_restart_every_recorded_lease_counts_from_the_restart(story: Story) -> None:
    later = Story(term=2, now=-1e6, records=story.ledger.records())  # another machine, another clock
    later.issue(F2)
    assert later.counts == (0, 0, 0, 1)
    later.pass_time(LEASE)
    assert later.counts == (0, 0, 0, 1)
    later.pass_time(RUN_OUT - LEASE)
    assert later.counts == (0, 1, 0, 0)


def test_i3_a_longer_lease_is_on_record_before_it_is_granted(story: Story) -> None:
    story.issue(lease=500.0)
    story.report()
    persist, *_ = story.effects
    assert isinstance(persist, Persist)
    assert [record.seconds for record in persist.records] == [500.0]


def test_i3_a_record_is_shortened_only_when_no_longer_lease_can_be_running(story: Story) -> None:
    story.issue(lease=1.0)
    story.report()
    assert [record.seconds for record in story.ledger.records()] == [LEASE]
    story.pass_time(LEASE)
    story.report()
    assert [record.seconds for record in story.ledger.records()] == [1.0]


def test_a_member_confirms_anew_under_a_new_term(story: Story) -> None:
    later = Story(term=2, records=story.ledger.records())
    later.join()
    later.issue()
    assert later.report(applied=Revision(term=1, n=1)) == {}
    assert later.report() == {"u1": LEASE}
    assert later.counts == (1, 0, 0, 0)


# -- who is who --------------------------------------------------------------------------------------------------------


def test_a_boot_that_was_replaced_does_not_come_back(story: Story) -> None:
    story.join(boot="b")
    story.join(boot="a", peer=b"again")
    assert story.refusal == "superseded"
    assert [view.hello.boot for view in story.ledger.members] == ["b"]


def test_a_boot_that_said_goodbye_does_not_come_back(story: Story) -> None:
    story.step(GoodbyeReceived(story.now, b"node-0/a"))
    story.join(boot="a", peer=b"again")
    assert story.refusal == "superseded"


def test_the_same_boot_may_dial_again_and_its_old_connection_is_dead(story: Story) -> None:
    story.join(peer=b"second")
    assert story.refusal is None
    assert story.report() == {}  # over the first connection
    assert story.refusal == "hello_first"


def test_a_connection_speaks_for_the_member_it_named_last(story: Story) -> None:
    story.join("node-1", peer=b"node-0/a")
    assert [view.hello.member for view in story.ledger.members] == ["node-1"]
    story.step(GoodbyeReceived(story.now, b"node-0/a"))
    assert story.ledger.members == ()


def test_a_silent_member_leaves_the_list_but_not_the_record(story: Story) -> None:
    story.pass_time(SILENT_SECONDS + 1)
    assert story.ledger.members == ()
    assert len(story.ledger.records()) == 1
    assert story.report() == {}
    assert story.refusal == "hello_first"


def test_a_member_that_is_behind_is_sent_the_plan_again_but_not_at_every_report(story: Story) -> None:
    behind = Revision(term=1, n=0)
    story.report(applied=behind)
    assert story.plans == []
    story.now += RESEND_SECONDS
    story.report(applied=behind)
    assert len(story.plans) == 1


def test_gateways_learn_of_daemons_that_come_and_go(story: Story) -> None:
    story.join("gateway-0", role=GATEWAY)
    before = story.ledger.revision
    story.join("node-1")
    assert story.ledger.revision > before
    assert {plan.peer: plan.revision for plan in story.plans} == {
        b"gateway-0/a": story.ledger.revision,
        b"node-1/a": story.ledger.in_force(DAEMON),
    }
    assert story.plans[0].nodes == (
        NodeEndpoint(member="node-0", boot="a", address="tcp://node-0"),
        NodeEndpoint(member="node-1", boot="a", address="tcp://node-1"),
    )
    story.step(GoodbyeReceived(story.now, b"node-1/a"))
    assert [node.member for node in story.plans[0].nodes] == ["node-0"]


def test_other_daemons_are_no_plan_for_a_daemon(story: Story) -> None:
    before = story.ledger.in_force(DAEMON)
    story.join("node-1")
    assert (story.ledger.in_force(DAEMON), story.ledger.in_force(GATEWAY)) == (before, story.ledger.revision)
    story.pass_time(RESEND_SECONDS + 1)
    assert story.report(applied=before) == {"u1": LEASE}
    assert story.plans == []


def test_i11_the_number_of_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgrove_operator.members.MAX_MEMBERS", 3)
    story = Story()
    for number in range(3):
        story.join(f"m{number}", role=GATEWAY)
    story.join("one-more", role=GATEWAY)
    assert story.refusal == "too_many_members"
    story.join("m0", boot="b", role=GATEWAY)
    assert story.refusal is None


# -- erasure -----------------------------------------------------------------------------------------------------------


def remove(story: Story) -> None:
    story.step(PlanIssued(story.now, {}))


def test_i8_members_confirm_an_erasure_by_no_longer_holding_and_a_receipt(story: Story) -> None:
    story.join("gateway-0", role=GATEWAY)
    story.report(member="gateway-0")
    remove(story)
    story.report(None)
    story.report(None, member="gateway-0")
    assert story.counts == (0, 0, 0, 2)
    story.report(None, member="gateway-0", receipts=(receipt("u1", member="gateway-0"),))
    assert not story.ledger.erased("u1")
    story.report(F1, receipts=(receipt("u1"),))
    assert not story.ledger.erased("u1")  # it still holds it
    story.report(None, receipts=(receipt("u1"),))
    assert story.ledger.erased("u1")
    assert story.ledger.records() == ()
    assert Persist("node-0", ()) in story.effects


@pytest.mark.parametrize(
    "unproven",
    [
        receipt("u1", outcome=EraseOutcome.PENDING),
        receipt("u1", outcome=EraseOutcome.INCOMPLETE),
        receipt("u2"),
        receipt("u1", "of-a-part-only"),
        receipt("u1", boot="b"),
        receipt("u1", member="node-1"),
        receipt("u1", key=MemberKey.fresh()),
        Receipt(uid="u1", member="node-0", boot="a", outcome=EraseOutcome.PROVEN),
    ],
    ids=["pending", "incomplete", "another", "a part", "another boot", "another member", "another key", "unsigned"],
)
def test_i8_nothing_but_the_members_own_signed_proof_counts(story: Story, unproven: Receipt) -> None:
    remove(story)
    story.report(None, receipts=(unproven,))
    assert not story.ledger.erased("u1")
    story.report(None, receipts=(unproven, receipt("u1")))
    assert story.ledger.erased("u1")


def test_i8_a_cut_off_daemon_is_no_evidence_of_an_erasure(story: Story) -> None:
    remove(story)
    story.pass_time(RUN_OUT)
    assert story.counts == (0, 1, 0, 0)
    assert not story.ledger.erased("u1")


def test_a_removed_namespace_is_granted_to_nobody(story: Story) -> None:
    remove(story)
    assert story.report(F1) == {}


def test_a_namespace_that_returns_before_its_erasure_is_confirmed_anew(story: Story) -> None:
    remove(story)
    story.issue(F2)
    assert story.counts == (0, 0, 0, 1)
    assert story.report(F2) == {"u1": LEASE}


def test_namespaces_of_an_earlier_planner_that_are_not_planned_are_to_be_erased(story: Story) -> None:
    later = Story(term=2, records=story.ledger.records())
    assert not later.ledger.erased("u1")
    remove(later)
    assert later.counts == (0, 0, 0, 1)
