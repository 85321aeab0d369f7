"""What one connection may cost: how many there are, how long a head may take, how slowly an answer may be read.

uvicorn bounds the time between requests and nothing else. A caller that sends half a head, or stops reading an answer,
would hold its connection, and in the second case its request, for ever. Both are cut off here, and counted.

============  ===============================================================  =============
wait          begins with                                                      ends with
============  ===============================================================  =============
head          the connection; the first byte of a next request on it           a whole head
reader        an answer that the caller's side does not take any more          room again
linger        an idle connection's end                                         its last byte
============  ===============================================================  =============

A body has its own bound (`http.read_body`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True)
class ConnectionBounds:
    connections: int
    """At once: the one above is closed at once."""
    head_s: float
    reader_s: float


class BoundedConnection(H11Protocol):
    """Use a subclass made by `bounded`."""

    bounds: ClassVar[ConnectionBounds]
    cut: ClassVar[Callable[[str], None]]
    """Counts a connection that was cut off, by reason."""

    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            self._cut_off("too_many")
        else:
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._reader, self._linger):
            if timer is not None:
                timer.cancel()
        self._head = self._reader = self._linger = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader is None:
            self._reader = self.loop.call_later(self.bounds.reader_s, self._cut_off, "slow_reader")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()  # closes, once the last bytes are taken
        self._linger = self.loop.call_later(self.bounds.reader_s, self._cut_off, "slow_reader")

    def _watch_head(self) -> None:
        between_requests = self.cycle is None or self.cycle.response_complete
        if not between_requests:
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(self.bounds.head_s, self._cut_off, "slow_head")

    def _cut_off(self, reason: str) -> None:
        type(self).cut(reason)
        self.transport.abort()


def bounded(limits: ConnectionBounds, cut: Callable[[str], None]) -> type[BoundedConnection]:
    """A protocol class for uvicorn with these bounds."""
    return type("BoundedConnection", (BoundedConnection,), {"bounds": limits, "cut": staticmethod(cut)})
