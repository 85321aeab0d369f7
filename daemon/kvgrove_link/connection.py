"""One connection of a member to its planner, from dialling to its end.

A connection is used once: it opens with Hello / Welcome and ends with the first sign that the other side is not the
one that was greeted (a drop, silence, a refusal). Then the link makes a fresh one, so nothing of an old conversation
is ever taken for an answer in a new one. It knows frames and time-outs, not plans or leases.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from kvgrove_link.errors import LinkLost, Superseded
from kvgrove_link.frames import configure
from kvgrove_link.gatekeeper import KEYS_REFUSED, dial_with, how_it_ended, watch_end
from kvgrove_link.link_keys import OPERATOR, LinkKeys, LinkKeysUnusable
from kvgrove_protocol.control import TO_MEMBER, TO_PLANNER, Goodbye, Hello, Refused, ToMember, ToPlanner, Welcome
from kvgrove_protocol.errors import Malformed

GOODBYE_LINGER_MS = 500


@dataclass
class LinkCounters:
    """What happened on a member's link since its start; all only rise."""

    connections: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    """Ends of connections by reason: the closed list in `Connection`."""
    malformed: int = 0
    stale_plans: int = 0
    stale_grants: int = 0
    failed_plans: int = 0
    reports: int = 0


class Connection:
    """A dialled socket. Ends by raising LinkLost with one of the codes ``disconnected``, ``silent``, ``no_welcome``,
    ``version_mismatch``, ``hello_first``, ``report_lost``, ``not_leading``, ``wrong_role``, ``refused`` (for any other
    cause), ``fetch_timeout``, ``keys_refused`` (by either side), ``closing``; or by raising Superseded.
    """

    KNOWN_REFUSALS = frozenset({"version_mismatch", "hello_first", "report_lost", "not_leading", "wrong_role"})

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str,
        counters: LinkCounters,
        keys: LinkKeys | None = None,
        attempt: int = 0,
    ) -> None:
        """Dials at once (connecting goes on in the background). ``attempt``: how many failed before, one after another.

        Raises zmq.ZMQError for an address of no known form, LinkLost (``keys_refused``) where ``keys`` cannot be used.
        """
        self._socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        self._counters = counters
        configure(self._socket)
        if keys is not None:
            try:
                dial_with(self._socket, keys, OPERATOR, attempt)
            except LinkKeysUnusable as error:
                self._socket.close()
                raise LinkLost(error.message, code=KEYS_REFUSED) from None
        self._monitor = watch_end(self._socket)
        self._failure: LinkLost | None = None
        self._failed = asyncio.Event()
        try:
            self._socket.connect(address)
        except zmq.ZMQError:
            self.close(goodbye=False)
            raise

    async def greet(self, hello: Hello, within: float) -> Welcome:
        """Say Hello and wait for Welcome, at most ``within`` seconds."""
        try:
            async with asyncio.timeout(within):
                await self.send(hello)
                while True:
                    message = await self._receive()
                    if isinstance(message, Welcome):
                        return message
        except TimeoutError:
            raise LinkLost(f"no Welcome within {within} s", code="no_welcome") from None

    async def receive(self, silence: Callable[[], float]) -> ToMember:
        """The next message that makes sense. ``silence()`` seconds without one mean that the planner is gone."""
        try:
            async with asyncio.timeout(silence()):
                return await self._receive()
        except TimeoutError:
            raise LinkLost("the planner has gone silent", code="silent") from None

    async def send(self, message: ToPlanner) -> None:
        """Hand ``message`` to the transport; waits while its queue is full."""
        await self._socket.send(TO_PLANNER.encode(message))

    def fail(self, code: str, message: str) -> None:
        """End this connection from the outside: `watch` raises."""
        self._failure = LinkLost(message, code=code)
        self._failed.set()

    async def watch_failure(self) -> None:
        """Raises LinkLost once `fail` was called."""
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure

    async def watch_transport(self) -> None:
        """Raises LinkLost once the transport is gone: its own reconnection would come without a Hello."""
        code = await how_it_ended(self._monitor)
        if code == KEYS_REFUSED:
            raise LinkLost("the planner and this member do not accept each other's keys", code=code)
        raise LinkLost("the connection dropped", code=code)

    def close(self, *, goodbye: bool) -> None:
        """Free the socket; with ``goodbye`` the last message leaves in the background, within half a second."""
        if goodbye and not self._socket.closed:
            self._socket.setsockopt(zmq.LINGER, GOODBYE_LINGER_MS)
            self._socket.send(TO_PLANNER.encode(Goodbye()), zmq.DONTWAIT)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()

    async def _receive(self) -> ToMember:
        while True:
            frames = await self._socket.recv_multipart()
            try:
                if len(frames) != 1:
                    raise Malformed("frames", f"{len(frames)}, expected 1")
                message = TO_MEMBER.decode(frames[0])
            except Malformed:
                self._counters.malformed += 1
                continue
            if isinstance(message, Refused):
                raise _refusal(message)
            return message


def _refusal(message: Refused) -> LinkLost | Superseded:
    if message.code == Superseded.code:
        return Superseded(message.message)
    # The code becomes a key of a counter: never one that the other side made up.
    known = message.code in Connection.KNOWN_REFUSALS
    return LinkLost(message.message, code=message.code if known else "refused")
