"""Who gets in: the CURVE server side of a process's sockets, and the count of those who did not.

One per ZeroMQ context, because libzmq asks one handler per context (ZAP, RFC 27). It is started before any socket is
guarded: libzmq would let everybody in where nobody answers. A peer that passed carries its role with every message
(the frame property ``User-Id``), so that a role can be held to what it says it is.
It must not know messages.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import zmq
import zmq.asyncio
from zmq.auth.base import Authenticator
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from kvgrove_link.link_keys import LinkKeys

log = logging.getLogger(__name__)

REFUSALS: Final[dict[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "broken_off",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "no_curve",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "unknown_key",
}
"""Event of a guarded socket -> why a peer did not get in. ``no_curve``: it has no keys, or took another server's for
ours; ``unknown_key``: its key is none of the roles that this socket admits."""

_ZAP: Final = "inproc://zeromq.zap.01"
_monitors = itertools.count()


class Gatekeeper:
    """Belongs to the loop that is running when it is made. `close` it before its context is destroyed."""

    def __init__(self, context: zmq.asyncio.Context, keys: LinkKeys, *, refused: Callable[[str], None]) -> None:
        """Answers ZAP requests of ``context`` from now on. ``refused(why)``: a peer was turned away (`REFUSALS`)."""
        self._context, self._keys, self._refused = context, keys, refused
        self._authenticator = _Authenticator(context, keys)
        self._answering = asyncio.create_task(self._authenticator.answer())
        self._watching: list[tuple[asyncio.Task[None], zmq.asyncio.Socket]] = []

    def guard(self, socket: "zmq.Socket[Any]", domain: str, roles: Iterable[str]) -> None:
        """Let only ``roles`` into ``socket``, before it binds. ``domain`` names it in this context.

        Raises LinkKeysUnusable where this process's own keys cannot be used.
        """
        pair = self._keys.own()
        self._authenticator.admit(domain, frozenset(roles))
        socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
        socket.curve_server = True
        socket.zap_domain = domain.encode()
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        address = f"inproc://kvgrove-gatekeeper-{next(_monitors)}"
        socket.monitor(address, sum(REFUSALS))
        events = self._context.socket(zmq.PAIR)
        events.linger = 0
        events.connect(address)
        self._watching.append((asyncio.create_task(self._watch(domain, events)), events))

    async def _watch(self, domain: str, events: zmq.asyncio.Socket) -> None:
        while True:
            event = parse_monitor_message(await events.recv_multipart())["event"]
            if (why := REFUSALS.get(int(event))) is None:  # the monitor's own end
                return
            self._refused(why)
            log.debug("a peer was turned away from the %s link: %s", domain, why)

    def close(self) -> None:
        for task, events in self._watching:
            task.cancel()
            events.close()
        self._watching.clear()
        self._answering.cancel()
        self._authenticator.stop()


class _Authenticator(Authenticator):
    """pyzmq's handler, with roles in place of a flat list of keys.

    Not its asyncio form: that one makes a socket object for each wait, and one of a handler that has ended may take the
    file descriptor's place from the handler that came after it, which then never hears a request.
    """

    def __init__(self, context: zmq.asyncio.Context, keys: LinkKeys) -> None:
        super().__init__(context, log=logging.getLogger(f"{__name__}.zap"))
        self._keys = keys
        self._requests: zmq.asyncio.Socket = context.socket(zmq.REP)
        self._requests.linger = 0
        self._requests.bind(_ZAP)
        self.zap_socket = zmq.Socket.shadow(self._requests.underlying)  # through which the base class answers

    async def answer(self) -> None:
        while True:
            await self.handle_zap_message(await self._requests.recv_multipart())

    def stop(self) -> None:
        self._requests.unbind(_ZAP)  # at once: closing frees the name some time later
        self._requests.close()

    def admit(self, domain: str, roles: frozenset[str]) -> None:
        keys = self._keys

        class Provider:
            def callback(self, domain: str, key: bytes) -> bool:
                del domain  # one provider each
                return keys.role_of(key) in roles

        self.configure_curve_callback(domain, Provider())

    def curve_user_id(self, client_public_key: bytes) -> str:
        """What messages of a peer carry as their ``User-Id``: its role."""
        return self._keys.role_of(z85.encode(client_public_key)) or ""


def role_of_frame(frame: zmq.Frame) -> str | None:
    """The role of the peer that sent ``frame``; None: the socket is not guarded."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return None


ENDED: Final = "disconnected"
KEYS_REFUSED: Final = "keys_refused"


def watch_end(socket: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
    """The monitor of a dialled ``socket``, for `how_it_ended`; before it connects."""
    return socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | sum(REFUSALS))


async def how_it_ended(monitor: zmq.asyncio.Socket) -> str:
    """Returns once the connection is gone: `ENDED`, or `KEYS_REFUSED` where the two sides did not accept each other."""
    event = parse_monitor_message(await monitor.recv_multipart())["event"]
    return KEYS_REFUSED if event in REFUSALS else ENDED


def dial_with(socket: "zmq.Socket[Any]", keys: LinkKeys, role: str, attempt: int) -> None:
    """Make ``socket`` a client of ``role``, before it connects.

    Where the role has several keys, each attempt takes the next: during a rotation one of them is the server's.
    Raises LinkKeysUnusable.
    """
    pair, servers = keys.own(), keys.public(role)
    socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
    socket.curve_serverkey = servers[attempt % len(servers)]
