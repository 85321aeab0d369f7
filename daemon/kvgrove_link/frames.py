"""Socket options that all our ZeroMQ sockets share, and the ids of boots.

Every bound that the transport can keep is set here (I11): frame sizes, queue lengths, how long a dead peer is believed
in. It must not know any message.
"""

import secrets
from typing import Any

import zmq

from kvgrove_protocol.codec import MAX_FRAME_BYTES

HIGH_WATER_MARK = 1_000
"""Messages that one pipe holds in each direction before a send says so."""

HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 5_000
RECONNECT_MS = 100
RECONNECT_MAX_MS = 2_000
KEEPALIVE_IDLE_S = 15

BOOT_ID_BYTES = 16


def configure(socket: "zmq.Socket[Any]") -> None:
    """Set the options common to all our sockets, before ``bind`` or ``connect``.

    A frame up to twice MAX_FRAME_BYTES reaches the codec, which counts and drops it while the link stays up; beyond
    that libzmq itself cuts the connection, so that no peer can make this process hold more.
    """
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, 2 * MAX_FRAME_BYTES)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    if socket.type == zmq.ROUTER:
        # An unknown peer or a full pipe is an error to count, not a message lost in silence.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # Where a peer names itself, its new connection replaces the old one at once, not when TCP gives up.
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    elif socket.type == zmq.DEALER:
        # Nothing is queued for a peer that is not there: it would arrive late, as old news.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)


def new_boot_id() -> str:
    """A fresh id for one life of one process (32 hex digits). Random: two boots never share one."""
    return secrets.token_hex(BOOT_ID_BYTES)
