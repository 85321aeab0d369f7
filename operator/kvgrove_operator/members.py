"""The planner's ledger of members: who is there, who holds leases, who has acknowledged what (I3).

Pure: no clock, no randomness, no I/O. `MemberLedger.step` takes an event and returns the effects it wants, in order.

**Why an invalidation reported complete is complete.** A member reads a namespace only under a lease, and enforces the
fence it last reported or a newer one; fences never fall. Four rules:

1. A grant answers one report, and goes only to a member whose report showed that it enforces the newest fence of the
   namespace. So once a newer fence is issued, nobody who has not confirmed it gets another lease, and the leases under
   older fences are a closed set that runs out.
2. The planner counts each of them as valid until (time it handled the report + seconds + a margin for clocks that run
   at unequal rates). The member counts from its sending of that report, which came before. So the planner's view ends
   later than the member's, whatever the clocks show and however long messages take. Where there were several grants it
   waits for the latest.
3. Holders are durable before their first grant, with the longest lease that may be running; so a planner that has just
   started knows them all, and counts each as valid for that long from its own start. A lease is on record before a
   longer one is granted, and shortened on record only when no longer one can be running.
4. Only a planner that leads grants, and only while nobody has seen a later term. A grant that an earlier leader sent
   late still counts from a report that was sent before the later one took over.

A boot that was replaced or said Goodbye never comes back: a late message of a dead process must not displace the living
one.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import assert_never

from msgspec.structs import replace

from kvgrove_operator.holders import Holders
from kvgrove_operator.holdings import Invalidation
from kvgrove_operator.member_events import (
    Effect,
    Event,
    GoodbyeReceived,
    HelloReceived,
    Leading,
    MemberEnded,
    MemberGone,
    MemberRecord,
    Outranked,
    PlanIssued,
    ReportReceived,
    Send,
    SendPlan,
    Tick,
)
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.standing import Standing
from kvgrove_protocol.changes import report_with
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

__all__ = ["Invalidation", "MemberLedger", "MemberRecord", "MemberView"]

MAX_MEMBERS = 4_096
REMEMBERED_BOOTS = 16
"""Boots of a member that are known to be over; older ones are not heard from again."""
SILENT_SECONDS = 15.0
"""A member not heard for this long is taken off the list; what it holds stays on record."""
RESEND_SECONDS = 5.0
"""A member that still reports an older plan after this long is sent the newest again, as a whole."""


@dataclass
class MemberView:
    """One connected member, as last heard. To be read only."""

    peer: bytes
    hello: Hello
    heard: float
    report: NodeReport | None = None
    """As a whole, whatever part of it was sent."""
    sent: Revision | None = None
    sent_at: float = -inf
    _index: tuple[NodeReport, dict[str, NamespaceReport]] | None = None

    def namespace(self, uid: str) -> NamespaceReport | None:
        """What it reported last of the namespace."""
        if self.report is None:
            return None
        if self._index is None or self._index[0] is not self.report:
            self._index = self.report, {each.uid: each for each in self.report.namespaces}
        return self._index[1].get(uid)

    def fence(self, uid: str) -> Fence | None:
        """The one that it said last it enforces."""
        said = self.namespace(uid)
        return said.fence if said is not None else None

    @property
    def applied(self) -> Revision:
        """The plan it says it has applied."""
        return self.report.applied if self.report is not None else NO_REVISION


class MemberLedger:
    """The members of one fleet under one term of one planner.

    ``term`` is above every earlier one and durable. ``records`` are what earlier planners left; ``now`` is a moment
    after this one took over. It leads only once it is told so, and never again after somebody else did.
    """

    def __init__(self, term: int, now: float, records: Iterable[MemberRecord] = ()) -> None:
        self._holders = Holders(records, now)
        self._revision = self._issued = Revision(term=term, n=0)
        self._leads_until = -inf
        self._outranked = False
        self._members: dict[str, MemberView] = {}
        self._names: dict[bytes, str] = {}
        self._over: OrderedDict[str, list[str]] = OrderedDict()
        self._nodes: tuple[NodeEndpoint, ...] = ()
        self._common: dict[str, NamespaceReport] = {}

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def revision(self) -> Revision:
        """The newest; ``n`` 0: no plan has been issued."""
        return self._revision

    def in_force(self, role: str) -> Revision:
        """Of the plan that members of this role are to apply: a change of the daemons alone is none for a daemon."""
        return self._revision if role == GATEWAY else self._issued

    @property
    def members(self) -> tuple[MemberView, ...]:
        """Who is connected, by name."""
        return tuple(self._members[name] for name in sorted(self._members))

    def view(self, member: str) -> MemberView | None:
        """The member of that name, if it is connected."""
        return self._members.get(member)

    def view_of(self, peer: bytes) -> MemberView | None:
        """The member that this connection speaks for."""
        return self._members.get(self._names.get(peer, ""))

    def records(self, member: str | None = None) -> tuple[MemberRecord, ...]:
        """The durable records as they are to be now, of one member or of all."""
        return self._holders.records(member)

    def recorded(self) -> tuple[str, ...]:
        """Members of which there are records, by name."""
        return self._holders.members()

    def invalidation(self, uid: str) -> Invalidation | None:
        """How the newest fence of ``uid`` stands; None for a namespace that is neither planned nor held."""
        return self._holders.invalidation(uid)

    def erased(self, uid: str) -> bool:
        """Whether every holder of a namespace that is planned no more gave its evidence, or is over with its lease."""
        return self._holders.invalidation(uid) is None

    def proofs(self, uid: str) -> Mapping[str, Proof]:
        """Erasure id -> how its holders stand to it, of the erasures of ``uid`` that are under way."""
        bearers = [(view.hello.member, view.hello.boot) for view in self.members if uid in view.hello.namespace_uids]
        return self._holders.proofs(uid, bearers)

    def complete_proofs(self, uids: Iterable[str]) -> dict[str, Proof]:
        """Erasure id -> its proof, of the erasures of ``uids`` for which all evidence is there."""
        found = (item for uid in uids for item in self.proofs(uid).items())
        return {erasure: proof for erasure, proof in found if proof.complete}

    def holders(self, uid: str) -> Mapping[tuple[str, str], Standing]:
        """(member, boot) -> how it stands to the newest fence of ``uid``, or to its erasure once it is not planned."""
        return self._holders.standings(uid)

    def final_proof(self, uid: str) -> Proof | None:
        """What was proven of a namespace that is erased; None: it is not, or that was long ago."""
        return self._holders.final_proof(uid)

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(self, event: Event) -> tuple[Effect, ...]:
        """Take ``event`` into account; what is to be done, in this order."""
        match event:
            case HelloReceived():
                effects = self._hello(event)
            case ReportReceived():
                effects = self._report(event)
            case GoodbyeReceived(peer=peer):
                effects = self._goodbye(peer, event.now)
            case MemberEnded(member=member):
                effects = self._ended(member, event.now)
            case MemberGone(member=member):
                effects = self._gone(member, event.now)
            case PlanIssued(namespaces=namespaces):
                self._advance()
                self._issued = self._revision
                self._common = {uid: each for uid, each in self._common.items() if uid in namespaces}
                self._holders.issue(namespaces, self._revision, event.now)
                effects = self._send_to(self.members, event.now)
            case Leading(until=until):
                self._leads_until = until
                effects = []
            case Tick():
                effects = self._tick(event.now)
            case _:
                assert_never(event)
        return (*self._holders.flush(), *effects)

    def _hello(self, event: HelloReceived) -> list[Effect]:
        hello, now = event.hello, event.now
        if not self._leads(now):
            return [_refuse(event.peer, "not_leading", "another planner leads: dial anew")]
        known = self._members.get(hello.member)
        if hello.boot in self._over.get(hello.member, ()):
            return [_refuse(event.peer, "superseded", "this boot is over, or a newer one has taken its place")]
        if known is None and len(self._members) >= MAX_MEMBERS:
            return [_refuse(event.peer, "too_many_members", f"at most {MAX_MEMBERS} members are planned for")]
        if (other := self._members.get(self._names.get(event.peer, ""))) is not None:
            self._remove(other, over=False)  # a connection speaks for the member that it named last
        if known is not None:
            self._names.pop(known.peer, None)
            if known.hello.boot != hello.boot:
                self._note_over(hello.member, known.hello.boot)
        self._holders.supersede(hello.member, hello.boot)
        self._holders.hear(hello)
        self._members[hello.member] = view = MemberView(event.peer, hello, now)
        self._names[event.peer] = hello.member
        return [*self._follow_nodes(now), *self._send_plan(view, now)]

    def _report(self, event: ReportReceived) -> list[Effect]:
        now = event.now
        view = self._members.get(self._names.get(event.peer, ""))
        if view is None:
            return [_refuse(event.peer, "hello_first", "this connection is not known: dial anew")]
        try:
            report = self._shared(report_with(view.report, event.report), view.report)
        except Malformed:
            return [_refuse(event.peer, "report_lost", "a report is missing before this one: dial anew")]
        newly_outranked = report.applied.term > self._revision.term and not self._outranked
        self._outranked = self._outranked or newly_outranked
        if not self._leads(now):
            refusal = _refuse(event.peer, "not_leading", "another planner leads: dial anew")
            return [Outranked(report.applied.term), refusal] if newly_outranked else [refusal]
        view.heard, view.report = now, report
        said = event.report
        changed = [*(each.uid for each in said.namespaces), *said.gone] if said.base else None
        seconds = self._holders.answer(view.hello, report, changed, view.fence, now)
        grant = LeaseGrant(report_id=report.report_id, revision=self._revision, seconds=seconds)
        effects: list[Effect] = [Send(event.peer, grant)]
        newest = self.in_force(view.hello.role)
        if report.applied < newest:
            again = report.plan_wanted or now - view.sent_at >= RESEND_SECONDS
            if again or view.sent != newest:
                effects += self._send_plan(view, now, whole=again)
        return effects

    def _shared(self, report: NodeReport, before: NodeReport | None) -> NodeReport:
        """``report``, with parts that another member reported as well in common: of a hundred members most are."""
        if before is not None and report.namespaces is before.namespaces:
            return report
        held = {id(each) for each in before.namespaces} if before is not None else set()
        kept = [each if id(each) in held else self._in_common(each) for each in report.namespaces]
        return replace(report, namespaces=kept)

    def _in_common(self, reported: NamespaceReport) -> NamespaceReport:
        known = self._common.get(reported.uid)
        if known is None or known != reported:
            known = self._common[reported.uid] = reported
        return known

    def _goodbye(self, peer: bytes, now: float) -> list[Effect]:
        view = self._members.get(self._names.get(peer, ""))
        if view is None or not self._leads(now):
            return []
        self._holders.leave(view.hello.member, view.hello.boot)
        self._remove(view, over=True)
        return self._follow_nodes(now)

    def _ended(self, member: str, now: float) -> list[Effect]:
        self._holders.leave(member)
        if (view := self._members.get(member)) is not None:
            self._remove(view, over=True)
        return self._follow_nodes(now)

    def _gone(self, member: str, now: float) -> list[Effect]:
        if member not in self._members:  # one that is heard is there, whatever somebody else says
            self._holders.supersede(member, boot="")
            self._holders.settle(now)
        return []

    def _tick(self, now: float) -> list[Effect]:
        self._holders.settle(now)
        for view in self.members:
            if now - view.heard > SILENT_SECONDS:
                self._remove(view, over=False)
        return self._follow_nodes(now)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _leads(self, now: float) -> bool:
        return now < self._leads_until and not self._outranked

    def _advance(self) -> None:
        self._revision = Revision(term=self._revision.term, n=self._revision.n + 1)

    def _follow_nodes(self, now: float) -> list[Effect]:
        """Gateways must know which daemons there are: a change of them is a new revision of the plan."""
        nodes = tuple(
            NodeEndpoint(
                member=view.hello.member,
                boot=view.hello.boot,
                address=view.hello.address,
                placement=view.hello.placement,
            )
            for view in self.members
            if view.hello.role == DAEMON
        )
        if nodes == self._nodes:
            return []
        self._nodes = nodes
        if self._revision.n == 0:
            return []
        self._advance()
        return self._send_to([view for view in self.members if view.hello.role == GATEWAY], now)

    def _send_to(self, views: Iterable[MemberView], now: float) -> list[Effect]:
        return [effect for view in views for effect in self._send_plan(view, now)]

    def _send_plan(self, view: MemberView, now: float, *, whole: bool = False) -> list[Effect]:
        newest = self.in_force(view.hello.role)
        if newest.n == 0 or not self._leads(now):
            return []
        view.sent, view.sent_at = newest, now
        base = NO_REVISION if whole else view.applied
        return [SendPlan(view.peer, view.hello.role, view.hello.placement, newest, base, self._nodes)]

    def _remove(self, view: MemberView, *, over: bool) -> None:
        del self._members[view.hello.member]
        del self._names[view.peer]
        self._holders.hang_up(view.hello.member)
        if over:
            self._note_over(view.hello.member, view.hello.boot)

    def _note_over(self, member: str, boot: str) -> None:
        boots = self._over.setdefault(member, [])
        self._over.move_to_end(member)
        boots.append(boot)
        del boots[:-REMEMBERED_BOOTS]
        while len(self._over) > MAX_MEMBERS:
            self._over.popitem(last=False)


def _refuse(peer: bytes, code: str, message: str) -> Send:
    return Send(peer, Refused(code=code, message=message))
