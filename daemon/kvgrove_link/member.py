"""A member's end of the control link: dial, take plans, report, renew leases; for ever.

Plans are levels: only the newest is kept for applying, one of an older revision is ignored, as is a grant of an older
term. Applying runs beside the receiving, so that a slow application costs no lease. The member reports at a third of
its shortest lease, after each applied plan, and when told that something changed.
It must not know what plans and reports mean: the callbacks do.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from inspect import isawaitable
from random import Random
from typing import TypeVar

import zmq.asyncio
from msgspec.structs import replace

from kvgrove_link.bodies import MAX_DIGESTS, accept
from kvgrove_link.clock import boottime
from kvgrove_link.connection import Connection, LinkCounters
from kvgrove_link.errors import FetchTimeout, LinkLost, Superseded
from kvgrove_link.leases import LeaseTable
from kvgrove_link.link_keys import LinkKeys
from kvgrove_link.pacing import SILENT_INTERVALS, Pacing
from kvgrove_protocol.changes import KEPT_PLANS, plan_with, report_since
from kvgrove_protocol.control import (
    NO_REVISION,
    Bodies,
    BodyRequest,
    Hello,
    LeaseGrant,
    NodePlan,
    NodeReport,
    PlanChanges,
    Revision,
)
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger(__name__)

E = TypeVar("E", bound=BaseException)


class MemberLink:
    """The control link of one member in one boot. All methods but `report_soon` belong to the loop that runs it.

    ``on_plan`` gets each newer plan, one at a time; while it runs, newer plans replace each other. Where it raises a
    KvgroveError the plan counts as failed and its fault belongs into the next report; any other error ends `run`.
    ``report`` makes the report of that id, at once.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str,
        hello: Callable[[], Hello],
        *,
        on_plan: Callable[[NodePlan], Awaitable[None] | None],
        report: Callable[[int], NodeReport],
        leases: LeaseTable,
        clock: Callable[[], float] = boottime,
        random: Random | None = None,
        min_report_interval: float = 0.05,
        pacing: Pacing | None = None,
        keys: LinkKeys | None = None,
    ) -> None:
        """``keys``: None for a link in the clear."""
        self.counters = LinkCounters()
        self._context = context
        self._address = address
        self._keys = keys
        self._hello = hello
        self._on_plan = on_plan
        self._report = report
        self._leases = leases
        self._random = random if random is not None else Random()  # noqa: S311 - spreads waits, keeps no secret
        self._clock = clock
        self._min_report_interval = min_report_interval
        self._pacing = pacing if pacing is not None else Pacing()
        self._plan: NodePlan | None = None
        self._known: OrderedDict[Revision, NodePlan] = OrderedDict()
        self._plan_wanted = False
        self._settled = NO_REVISION
        self._term = 0
        self._report_id = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._plan_arrived = asyncio.Event()
        self._report_wanted = asyncio.Event()
        self._connected = asyncio.Event()
        self._connection: Connection | None = None
        self._fetching = asyncio.Lock()
        self._reply: asyncio.Future[Bodies] | None = None
        self._closing = asyncio.Event()
        self._finished = asyncio.Event()
        self._finished.set()

    @property
    def connected(self) -> bool:
        """Whether a planner has welcomed this member and not gone silent since."""
        return self._connected.is_set()

    @property
    def revision(self) -> Revision:
        """The newest revision received."""
        return self._plan.revision if self._plan is not None else NO_REVISION

    async def run(self) -> None:
        """Keep the link up until `close`. Raises Superseded when this boot has been replaced."""
        self._loop = asyncio.get_running_loop()
        self._finished.clear()
        applying = asyncio.create_task(self._apply_plans())
        dialling = asyncio.create_task(self._keep_dialling())
        try:
            done, _ = await asyncio.wait({applying, dialling}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (applying, dialling):
                task.cancel()
            await asyncio.gather(applying, dialling, return_exceptions=True)
            self._leases.drop_all()
            self._finished.set()

    def report_soon(self) -> None:
        """Report as soon as the smallest interval allows. From any thread; many calls make one report."""
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._report_wanted.set)

    async def fetch(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Bodies by digest, each checked against it; what the planner does not know is left out.

        Waits through reconnections; raises FetchTimeout after the pacing's ``fetch_timeout``.
        """
        missing = set(digests)
        found: dict[bytes, bytes] = {}
        try:
            async with asyncio.timeout(self._pacing.fetch_timeout), self._fetching:
                while missing:
                    got = accept(await self._ask(sorted(missing)), missing)
                    found |= got
                    missing -= got.keys()
                    if not got:
                        break
        except TimeoutError:
            if self._connection is not None:  # a late reply must not be taken for the next one's
                self._connection.fail("fetch_timeout", "no bodies in time")
            raise FetchTimeout(f"{len(missing)} bodies did not arrive in {self._pacing.fetch_timeout} s") from None
        return found

    async def close(self) -> None:
        """Give all leases up, say Goodbye and end `run`. Nothing may use this boot's leases after the call."""
        self._leases.drop_all()
        self._closing.set()
        if self._connection is not None:
            self._connection.fail("closing", "closed on purpose")
        await self._finished.wait()

    # -- connections -----------------------------------------------------------------------------------------------

    async def _keep_dialling(self) -> None:
        attempt = 0
        while not self._closing.is_set():
            attempt = 0 if await self._one_connection(attempt) else attempt + 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pacing.backoff(attempt, self._random)):
                    await self._closing.wait()

    async def _one_connection(self, attempt: int) -> bool:
        """Whether it was welcomed. Raises Superseded."""
        self.counters.connections += 1
        try:
            connection = self._connection = Connection(self._context, self._address, self.counters, self._keys, attempt)
        except LinkLost as loss:
            self._count(loss)
            return False
        superseded: Superseded | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(connection.watch_transport())
                group.create_task(connection.watch_failure())
                group.create_task(self._report_for_ever(connection))
                group.create_task(self._converse(connection))
        except* LinkLost as losses:
            self._count(next(_leaves(losses)))
        except* Superseded as refusals:
            superseded = next(_leaves(refusals))
        finally:
            welcomed = self._connected.is_set()
            self._connected.clear()
            self._connection = None
            if self._reply is not None and not self._reply.done():
                self._reply.set_exception(LinkLost("the connection ended before the reply"))
            connection.close(goodbye=welcomed and self._closing.is_set())
        if superseded is not None:
            raise superseded
        return welcomed

    def _count(self, loss: LinkLost) -> None:
        self.counters.lost[loss.code] = self.counters.lost.get(loss.code, 0) + 1
        if loss.code == "keys_refused":  # somebody has to act: nothing mends itself here
            log.warning("link to the planner: %s", loss.message)

    async def _converse(self, connection: Connection) -> None:
        welcome = await connection.greet(self._hello(), self._pacing.hello_timeout)
        self._term = max(self._term, welcome.term)
        self._connected.set()
        while True:
            message = await connection.receive(lambda: SILENT_INTERVALS * self._interval())
            match message:
                case NodePlan():
                    self._take_plan(message)
                case PlanChanges():
                    self._take_changes(message)
                case LeaseGrant():
                    self._take_grant(message)
                case Bodies() if self._reply is not None and not self._reply.done():
                    self._reply.set_result(message)

    def _take_changes(self, changes: PlanChanges) -> None:
        base = self._known.get(changes.base)
        if base is not None:
            self._take_plan(plan_with(base, changes))
        else:
            self._plan_wanted = True
            self._report_wanted.set()

    def _take_plan(self, plan: NodePlan) -> None:
        if plan.revision < self.revision or plan.revision.term < self._term:
            self.counters.stale_plans += 1
        elif plan.revision != self._settled:  # the same one again: only where it could not be applied
            self._term = plan.revision.term
            self._plan = self._known[plan.revision] = plan
            while len(self._known) > KEPT_PLANS:
                self._known.popitem(last=False)
            self._plan_arrived.set()

    def _take_grant(self, grant: LeaseGrant) -> None:
        if grant.revision.term < self._term:
            self.counters.stale_grants += 1
            return
        self._leases.forget_expired(self._clock())
        self._leases.granted(grant)

    # -- what goes on beside ---------------------------------------------------------------------------------------

    async def _apply_plans(self) -> None:
        while True:
            await self._plan_arrived.wait()
            self._plan_arrived.clear()
            if (plan := self._plan) is None:
                continue
            try:
                outcome = self._on_plan(plan)
                if isawaitable(outcome):
                    await outcome
            except KvgroveError:
                self.counters.failed_plans += 1
            else:
                self._settled = plan.revision
            self._report_wanted.set()  # an applied plan is an acknowledgement somebody waits for

    async def _report_for_ever(self, connection: Connection) -> None:
        await self._connected.wait()
        before: NodeReport | None = None
        while True:
            self._report_wanted.clear()
            self._report_id += 1
            # Noted first: a deadline that counts from before the sending errs on the safe side.
            self._leases.sent(self._report_id, self._clock())
            report = self._report(self._report_id)
            sent = report if before is None else report_since(before, report)
            wanted, self._plan_wanted = self._plan_wanted, False
            await connection.send(replace(sent, plan_wanted=True) if wanted else sent)
            before = report
            self.counters.reports += 1
            await asyncio.sleep(self._min_report_interval)
            # Spread, so that members started together do not report together for ever.
            pause = self._interval() * self._random.uniform(0.9, 1.0) - self._min_report_interval
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, pause)):
                    await self._report_wanted.wait()

    async def _ask(self, digests: list[bytes]) -> Bodies:
        while True:
            await self._connected.wait()
            if (connection := self._connection) is None:
                continue
            self._reply = asyncio.get_running_loop().create_future()
            try:
                await connection.send(BodyRequest(digests=digests[:MAX_DIGESTS]))
                return await self._reply
            except LinkLost:
                continue
            finally:
                self._reply = None

    def _interval(self) -> float:
        return self._pacing.report_interval(self._plan, self._min_report_interval)


def _leaves(group: BaseExceptionGroup[E]) -> Iterator[E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
