"""A planner and members over real sockets on loopback, answered from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import zmq
import zmq.asyncio

from kvgrove_link.bodies import answer, body_digest
from kvgrove_link.clock import boottime
from kvgrove_link.frames import new_boot_id
from kvgrove_link.leases import LeaseTable
from kvgrove_link.link_keys import LinkKeys
from kvgrove_link.member import MemberLink
from kvgrove_link.pacing import Pacing
from kvgrove_link.planner import PlannerSocket
from kvgrove_protocol.control import (
    NO_REVISION,
    BodyRequest,
    Hello,
    LeaseGrant,
    NamespacePlan,
    NodePlan,
    NodeReport,
    Refused,
    Revision,
    ToPlanner,
)
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

PACING = Pacing(first_backoff=0.01, longest_backoff=0.05, hello_timeout=2.0, idle_report_interval=0.1)
BODY = b"the handbook"


def node_plan(n: int, *, term: int = 1, lease_seconds: float = 0.3) -> NodePlan:
    namespace = NamespacePlan(
        uid="u1",
        name="team/a",
        model="m",
        purge=Purge(1, b"n"),
        fence=Fence(1, n, 1),
        lease_seconds=lease_seconds,
    )
    return NodePlan(revision=Revision(term=term, n=n), namespaces=[namespace])


class Planner:
    """Answers as a planner does, from a script of its own."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str = "tcp://127.0.0.1:*",
        *,
        term: int = 1,
        keys: LinkKeys | None = None,
    ) -> None:
        self.socket = PlannerSocket(context, address, term=term, keys=keys)
        self.plan: NodePlan | None = node_plan(1, term=term)
        self.grants = True
        self.refuse: str | None = None
        self.bodies = {body_digest(BODY): BODY}
        self.heard: list[ToPlanner] = []
        self.peers: list[bytes] = []
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.socket.close()

    async def _serve(self) -> None:
        while True:
            peer, message = await self.socket.receive()
            self.heard.append(message)
            if isinstance(message, Hello):
                self.peers.append(peer)
                if self.refuse is not None:
                    await self.socket.send(peer, Refused(code=self.refuse, message="because"))
                elif self.plan is not None:
                    await self.socket.send(peer, self.plan)
            elif isinstance(message, NodeReport) and self.grants:
                revision = self.plan.revision if self.plan else Revision(term=self.socket.term, n=0)
                seconds = {"u1": 60.0} if self.plan else {}
                await self.socket.send(
                    peer, LeaseGrant(report_id=message.report_id, revision=revision, seconds=seconds)
                )
            elif isinstance(message, BodyRequest):
                await self.socket.send(peer, answer(message, self.bodies))


class Member:
    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str,
        *,
        pacing: Pacing = PACING,
        on_plan: Callable[[NodePlan], Awaitable[None] | None] | None = None,
        keys: LinkKeys | None = None,
        role: str = "daemon",
    ) -> None:
        self.boot = new_boot_id()
        self.plans: list[NodePlan] = []
        self.leases = LeaseTable()
        self.link = MemberLink(
            context,
            address,
            lambda: Hello(member="node-0", role=role, boot=self.boot),
            on_plan=on_plan if on_plan is not None else self.plans.append,
            report=lambda report_id: NodeReport(report_id=report_id, applied=self.applied),
            leases=self.leases,
            random=Random(1),
            pacing=pacing,
            keys=keys,
        )
        self.task = asyncio.create_task(self.link.run())

    @property
    def applied(self) -> Revision:
        return self.plans[-1].revision if self.plans else NO_REVISION

    @property
    def leased(self) -> bool:
        return self.leases.valid("u1", boottime())


@asynccontextmanager
async def linked(context: zmq.asyncio.Context) -> AsyncIterator[tuple[Planner, Member]]:
    """A planner and a member that dials it; both are ended in order where nothing went wrong."""
    planner = Planner(context)
    member = Member(context, planner.socket.address)
    yield planner, member
    await member.link.close()
    await planner.stop()


async def bound(context: zmq.asyncio.Context, address: str, *, term: int, keys: LinkKeys | None = None) -> Planner:
    """A planner on an address that another one has just left: libzmq frees it in the background."""
    async with asyncio.timeout(20):
        while True:
            try:
                return Planner(context, address, term=term, keys=keys)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise
                await asyncio.sleep(0.005)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


def over_loopback(test: Callable[[zmq.asyncio.Context], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an async test with a context of its own, whose sockets must all be closed at the end."""

    def run() -> None:
        async def main() -> None:
            with zmq.asyncio.Context() as context:
                await test(context)

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
