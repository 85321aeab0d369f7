"""The planner's end of the control link: one ROUTER that all members dial.

Frames in, messages out: decoded, bounded, and from a peer that speaks a version in common. A peer is a connection, not
a member; who it is, and whether it may go on, is for the ledger of members to say. Sending never waits: one member that
does not read must not hold up the others, so a message for a full or vanished connection is dropped and counted, and
the member gets the newest plan when it reports again.
"""

from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from kvgrove_link.frames import configure
from kvgrove_link.gatekeeper import Gatekeeper, role_of_frame
from kvgrove_link.link_keys import LinkKeys, LinkKeysUnusable
from kvgrove_protocol.codec import negotiate
from kvgrove_protocol.control import (
    DAEMON,
    GATEWAY,
    TO_MEMBER,
    TO_PLANNER,
    Hello,
    Refused,
    ToMember,
    ToPlanner,
    Welcome,
)
from kvgrove_protocol.errors import Malformed, VersionMismatch


@dataclass
class PlannerCounters:
    """What happened on the planner's socket since its start; all only rise."""

    malformed: int = 0
    wrong_role: int = 0
    """Members that said to be what their key is not."""
    refused: dict[str, int] = field(default_factory=dict)
    """Peers that did not get in, by reason (`kvgrove_link.gatekeeper.REFUSALS`)."""
    version_mismatch: int = 0
    unroutable: int = 0
    """Messages for connections that are gone."""
    overflowed: int = 0
    """Messages for connections whose queue was full."""


class PlannerSocket:
    """A bound ROUTER, owned by one event loop. ``term`` may be raised while it runs: later members are told the new."""

    def __init__(self, context: zmq.asyncio.Context, address: str, *, term: int, keys: LinkKeys | None = None) -> None:
        """Binds at once to ``tcp://host:port``, port ``*`` for a free one; ``keys``: None for links in the clear.

        Raises zmq.ZMQError where it cannot bind, LinkKeysUnusable where the keys are no keys.
        """
        self.term = term
        self.counters = PlannerCounters()
        self._socket: zmq.asyncio.Socket = context.socket(zmq.ROUTER)
        configure(self._socket)
        self._gate: Gatekeeper | None = None
        try:
            if keys is not None:
                self._gate = Gatekeeper(context, keys, refused=self._count_refused)
                self._gate.guard(self._socket, "fleet", (DAEMON, GATEWAY))
            self._socket.bind(address)
        except (zmq.ZMQError, LinkKeysUnusable):
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where members dial, with the port that was chosen."""
        return str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))

    async def receive(self) -> tuple[bytes, ToPlanner]:
        """The next message and the peer it came from. A Hello has been answered with Welcome already."""
        while True:
            first, *frames = await self._socket.recv_multipart(copy=False)
            peer = bytes(first.buffer)
            try:
                if len(frames) != 1:
                    raise Malformed("frames", f"{len(frames)}, expected 1")
                message = TO_PLANNER.decode(frames[0].buffer)
            except Malformed:
                self.counters.malformed += 1
                continue
            if isinstance(message, Hello) and not await self._welcome(peer, message, frames[0]):
                continue
            return peer, message

    async def send(self, peer: bytes, message: ToMember) -> bool:
        """Whether ``message`` was handed to the transport; never waits."""
        return await self.send_encoded(peer, TO_MEMBER.encode(message))

    async def send_encoded(self, peer: bytes, message: bytes) -> bool:
        """The same for what `TO_MEMBER` has encoded already: one message for many."""
        try:
            await self._socket.send_multipart([peer, message], zmq.DONTWAIT)
        except zmq.Again:
            self.counters.overflowed += 1
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.counters.unroutable += 1
        else:
            return True
        return False

    def close(self) -> None:
        """Free the address. What was not sent yet is dropped."""
        self._socket.close()
        if self._gate is not None:
            self._gate.close()

    def _count_refused(self, why: str) -> None:
        self.counters.refused[why] = self.counters.refused.get(why, 0) + 1

    async def _welcome(self, peer: bytes, hello: Hello, frame: zmq.Frame) -> bool:
        if self._gate is not None and role_of_frame(frame) != hello.role:
            self.counters.wrong_role += 1
            await self.send(peer, Refused(code="wrong_role", message="the key of this link is another role's"))
            return False
        try:
            version = negotiate(hello.oldest_version, hello.newest_version)
        except VersionMismatch as error:
            self.counters.version_mismatch += 1
            await self.send(peer, Refused(code=error.code, message=error.message))
            return False
        await self.send(peer, Welcome(version=version, term=self.term))
        return True
