"""Bytes <-> messages: msgpack tagged structs, bounded, never an object unpickled (ISO-13).

Each link has its own closed union of messages. A frame that is oversized, not msgpack, of an unknown type or of wrong
field types raises Malformed: the caller counts it and drops it, nothing else happens.
"""

from typing import Generic, TypeVar

import msgspec

from kvgrove_protocol.errors import Malformed, VersionMismatch

PROTOCOL_VERSION = 1
OLDEST_SUPPORTED_VERSION = 1
"""This version and the one before are spoken, so that a fleet can be upgraded member by member."""

MAX_FRAME_BYTES = 16 << 20
"""Room for a prompt of a million tokens and for a body of 8 MiB; set as ZMQ_MAXMSGSIZE too."""

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes the messages of one link. Stateless apart from buffers' types; safe to share."""

    def __init__(self, union: type[T] | object, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._max_bytes = max_bytes

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, frame: bytes | memoryview) -> T:
        if len(frame) > self._max_bytes:
            raise Malformed("frame", f"{len(frame)} bytes, at most {self._max_bytes} are taken")
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            # msgspec names the field path and the types, never the values.
            raise Malformed("frame", str(error)) from None


def negotiate(oldest: int, newest: int) -> int:
    """The highest version both sides speak; raises VersionMismatch if there is none."""
    version = min(newest, PROTOCOL_VERSION)
    if version < max(oldest, OLDEST_SUPPORTED_VERSION):
        raise VersionMismatch(
            f"peer speaks protocol {oldest} to {newest}, this side {OLDEST_SUPPORTED_VERSION} to {PROTOCOL_VERSION}: "
            "upgrade the older one"
        )
    return version
