"""The operator's end of the fleet link: the shell around planning and around the ledger of members.

One event at a time, the effects of each carried out in order, and every fact durable before anyone is told what rests
on it; one planning at a time, beside the events. It decides nothing itself, and knows nothing of how objects are
watched or statuses written. Whoever needs to look at an object again because of what happened here is told its key.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from kvgrove_link.bodies import answer
from kvgrove_link.clock import boottime
from kvgrove_link.planner import PlannerCounters, PlannerSocket
from kvgrove_operator import notices
from kvgrove_operator.cache_nodes import Fleetwide
from kvgrove_operator.fault_points import FaultPoint, passing
from kvgrove_operator.fleet_facts import FleetFacts
from kvgrove_operator.fleet_memory import FleetCounters, Memory, Outdated, with_fences
from kvgrove_operator.keys import Key, Kind
from kvgrove_operator.kube import Forbidden, Unavailable
from kvgrove_operator.lanes import Lanes
from kvgrove_operator.member_events import (
    Effect,
    Event,
    GoodbyeReceived,
    HelloReceived,
    Leading,
    MemberGone,
    Outranked,
    Persist,
    PlanIssued,
    ReportReceived,
    Send,
    SendPlan,
    Tick,
)
from kvgrove_operator.members import MemberLedger
from kvgrove_operator.mint import SYSTEM_MINT
from kvgrove_operator.node_book import NodeBook
from kvgrove_operator.notices import Notices
from kvgrove_operator.observed import Observer
from kvgrove_operator.plan import Desired, Mint, Observed, plan
from kvgrove_operator.plan_memo import PlanMemo
from kvgrove_operator.plan_post import PlanPost
from kvgrove_operator.records import Records, fleetwide
from kvgrove_operator.store import Store
from kvgrove_protocol.control import (
    BodyRequest,
    Goodbye,
    Hello,
    LeaseGrant,
    NodeReport,
    ToPlanner,
)
from kvgrove_protocol.fence import Fence

log = logging.getLogger("kvgrove_operator")

_TICK_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
_LONGEST_LULL, _LOOKS_PER_SECOND = 2.0, 500
_LONGEST_PATIENCE, _HOLDERS_PER_SECOND = 120.0, 800
_PLANNING_SHARE = 0.25
"""Of the time, at most, goes into plans that follow what members report: many reports are one look."""


class Changed(Protocol):
    """Is told that an object looks different, and when that is soon enough to be looked at."""

    def __call__(self, key: Key, *, delay: float = 0.0) -> None: ...


class Fleet(FleetFacts):
    """Owns the planner's socket. All methods belong to one event loop."""

    def __init__(
        self,
        socket: PlannerSocket,
        *,
        term: int,
        memory: Memory,
        store: Store,
        book: NodeBook,
        changed: Changed,
        clock: Callable[[], float] = boottime,
        wall_clock: Callable[[], float] = time.time,
        mint: Mint = SYSTEM_MINT,
    ) -> None:
        """``socket`` is this object's to close. ``term`` is durable and above every earlier one."""
        ledger = MemberLedger(term, clock(), memory.records())
        super().__init__(ledger, memory.plan, Records(book, memory.nodes))
        self.counters = FleetCounters()
        self._socket = socket
        self._recorded_fences = memory.fences()
        self._seen: Mapping[str, Fence] = {}
        self._notices = Notices()
        self._store, self._changed = store, changed
        self._lanes = Lanes(self._record)
        self._clock, self._wall_clock, self._mint = clock, wall_clock, mint
        self._until = float("-inf")
        self._observed = Observed()
        self._post, self._memo = PlanPost(), PlanMemo()
        self._observer, self._news = Observer(), asyncio.Event()
        self._present: Collection[str] = ()
        self._moved = False
        self._turn, self._planning = asyncio.Lock(), asyncio.Lock()

    @property
    def address(self) -> str:
        """Where members dial, with the port that was chosen."""
        return self._socket.address

    @property
    def link_counters(self) -> PlannerCounters:
        """What happened on the fleet link."""
        return self._socket.counters

    def close(self) -> None:
        self._socket.close()

    # -- what happens --------------------------------------------------------------------------------------------------

    async def lead(self, until: float) -> None:
        """This process leads until ``until`` (CLOCK_BOOTTIME)."""
        self._until = until
        self._ledger.step(Leading(self._clock(), until))  # asks for no effect, so it need not wait for its turn

    async def apply(self, desired: Desired, seen: Mapping[str, Fence], present: Collection[str]) -> None:
        """Plan ``desired`` from now on; on return the plan is durable and on its way to every member.

        ``seen``: namespace UID -> counters that are on record elsewhere (in statuses), and are gone above.
        ``present``: UIDs of all namespaces that have an object, also those that are being deleted: what is on record of
        them stays until the object has told people how its erasure ended.
        """
        async with self._planning:
            self._seen, self._present = seen, frozenset(present)
            await self._plan(desired, self._observe())

    async def member_gone(self, member: str) -> None:
        """What the member ran on is not there any more."""
        async with self._turn:
            await self._step(MemberGone(self._clock(), member))

    async def serve(self) -> None:
        """Answer members for ever. Raises Outdated where a later planner has taken over."""
        while True:
            peer, message = await self._socket.receive()
            async with self._turn:
                await self._take(peer, message)

    async def keep_records(self) -> None:
        """Put on record for ever what grants wait for. Raises StoreTaken where another writes the records."""
        await self._lanes.run()

    async def keep_time(self) -> None:
        """Draw the consequences of time for ever: leases that end, members that fall silent, texts that are due."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            async with self._turn:
                before = {view.hello.member for view in self._ledger.members}
                await self._step(Tick(self._clock()))
                for member in before - {view.hello.member for view in self._ledger.members}:
                    self._tell_of(member)
                self._tell(self._notices.invalidations(self._ledger, self._state))
                if self._moved:  # a hundred members that come at once are one look at everything
                    self._moved = False
                    self._tell(notices.everything(self._state, self._desired))
            self._news.set()

    async def keep_planning(self) -> None:
        """Plan again for ever where the fleet says something that plans depend on, and for no more than a share of the
        time: a hundred members that report at once are one look.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            began = self._clock()
            async with self._planning:
                await self._replan()
            await asyncio.sleep((self._clock() - began) * (1 / _PLANNING_SHARE - 1))

    async def _take(self, peer: bytes, message: ToPlanner) -> None:
        now = self._clock()
        kind = type(message).__name__
        self.counters.messages[kind] = self.counters.messages.get(kind, 0) + 1
        match message:
            case Hello(member=member):
                self._records.met(member, message.role)
                await self._step(HelloReceived(now, peer, message))
                self._tell_of(member)
                self._news.set()
            case NodeReport():
                await self._step(ReportReceived(now, peer, message))
                self._reported(peer, message.report_id)
            case Goodbye():
                gone = self._ledger.view_of(peer)
                await self._step(GoodbyeReceived(now, peer))
                if gone is not None:
                    self._tell_of(gone.hello.member)
                self._news.set()
            case BodyRequest():
                if self._ledger.view_of(peer) is not None and self._planned is not None:
                    await self._socket.send(peer, answer(message, self._planned.bodies))

    def _reported(self, peer: bytes, report_id: int) -> None:
        view = self._ledger.view_of(peer)
        if view is None or view.report is None or view.report.report_id != report_id:
            return
        keys = self._notices.report(view.hello.member, view.report, self._state, self._desired)
        for key in keys:
            self._changed(key, delay=self._patience() if key.kind is Kind.NODE else 0.0)
        if keys:
            self._news.set()

    async def _step(self, event: Event) -> None:
        for effect in self._ledger.step(event):
            await self._carry_out(effect)

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Persist(member=member):
                self._lanes.record(member)
            case Send(peer=peer, message=LeaseGrant() as grant):
                view = self._ledger.view_of(peer)
                if view is not None:
                    await self._lanes.deliver(view.hello.member, lambda: self._send_grant(peer, grant))
            case Send(peer=peer, message=message):
                await self._socket.send(peer, message)
            case SendPlan():
                await self._send_plan(effect)
            case Outranked(term=term):
                raise Outdated(term)

    async def _record(self, member: str) -> None:
        self.counters.persists += 1
        passing(FaultPoint.RECORD_TO_WRITE)
        await self._durable(lambda: self._records.write(member, self._ledger, self._around()))
        passing(FaultPoint.RECORD_WRITTEN)

    async def _send_grant(self, peer: bytes, grant: LeaseGrant) -> None:
        if self._clock() < self._until:  # else it became durable too late: another may lead who has not read it
            await self._socket.send(peer, grant)

    async def _send_plan(self, effect: SendPlan) -> None:
        if self._planned is not None:
            await self._socket.send_encoded(effect.peer, self._post.letter(self._planned, effect))

    async def _durable(self, write: Callable[[], Awaitable[None]]) -> None:
        """Waits for an API server that is away: what rests on the fact is not sent before it is durable.

        Members serve on meanwhile, and cold once their leases have run out.
        """
        while True:
            try:
                await write()
            except (Unavailable, Forbidden) as error:  # one that has just started knows no roles for a moment
                self.counters.waits += 1
                log.warning("nothing goes to members until it is on record: %s", error.message)
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    # -- planning ------------------------------------------------------------------------------------------------------

    async def _replan(self) -> None:
        """Plan again if the fleet reports something that plans depend on, or something that waited is due."""
        if self._planned is None:
            return
        observed, due = self._observe(), self._planned.due
        if observed != self._observed or (due is not None and due <= self._wall_clock()):
            await self._plan(self._desired, observed)

    async def _plan(self, desired: Desired, observed: Observed) -> None:
        """The fleet goes on under the plan before, and gets its grants, while what is next becomes durable."""
        before, self._observed = self._planned, observed
        kept = before.bodies if before is not None else {}
        planned = plan(
            desired, self._state, observed, mint=self._mint, now=self._wall_clock(), kept=kept, memo=self._memo
        )
        if planned.state != self._state:
            passing(FaultPoint.STATE_TO_SAVE)
            await self._durable(lambda: self._store.save(planned.state))
            self._state = planned.state
            passing(FaultPoint.STATE_SAVED)
        async with self._turn:
            self._desired, self._planned = desired, planned
            self._resources = {each.metadata.uid or "": each for each in desired.namespaces}
            self._plans = {each.uid: each for each in planned.namespaces}
            if before is None or not planned.same_plan(before):
                self.counters.plans += 1
                await self._step(PlanIssued(self._clock(), planned.issued()))
                passing(FaultPoint.PLAN_SENT)
        self._tell(notices.plan(before, planned, desired))

    def _observe(self) -> Observed:
        erased = [uid for uid in self._state.removed if uid not in self._present and self._ledger.erased(uid)]
        proofs = self._ledger.complete_proofs(uid for uid, held in self._state.namespaces.items() if held.erasures)
        observed = self._observer.observe(self._ledger.members, erased, proofs)
        return with_fences(observed, self._recorded_fences, self._seen)

    def _patience(self) -> float:
        """Seconds before a member's news goes on record, where nothing rests on it.

        A CacheNode tells all that its member holds: in a large fleet a purge would write all of it a hundred times.
        """
        return min(_LONGEST_PATIENCE, len(self._state.namespaces) * len(self._ledger.members) / _HOLDERS_PER_SECOND)

    def _tell(self, keys: Iterable[Key]) -> None:
        """Of many namespaces at once it is soon enough to look when no more is heard for a moment."""
        told = [*keys]
        delay = min(_LONGEST_LULL, len(told) / _LOOKS_PER_SECOND)
        for key in told:
            self._changed(key, delay=delay if key.kind is Kind.NAMESPACE else 0.0)

    def _tell_of(self, member: str) -> None:
        self._moved = True
        self._tell(self._notices.member(member))

    # -- CacheNodes ----------------------------------------------------------------------------------------------------

    async def write_node(self, member: str) -> None:
        """Bring the member's CacheNode up to date, if that tells anybody anything. The fleet goes on meanwhile."""
        await self._records.refresh(member, self._ledger, self._around())

    async def forget_node(self, member: str) -> bool:
        """Delete the CacheNode of a member that is not there and holds nothing; whether that was so."""
        return await self._records.forget(member, self._ledger)

    def _around(self) -> Fleetwide:
        models = self._planned.models if self._planned is not None else ()
        return fleetwide(self._state, models, self._ledger, datetime.fromtimestamp(self._wall_clock(), UTC))
