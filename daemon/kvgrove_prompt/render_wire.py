"""Between `render_pool` and its workers: length-prefixed msgpack over a stream socket, one reply to each order.

Plain data only; what a reply says is checked by its types. Both ends are of one process' own code, so there is no
version.
"""

import socket
import struct

import msgspec

from kvgrove_prompt.rendering import Job
from kvgrove_prompt.seams import Piece

MAX_FRAME_BYTES = 256 << 20
"""Far above any order or reply that the bounds on texts allow."""

_LENGTH = struct.Struct("<I")


class Order(msgspec.Struct, frozen=True):
    """``template``: digest of the source. ``source``: empty where the worker should have it. ``job``: None to compile.

    ``seconds``: what the worker may take; it ends itself at twice that, also when nobody is there to end it.
    """

    template: bytes
    max_chars: int
    seconds: float
    source: str = ""
    job: Job | None = None


class Reply(msgspec.Struct, frozen=True):
    """``unknown``: send the order again, with the source. ``error``: the code of a refusal, with its field."""

    pieces: list[Piece] = []
    unknown: bool = False
    error: str = ""
    field: str = ""
    message: str = ""


_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(Order)
_replies = msgspec.msgpack.Decoder(Reply)


def send(link: socket.socket, message: Order | Reply) -> None:
    """Raises OSError (TimeoutError among them) as sockets do."""
    frame = _encoder.encode(message)
    link.sendall(_LENGTH.pack(len(frame)) + frame)


def receive_order(link: socket.socket) -> Order | None:
    """The next order; None when the other side has gone."""
    frame = _receive(link)
    return None if frame is None else _orders.decode(frame)


def receive_reply(link: socket.socket) -> Reply | None:
    """The reply; None when the worker has gone. Raises TimeoutError by the socket's time-out."""
    frame = _receive(link)
    return None if frame is None else _replies.decode(frame)


def _receive(link: socket.socket) -> bytes | None:
    head = _exactly(link, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    return _exactly(link, length) if length <= MAX_FRAME_BYTES else None


def _exactly(link: socket.socket, count: int) -> bytes | None:
    frame = bytearray(count)
    view = memoryview(frame)
    got = 0
    while got < count:
        size = link.recv_into(view[got:])
        if not size:
            return None
        got += size
    return bytes(frame)
