"""The ROUTER socket that gateways talk to: frames in and out, nothing else.

Each frame is decoded by the protocol's closed union or counted and dropped (ISO-13). A peer is heard only after its
ClientHello. Sends never wait: a peer that does not read loses its link's state and starts over with a new hello, and
that is counted (I11).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

import zmq

from kvgrove_link.frames import configure
from kvgrove_link.gatekeeper import Gatekeeper
from kvgrove_protocol.codec import negotiate
from kvgrove_protocol.control import GATEWAY
from kvgrove_protocol.data import TO_GATEWAY, TO_NODE, ClientHello, Error, Ping, Pong, ServerHello, ToGateway, ToNode
from kvgrove_protocol.errors import Malformed, Terminal, VersionMismatch

log = logging.getLogger(__name__)

MAX_PEERS = 256
SEND_QUEUE = 10_000
"""Frames queued for one peer before it counts as gone."""
RECEIVE_BURST = 128
"""Frames taken in one go before the loop's other work has its turn."""


class PortInUse(Terminal):
    """The data address cannot be bound."""

    code = "port_in_use"


class GatewaySocket:
    """Owns the socket. ``handle(peer, message)`` is called on the loop for each message of a known peer.

    A plain socket watched through its file descriptor, so that sends never wait for a task switch. ZeroMQ's descriptor
    signals edges, not levels: readiness is looked at again after each send and each burst.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        *,
        member: str,
        boot: str,
        handle: Callable[[bytes, ToNode], None],
        lost: Callable[[bytes], None],
        count: Callable[[str], None],
        gate: Gatekeeper | None = None,
    ) -> None:
        """``lost(peer)``: this peer's state is to be dropped. ``count(kind)``: a frame was dropped, and why.

        ``gate``: lets gateways in and nobody else; None: a link in the clear.
        """
        self._member, self._boot = member, boot
        self._handle, self._lost, self._count = handle, lost, count
        self._peers: OrderedDict[bytes, int] = OrderedDict()
        self._socket = context.socket(zmq.ROUTER)
        configure(self._socket)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        if gate is not None:
            gate.guard(self._socket, "data", (GATEWAY,))
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise PortInUse(
                f"--listen {address}: {error.strerror}; choose another address, or port 0 for any", field="--listen"
            ) from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive on ``loop`` from now on, until `close`."""
        self._loop = loop
        loop.add_reader(self._descriptor, self._drain)
        loop.call_soon(self._drain)

    def _drain(self) -> None:
        if self._socket.closed or self._loop is None:
            return
        for _ in range(RECEIVE_BURST):
            if not self._readable():
                return
            self._receive(self._socket.recv_multipart(zmq.NOBLOCK))
        self._loop.call_soon(self._drain)

    def _readable(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _receive(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            self._count("frame_count")
            return
        peer, body = frames
        try:
            message = TO_NODE.decode(body)
        except Malformed as error:
            self._count("malformed")
            log.debug("dropped a malformed frame: %s", error)  # counted; a peer must not be able to fill the log
            return
        if isinstance(message, ClientHello):
            self._greet(peer, message)
        elif peer not in self._peers:
            self._count("no_hello")
        elif isinstance(message, Ping):
            self.send(peer, Pong(nonce=message.nonce))
        else:
            self._handle(peer, message)

    def _greet(self, peer: bytes, hello: ClientHello) -> None:
        try:
            version = negotiate(hello.oldest_version, hello.newest_version)
        except VersionMismatch as error:
            self._count("version")
            self._send_raw(peer, Error(request_id="", code=error.code, message=error.message))
            return
        if peer in self._peers:
            self._lost(peer)  # a new hello on an old identity: the peer knows nothing of before
        self._peers[peer] = version
        self._peers.move_to_end(peer)
        if len(self._peers) > MAX_PEERS:
            oldest, _ = self._peers.popitem(last=False)
            self._count("too_many_peers")
            self._lost(oldest)
        self.send(peer, ServerHello(member=self._member, boot=self._boot, version=version))

    def send(self, peer: bytes, message: ToGateway) -> None:
        """Queue ``message``; a peer that is gone or does not read is forgotten, and ``lost`` is told."""
        if peer in self._peers and not self._send_raw(peer, message):
            del self._peers[peer]
            self._lost(peer)

    def _send_raw(self, peer: bytes, message: ToGateway) -> bool:
        try:
            self._socket.send_multipart([peer, TO_GATEWAY.encode(message)], zmq.NOBLOCK)
        except zmq.Again:
            self._count("peer_not_reading")
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._count("peer_gone")
            return False
        if self._loop is not None and self._readable():
            self._loop.call_soon(self._drain)  # the send may have eaten the edge that announced input
        return True

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
            self._loop = None
        self._socket.close(0)
