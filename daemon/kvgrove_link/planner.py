"""The planner's end of the control link: one ROUTER that all members dial.

Frames in, messages out: decoded, bounded, and from a peer that speaks a version in common. A peer is a connection, not
a member; who it is, and whether it may go on, is for the ledger of members to say. Sending never waits: one member that
does not read must not hold up the others, so a message for a full or vanished connection is dropped and counted, and
the member gets the newest plan when it reports again.
"""

from dataclasses import dataclass

import zmq
import zmq.asyncio

from kvgrove_link.frames import configure
from kvgrove_protocol.codec import negotiate
from kvgrove_protocol.control import TO_MEMBER, TO_PLANNER, Hello, Refused, ToMember, ToPlanner, Welcome
from kvgrove_protocol.errors import Malformed, VersionMismatch


@dataclass
class PlannerCounters:
    """What happened on the planner's socket since its start; all only rise."""

    malformed: int = 0
    version_mismatch: int = 0
    unroutable: int = 0
    """Messages for connections that are gone."""
    overflowed: int = 0
    """Messages for connections whose queue was full."""


class PlannerSocket:
    """A bound ROUTER, owned by one event loop. ``term`` may be raised while it runs: later members are told the new."""

    def __init__(self, context: zmq.asyncio.Context, address: str, *, term: int) -> None:
        """Binds at once to ``tcp://host:port``, port ``*`` for a free one. Raises zmq.ZMQError where it cannot."""
        self.term = term
        self.counters = PlannerCounters()
        self._socket: zmq.asyncio.Socket = context.socket(zmq.ROUTER)
        configure(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError:
            self._socket.close()
            raise

    @property
    def address(self) -> str:
        """Where members dial, with the port that was chosen."""
        return str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))

    async def receive(self) -> tuple[bytes, ToPlanner]:
        """The next message and the peer it came from. A Hello has been answered with Welcome already."""
        while True:
            peer, *frames = await self._socket.recv_multipart()
            try:
                if len(frames) != 1:
                    raise Malformed("frames", f"{len(frames)}, expected 1")
                message = TO_PLANNER.decode(frames[0])
            except Malformed:
                self.counters.malformed += 1
                continue
            if isinstance(message, Hello) and not await self._welcome(peer, message):
                continue
            return peer, message

    async def send(self, peer: bytes, message: ToMember) -> bool:
        """Whether ``message`` was handed to the transport; never waits."""
        try:
            await self._socket.send_multipart([peer, TO_MEMBER.encode(message)], zmq.DONTWAIT)
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

    async def _welcome(self, peer: bytes, hello: Hello) -> bool:
        try:
            version = negotiate(hello.oldest_version, hello.newest_version)
        except VersionMismatch as error:
            self.counters.version_mismatch += 1
            await self.send(peer, Refused(code=error.code, message=error.message))
            return False
        await self.send(peer, Welcome(version=version, term=self.term))
        return True
