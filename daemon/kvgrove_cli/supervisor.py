"""The planner of an embedded fleet: the operator's place on the control link, without a cluster.

It decides nothing itself. What is planned comes from `kvgrove_operator.plan`, who gets leases and who has confirmed
what from `kvgrove_operator.members`: the code that the operator runs. This is the shell around them: one event at a
time, the effects of each carried out in order, and every fact durable before anyone is told of it. It leads for as
long as it holds the lock of the state directory.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import uuid4

import msgspec
import zmq.asyncio

from kvgrove_cli.durable import Unwritable
from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.manifests import Resources, identity
from kvgrove_cli.sources import Found, find_files
from kvgrove_cli.state_dir import FleetState, StateDir
from kvgrove_cli.status import ErasureStatus, InvalidationStatus, Problem
from kvgrove_cli.view import Nodes, View, erasure_status, model_status, namespace_status, removed_status
from kvgrove_link.bodies import answer
from kvgrove_link.clock import boottime
from kvgrove_link.link_keys import LinkKeys
from kvgrove_link.planner import PlannerSocket
from kvgrove_operator.evidence import WHOLE
from kvgrove_operator.member_events import (
    Effect,
    Event,
    GoodbyeReceived,
    HelloReceived,
    Leading,
    MemberEnded,
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
from kvgrove_operator.plan import Desired, Mint, Observed, Planned, observe, plan
from kvgrove_operator.plan_post import PlanPost
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.rollout.facts import RolloutState
from kvgrove_protocol.control import DAEMON, GATEWAY, BodyRequest, Goodbye, Hello, NodeReport, Revision, ToPlanner

_TICK_SECONDS = 0.25
_SAVE_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Link:
    """A member as the link knows it."""

    connected: bool = False
    address: str = ""
    boot: str = ""
    applied: str = "0.0"


class Supervisor:
    """Owns the planner's socket and the durable state. All methods belong to one event loop."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        state_dir: StateDir,
        *,
        changed: Callable[[], None],
        clock: Callable[[], float] = boottime,
        wall_clock: Callable[[], float] = time.time,
        mint: Mint = SYSTEM_MINT,
        new_uid: Callable[[], str] = lambda: str(uuid4()),
        keys: LinkKeys | None = None,
    ) -> None:
        """Raises the term durably, then binds a free loopback port. ``state_dir`` must be locked by this process."""
        stored = state_dir.load()
        self._state = msgspec.structs.replace(stored, term=stored.term + 1)
        state_dir.save(self._state)
        self._state_dir = state_dir
        self._changed, self._clock, self._wall_clock, self._new_uid = changed, clock, wall_clock, new_uid
        self._mint = mint
        self._socket = PlannerSocket(context, "tcp://127.0.0.1:*", term=self._state.term, keys=keys)
        records = [record for records in stored.members.values() for record in records]
        self._ledger = MemberLedger(self._state.term, clock(), records)
        self._ledger.step(Leading(now=clock(), until=math.inf))  # the lock is held for as long as this process lives
        self._resources = Resources()
        self._desired = Desired()
        self._unsourced: dict[str, str] = {}
        self._observed = Observed()
        self._planned: Planned | None = None
        self._post = PlanPost()
        self._turn = asyncio.Lock()
        self._unwritable = ""

    @property
    def address(self) -> str:
        """Where members dial."""
        return self._socket.address

    @property
    def peers_refused(self) -> dict[str, int]:
        """Peers that did not get into the fleet link, by reason."""
        return dict(self._socket.counters.refused)

    def close(self) -> None:
        self._socket.close()

    # -- what happens --------------------------------------------------------------------------------------------------

    async def apply(self, resources: Resources) -> None:
        """Plan ``resources`` from now on; on return the plan is durable and on its way to every member."""
        async with self._turn:
            self._resources = resources
            await self._save(self._with_uids(resources))
            self._desire(await asyncio.to_thread(find_files, resources))
            await self._plan(self._observe())
        self._changed()

    async def member_ended(self, name: str) -> None:
        """The process of this member has been reaped: nothing of it holds a lease any more."""
        async with self._turn:
            await self._step(MemberEnded(self._clock(), name))
            await self._replan()
        self._changed()

    async def serve(self) -> None:
        """Answer members for ever. Raises FleetProblem where another planner has taken over."""
        while True:
            peer, message = await self._socket.receive()
            async with self._turn:
                await self._take(peer, message)
            self._changed()

    async def _take(self, peer: bytes, message: ToPlanner) -> None:
        now = self._clock()
        match message:
            case Hello():
                await self._step(HelloReceived(now, peer, message))
                await self._replan()
            case NodeReport():
                await self._step(ReportReceived(now, peer, message))
                await self._replan()
            case Goodbye():
                await self._step(GoodbyeReceived(now, peer))
                await self._replan()
            case BodyRequest():
                known = any(view.peer == peer for view in self._ledger.members)
                if known and self._planned is not None:
                    await self._socket.send(peer, answer(message, self._planned.bodies))

    async def keep_time(self) -> None:
        """Draw the consequences of time for ever: leases that end, members that fell silent."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            async with self._turn:
                await self._step(Tick(self._clock()))
                await self._replan()
            self._changed()

    async def _step(self, event: Event) -> None:
        for effect in self._ledger.step(event):
            await self._carry_out(effect)

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Persist(member=member, records=records):
                members = {name: kept for name, kept in self._state.members.items() if name != member}
                if records:
                    members[member] = list(records)
                await self._save(msgspec.structs.replace(self._state, members=members))
            case Send(peer=peer, message=message):
                await self._socket.send(peer, message)
            case SendPlan():
                await self._send_plan(effect)
            case Outranked(term=term):
                raise FleetProblem(
                    f"a member follows a planner of term {term}, this one has {self._state.term}: "
                    f"is {self._state_dir.path} a copy or a backup? stop the other fleet, or move the directory away"
                )

    async def _save(self, state: FleetState) -> None:
        """The loop goes on meanwhile, the turn does not: what rests on ``state`` is sent when it is durable.

        A full disk is waited for, visibly: members serve on, and without their leases in time they serve cold. Only a
        fleet that has no plan yet gives up at once: Unwritable.
        """
        while True:
            try:
                await asyncio.to_thread(self._state_dir.save, state)
                break
            except Unwritable as problem:
                if self._planned is None:
                    raise
                if not self._unwritable:
                    self._unwritable = problem.message
                    self._changed()
                await asyncio.sleep(_SAVE_AGAIN_SECONDS)
        self._state, self._unwritable = state, ""

    async def _send_plan(self, effect: SendPlan) -> None:
        if self._planned is not None:
            await self._socket.send_encoded(effect.peer, self._post.letter(self._planned, effect))

    # -- planning ------------------------------------------------------------------------------------------------------

    async def _replan(self) -> None:
        """Plan again if the fleet reports something that plans depend on, or something that waited is due."""
        if self._planned is None:
            return
        observed, due = self._observe(), self._planned.due
        if observed != self._observed or (due is not None and due <= self._wall_clock()):
            await self._plan(observed)

    async def _plan(self, observed: Observed) -> None:
        before, self._observed = self._planned, observed
        kept = before.bodies if before is not None else {}
        planned = plan(self._desired, self._state.plan, observed, mint=self._mint, now=self._wall_clock(), kept=kept)
        if planned.state != self._state.plan:
            await self._save(msgspec.structs.replace(self._state, plan=planned.state))
        self._planned = planned
        if before is None or not planned.same_plan(before):
            await self._step(PlanIssued(self._clock(), planned.issued()))

    def _observe(self) -> Observed:
        plan = self._state.plan
        erased = [uid for uid in plan.removed if self._ledger.erased(uid)]
        proofs = self._ledger.complete_proofs(uid for uid, held in plan.namespaces.items() if held.erasures)
        return observe(self._ledger.members, erased, proofs)

    def _with_uids(self, resources: Resources) -> FleetState:
        """A UID for each name that is new; a name that is gone loses its own, so that one of that name is another."""
        known = self._state.uids
        uids = {item.api_name: known.get(item.api_name) or self._new_uid() for item in resources.namespaces}
        return msgspec.structs.replace(self._state, uids=uids)

    def _desire(self, found: Found) -> None:
        self._unsourced = found.problems
        namespaces = tuple(
            item.model_copy(
                update={"metadata": item.metadata.model_copy(update={"uid": self._state.uids[item.api_name]})}
            )
            for item in self._resources.namespaces
        )
        self._desired = Desired(found.models, namespaces)

    # -- what people ask -----------------------------------------------------------------------------------------------

    def link(self, name: str) -> Link:
        """How the member of this name is connected."""
        view = next((view for view in self._ledger.members if view.hello.member == name), None)
        if view is None:
            return Link()
        return Link(True, view.hello.address, view.hello.boot, _text(view.applied))

    def view(self, nodes: Collection[str]) -> View:
        """The state of everything planned. ``nodes``: the daemons that should be there."""
        heard = {view.hello.member: view.report for view in self._ledger.members}
        reports = Nodes({node: heard.get(node) for node in nodes})
        planned = self._planned
        models = {item.name: item for item in planned.models} if planned is not None else {}
        namespaces = {item.uid: item for item in planned.namespaces} if planned is not None else {}
        unwritable = [self._unwritable] if self._unwritable else []
        problems = [
            *(Problem(object="state", reason="Unwritable", message=text) for text in unwritable),
            *(Problem(object=name, reason="SourceMissing", message=text) for name, text in self._unsourced.items()),
            *(
                Problem(object=found.object, reason=found.reason, message=found.message)
                for found in (planned.problems if planned is not None else ())
            ),
        ]
        said = {problem.object: problem.message for problem in reversed(problems)}
        return View(
            revision=_text(self._ledger.revision),
            in_force={role: _text(self._ledger.in_force(role)) for role in (DAEMON, GATEWAY)},
            models=[
                model_status(item, models.get(item.name), reports, said.get(identity(item), ""))
                for item in self._resources.models
            ],
            namespaces=[
                namespace_status(
                    item,
                    uid,
                    plan=namespaces.get(uid),
                    models=models,
                    nodes=reports,
                    invalidation=self._invalidation(uid),
                    erasures=self._erasures(uid),
                    rollout=self._rollout(uid),
                    problem=said.get(identity(item), ""),
                )
                for item in self._resources.namespaces
                if (uid := self._state.uids.get(item.api_name, ""))
            ],
            problems=problems,
            removed=[
                removed_status(held.name, uid, self._ledger.proofs(uid).get(WHOLE, Proof()))
                for uid, held in self._state.plan.removed.items()
            ],
        )

    def _rollout(self, uid: str) -> RolloutState:
        held = self._state.plan.namespaces.get(uid)
        return (held.rollout if held is not None else None) or RolloutState()

    def _erasures(self, uid: str) -> list[ErasureStatus]:
        held, proofs = self._state.plan.namespaces.get(uid), self._ledger.proofs(uid)
        if held is None:
            return []
        return [erasure_status(each, proofs.get(each.plan.id, Proof())) for each in held.erasures]

    def _invalidation(self, uid: str) -> InvalidationStatus:
        found = self._ledger.invalidation(uid)
        if found is None:
            return InvalidationStatus(confirmed=0, expired=0, gone=0, pending=0)
        return InvalidationStatus(
            confirmed=found.confirmed, expired=found.expired, gone=found.gone, pending=found.pending
        )


def _text(revision: Revision) -> str:
    return f"{revision.term}.{revision.n}"
