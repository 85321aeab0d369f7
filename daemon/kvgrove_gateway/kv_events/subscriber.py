"""The sockets of one engine's event stream: SUB for live batches, DEALER for what was missed.

The SUB is connected before the first replay is asked for, so that nothing falls between; queues are unbounded on our
side of the sockets only, where a publisher bounds what it sends, and drained at once. Whether the engine went away is
told by the transport: a number alone cannot tell a restarted engine that has overtaken the old one.
"""

import asyncio
import logging
import sys
from collections.abc import Callable

import zmq
import zmq.asyncio

from kvgrove_gateway.kv_events.engine import Ask, EngineResidency
from kvgrove_gateway.kv_events.source import (
    AskListing,
    Connected,
    Disconnected,
    End,
    Input,
    Listed,
    Live,
    Overdue,
    Quiet,
    Replayed,
)
from kvgrove_gateway.kv_events.wire import Batch, decode
from kvgrove_gateway.metrics import Metrics
from kvgrove_protocol.errors import Malformed

log = logging.getLogger(__name__)

END = b"\xff" * 8
LISTING = b"snapshot"
ANSWER_S = 5.0
"""Without a frame for so long, an answer has been lost."""
PROBE_S = 10.0
"""After so long without a live batch the publisher is asked whether it is there."""
RECEIVE_QUEUE = 100_000
BURST = 64
PAUSE_S = 0.2


class _Gone(Exception):
    """The engine's connection has dropped."""


class KvEventSubscriber:
    """One engine. `run` follows it until cancelled."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        events: str,
        replay: str | None,
        engine: EngineResidency,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        probe_s: float = PROBE_S,
    ) -> None:
        """``events``, ``replay``: the engine's endpoints; without a replay it is followed from the first batch on."""
        self._context = context
        self._events, self._replay_address = events, replay
        self.engine = engine
        self._metrics = metrics
        self._clock = clock
        self._probe_s = probe_s
        self._wanted: Ask | None = None
        self._asked = asyncio.Event()
        self._answered = True
        self._heard = 0.0

    async def run(self) -> None:
        """Connection after connection, until cancelled."""
        try:
            while True:
                try:
                    await self._connection()
                except* _Gone:
                    self.engine.take(Disconnected())
                await asyncio.sleep(PAUSE_S)
        finally:
            self.engine.end()

    async def _connection(self) -> None:
        """On sockets of its own, so that nothing which the engine said before it went is heard afterwards."""
        live = self._context.socket(zmq.SUB)
        live.subscribe(b"")
        live.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)
        monitor = live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._asked.clear()
        self._answered, self._heard = True, self._clock()
        try:
            live.connect(self._events)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(monitor))
                tasks.create_task(self._follow(live))
                tasks.create_task(self._answers())
                tasks.create_task(self._tick())
        finally:
            live.disable_monitor()
            monitor.close(linger=0)
            live.close(linger=0)

    def _take(self, input_: Input) -> None:
        ask = self.engine.take(input_)
        if ask is not None:
            self._wanted, self._answered = ask, False
            self._asked.set()

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            frames = await monitor.recv_multipart()
            if int.from_bytes(frames[0][:2], sys.byteorder) != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                raise _Gone
            self._take(Connected())

    async def _follow(self, live: zmq.asyncio.Socket) -> None:
        count = 0
        while True:
            frames = await live.recv_multipart()
            self._heard = self._clock()
            if len(frames) != 3 or len(frames[1]) != len(END):
                self._metrics.malformed.inc()
                continue
            self._take(Live(int.from_bytes(frames[1], "big"), self._batch(frames[2])))
            count += 1
            if count % BURST == 0:
                await asyncio.sleep(0)

    async def _answers(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            if self._wanted is None:
                continue
            if self._replay_address is None:
                self._answered = True
                self._take(Overdue())
            else:
                await self._answer(self._wanted, self._replay_address)

    async def _answer(self, ask: Ask, address: str) -> None:
        """One question on a socket of its own, so that no frame of an older answer is taken for this one's."""
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.RCVHWM, 0)  # a ROUTER drops what its reader has no room for
            dealer.connect(address)
            request = LISTING if isinstance(ask, AskListing) else ask.start.to_bytes(8, "big")
            await dealer.send_multipart([b"", request])
            while not self._asked.is_set():
                if not await dealer.poll(ANSWER_S * 1000):
                    self._answered = True
                    self._take(Overdue())
                    return
                frames = await dealer.recv_multipart()
                if len(frames) not in (3, 4) or len(frames[-2]) != len(END):
                    self._metrics.malformed.inc()
                elif frames[-2] == END:
                    self._answered = True
                    self._take(End())
                    return
                else:
                    number, batch = int.from_bytes(frames[-2], "big"), self._batch(frames[-1])
                    self._take(Listed(number, batch) if isinstance(ask, AskListing) else Replayed(number, batch))
        finally:
            dealer.close(linger=0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._probe_s / 4)
            if self._answered and self._replay_address is not None and self._clock() - self._heard > self._probe_s:
                self._heard = self._clock()
                self._take(Quiet())

    def _batch(self, payload: bytes) -> Batch | None:
        try:
            return decode(payload)
        except Malformed as error:
            self._metrics.malformed.inc()
            log.warning("%s: a batch of KV events cannot be read: %s", self._events, error.message)
            return None
