"""Random lives of planners and members (I3): an invalidation reported complete is complete.

Messages are delayed, reordered and lost; members are restarted, cut off, and left running beside their replacement;
planners crash between any two effects, are replaced, and go on for a while afterwards; each machine's clock shows
whatever it likes. The lease tables are the real ones.
"""

from dataclasses import dataclass, field
from itertools import count
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvgrove_link.leases import LeaseTable
from kvgrove_operator.member_events import (
    Event,
    GoodbyeReceived,
    HelloReceived,
    Issued,
    Leading,
    MemberEnded,
    MemberRecord,
    Persist,
    PlanIssued,
    ReportReceived,
    Send,
    SendPlan,
    Tick,
)
from kvgrove_operator.members import MemberLedger
from kvgrove_protocol.changes import report_since
from kvgrove_protocol.control import (
    DAEMON,
    NO_REVISION,
    Goodbye,
    Hello,
    LeaseGrant,
    NamespaceReport,
    NodeReport,
    Refused,
    Revision,
    ToPlanner,
)
from kvgrove_protocol.fence import Fence

UIDS = ("u0",)
NAMES = ("m0", "m1")
LEADER_LEASE = 8.0
OLDEST = Fence(0, 0, 0)

offsets = st.integers(-1_000, 1_000).map(float)
waits = st.sampled_from((0.5, 1.5, 3.0, 6.0))
lease_times = st.sampled_from((2.0, 5.0, 20.0))


@dataclass(eq=False)
class Planner:
    ledger: MemberLedger
    term: int
    offset: float
    leads_until: float  # true time
    plan: dict[str, Issued] = field(default_factory=dict)


@dataclass(eq=False)
class Process:
    """One boot of a member."""

    member: str
    boot: str
    offset: float
    planner: Planner
    peer: bytes
    leases: LeaseTable = field(default_factory=LeaseTable)
    applied: Revision = NO_REVISION
    enforced: dict[str, Fence] = field(default_factory=dict)
    reports: int = 0
    told: NodeReport | None = None
    """The last report on this connection; what follows is sent as what changed since."""


@dataclass(frozen=True)
class PlanFor:
    revision: Revision
    fences: dict[str, Fence]


class Fleet(RuleBasedStateMachine):
    @initialize(offset=offsets)
    def begin(self, offset: float) -> None:
        self.time = 0.0
        self.ids = count()
        self.durable: dict[str, tuple[MemberRecord, ...]] = {}
        self.fences = dict.fromkeys(UIDS, OLDEST)
        self.lease_seconds = dict.fromkeys(UIDS, 5.0)
        self.completed = dict.fromkeys(UIDS, OLDEST)
        self.terms = 0
        self.planners: list[Planner] = []
        self.processes: list[Process] = []
        self.up: list[tuple[Process, Planner, bytes, ToPlanner]] = []
        self.down: list[tuple[Process, PlanFor | LeaseGrant]] = []
        self._start_planner(offset)

    @property
    def newest(self) -> Planner:
        return self.planners[-1]

    # -- planners --------------------------------------------------------------------------------------------------

    def _start_planner(self, offset: float) -> None:
        self.terms += 1
        records = [record for kept in self.durable.values() for record in kept]
        ledger = MemberLedger(self.terms, self.time + offset, records)
        self.planners.append(Planner(ledger, self.terms, offset, self.time + LEADER_LEASE))
        self._handle(self.newest, Leading(self.time + offset, self.time + offset + LEADER_LEASE))

    @rule(offset=offsets, changed=st.booleans(), wait=waits)
    def replace_planner(self, offset: float, changed: bool, wait: float) -> None:
        """A later one takes over once the earlier one's own lease has run out; the earlier one may live on."""
        self.time = max(self.time, self.newest.leads_until)
        self._start_planner(offset)
        if changed:
            self._raise_fence(UIDS[0])
        self._issue()
        self._pass_time(wait)

    @rule()
    def renew_lead(self) -> None:
        planner = self.newest
        planner.leads_until = self.time + LEADER_LEASE
        now = self.time + planner.offset
        self._handle(planner, Leading(now, now + LEADER_LEASE))

    @rule(uid=st.sampled_from(UIDS), seconds=lease_times)
    def invalidate(self, uid: str, seconds: float) -> None:
        self._raise_fence(uid)
        self.lease_seconds[uid] = seconds
        self._issue()

    def _raise_fence(self, uid: str) -> None:
        before = self.fences[uid]
        self.fences[uid] = Fence(before.purge, before.documents + 1, before.access)

    @rule(uid=st.sampled_from(UIDS), seconds=lease_times)
    def change_lease(self, uid: str, seconds: float) -> None:
        self.lease_seconds[uid] = seconds
        self._issue()

    def _issue(self) -> None:
        planned = {uid: Issued(self.fences[uid], self.lease_seconds[uid]) for uid in UIDS}
        self.newest.plan = planned
        self._handle(self.newest, PlanIssued(self.time + self.newest.offset, planned))

    def _handle(self, planner: Planner, event: Event, *, crash_after: float = inf) -> None:
        for done, effect in enumerate(planner.ledger.step(event)):
            if done >= crash_after:
                return
            match effect:
                case Persist() if planner is self.newest:
                    self.durable[effect.member] = effect.records
                case SendPlan():
                    plan = PlanFor(effect.revision, {uid: issued.fence for uid, issued in planner.plan.items()})
                    self._down(effect.peer, plan)
                case Send(message=LeaseGrant() as grant):
                    self._down(effect.peer, grant)
                case Send(message=Refused()):
                    for process in self.processes:
                        if process.peer == effect.peer:
                            process.told = None

    def _down(self, peer: bytes, message: PlanFor | LeaseGrant) -> None:
        self.down += [(process, message) for process in self.processes if process.peer == peer]

    # -- members ---------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), offset=offsets)
    def start_process(self, name: str, offset: float) -> None:
        """Another one of the same name may still be running."""
        process = Process(name, f"boot-{next(self.ids)}", offset, self.newest, b"")
        self.processes.append(process)
        self._dial(process)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def dial(self, data: st.DataObject) -> None:
        self._dial(data.draw(st.sampled_from(self.processes)))

    def _dial(self, process: Process) -> None:
        process.planner, process.peer = self.newest, f"peer-{next(self.ids)}".encode()
        process.told = None
        self._up(process, Hello(member=process.member, role=DAEMON, boot=process.boot))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.report_of(data.draw(st.sampled_from(self.processes)))

    def report_of(self, process: Process) -> None:
        process.reports += 1
        process.leases.sent(process.reports, self.time + process.offset)
        namespaces = [NamespaceReport(uid=u, fence=f, purge_counter=f.purge) for u, f in process.enforced.items()]
        report = NodeReport(report_id=process.reports, applied=process.applied, namespaces=namespaces)
        self._up(process, report if process.told is None else report_since(process.told, report))
        process.told = report

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def goodbye(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.processes))
        process.leases.drop_all()
        self.processes.remove(process)
        self._up(process, Goodbye())

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), seen=st.booleans())
    def kill(self, data: st.DataObject, seen: bool) -> None:
        """All processes of a member die; sometimes their parent tells."""
        name = data.draw(st.sampled_from(self.processes)).member
        self.processes = [process for process in self.processes if process.member != name]
        if seen:
            self._handle(self.newest, MemberEnded(self.time + self.newest.offset, name))

    def _up(self, process: Process, message: ToPlanner) -> None:
        self.up.append((process, process.planner, process.peer, message))

    # -- the network -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.up)
    @rule(data=st.data(), crash_after=st.sampled_from((0, 1, 2, inf, inf, inf)))
    def deliver_up(self, data: st.DataObject, crash_after: float) -> None:
        _, planner, peer, message = self.up.pop(data.draw(st.integers(0, len(self.up) - 1)))
        if planner not in self.planners:
            return
        now = self.time + planner.offset
        event: Event
        match message:
            case Hello():
                event = HelloReceived(now, peer, message)
            case NodeReport():
                event = ReportReceived(now, peer, message)
            case _:
                event = GoodbyeReceived(now, peer)
        self._handle(planner, event, crash_after=crash_after)
        if crash_after is not inf:
            self._crash(planner)

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def deliver_down(self, data: st.DataObject) -> None:
        self._arrive(*self.down.pop(data.draw(st.integers(0, len(self.down) - 1))))

    @rule()
    def all_is_lost(self) -> None:
        self.up, self.down = [], []

    @rule(seconds=waits)
    def time_passes(self, seconds: float) -> None:
        self._pass_time(seconds)

    def _pass_time(self, seconds: float) -> None:
        self.time += seconds
        for planner in self.planners:
            self._handle(planner, Tick(self.time + planner.offset))

    # -- what happens most of the time; without it few lives would ever see a lease ----------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        offset=offsets,
        another=st.booleans(),
        seconds=lease_times,
        crash_after=st.sampled_from((inf, inf, inf, 1)),
    )
    def a_round_goes_well(self, name: str, offset: float, another: bool, seconds: float, crash_after: float) -> None:
        """Hello, plan, report, grant; ``another``: by a new process, with the old one still running."""
        process = next((p for p in reversed(self.processes) if p.member == name), None)
        if process is None or another:
            self.start_process(name, offset)
            process = self.processes[-1]
        if self.time >= self.newest.leads_until:
            self.renew_lead()
        if self.newest.ledger.revision.n == 0 or seconds != self.lease_seconds[UIDS[0]]:
            self.lease_seconds = dict.fromkeys(UIDS, seconds)
            self._issue()
        self._dial(process)
        *_, hello = self.up.pop()
        assert isinstance(hello, Hello)
        self._handle(self.newest, HelloReceived(self.time + self.newest.offset, process.peer, hello))
        self._deliver_all(process)
        self._renew(process, crash_after=crash_after)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def a_plan_arrives(self, data: st.DataObject) -> None:
        self._deliver_all(data.draw(st.sampled_from(self.processes)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), crash_after=st.sampled_from((1, inf, inf)))
    def a_renewal_without_a_plan(self, data: st.DataObject, crash_after: float) -> None:
        """Reports what it enforces, however old, and gets what the planner grants on that."""
        self._renew(data.draw(st.sampled_from(self.processes)), crash_after=crash_after)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), seconds=lease_times, wait=waits)
    def a_member_deaf_to_plans_hangs_on(self, data: st.DataObject, seconds: float, wait: float) -> None:
        process = data.draw(st.sampled_from(self.processes))
        for _ in range(3):
            self._renew(process)
            self._pass_time(min(wait, 1.5))
        self.lease_seconds = dict.fromkeys(UIDS, seconds)
        self._issue()
        self._renew(process)
        self._raise_fence(UIDS[0])
        self._issue()
        self._pass_time(wait)

    def _renew(self, process: Process, *, crash_after: float = inf) -> None:
        planner = process.planner
        if planner not in self.planners:
            return
        self.report_of(process)
        *_, report = self.up.pop()
        assert isinstance(report, NodeReport)
        event = ReportReceived(self.time + planner.offset, process.peer, report)
        self._handle(planner, event, crash_after=crash_after)
        for _, message in [sent for sent in self.down if sent[0] is process and isinstance(sent[1], LeaseGrant)]:
            self._arrive(process, message)
        if crash_after is not inf:
            self._crash(planner)

    def _deliver_all(self, process: Process) -> None:
        mine = [message for receiver, message in self.down if receiver is process]
        self.down = [sent for sent in self.down if sent[0] is not process]
        for message in mine:
            self._arrive(process, message)

    def _arrive(self, process: Process, message: PlanFor | LeaseGrant) -> None:
        if isinstance(message, LeaseGrant):
            if message.revision.term >= process.applied.term:
                process.leases.granted(message)
        elif message.revision > process.applied:
            process.applied, process.enforced = message.revision, dict(message.fences)

    def _crash(self, planner: Planner) -> None:
        self.planners.remove(planner)
        if planner.term == self.terms:
            self.time = max(self.time, planner.leads_until)
            self._start_planner(planner.offset)
            self._issue()

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def i3_complete_means_that_nobody_can_read_older(self) -> None:
        for uid in UIDS:
            invalidation = self.newest.ledger.invalidation(uid)
            if invalidation is not None and invalidation.complete and invalidation.fence is not None:
                self.completed[uid] = invalidation.fence
            for process in self.processes:
                if process.leases.valid(uid, self.time + process.offset):
                    assert process.enforced[uid].covers(self.completed[uid])

    @invariant()
    def i3_every_valid_lease_is_on_record(self) -> None:
        recorded = {(record.uid, record.member, record.boot) for kept in self.durable.values() for record in kept}
        for process in self.processes:
            for uid in UIDS:
                if process.leases.valid(uid, self.time + process.offset):
                    assert (uid, process.member, process.boot) in recorded


Fleet.TestCase.settings = settings(max_examples=500, stateful_step_count=50, deadline=None)
TestMemberLedgerLives = Fleet.TestCase
