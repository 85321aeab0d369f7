"""The link to one boot of one node: requests out, answers and residency in.

A *session* is one socket from ClientHello to its end; nothing outlives it. It ends when TCP drops, when the node is
silent too long, when it turns out to be another boot, or on purpose; its requests then fail with `NodeLost` at once,
so that they can go elsewhere, and a new session is dialled after a jittered pause, for ever.

====================  ====================================  ============
state                 until                                 next
====================  ====================================  ============
DOWN                  ServerHello within `HELLO_S`          READY
READY                 drop, silence, other boot, refusal    DOWN
====================  ====================================  ============

Frames that are not the protocol's are counted and dropped. It must not know routing or HTTP.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from enum import Enum
from random import Random
from typing import Any

import zmq
import zmq.asyncio

from kvgrove_gateway.answer_stream import AnswerStream, Reply
from kvgrove_gateway.errors import FrameTooLarge, NodeLost, NodeRefused
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.decide import Backlog
from kvgrove_gateway.settings import Limits
from kvgrove_link.frames import configure
from kvgrove_link.gatekeeper import KEYS_REFUSED, dial_with, how_it_ended, watch_end
from kvgrove_link.link_keys import LinkKeys, LinkKeysUnusable
from kvgrove_protocol.codec import MAX_FRAME_BYTES
from kvgrove_protocol.control import DAEMON, NodeEndpoint
from kvgrove_protocol.data import (
    TO_GATEWAY,
    TO_NODE,
    BundleChunk,
    BundleRequest,
    Cancel,
    ClientHello,
    Done,
    Error,
    Explain,
    Explained,
    Generate,
    Ping,
    Pong,
    PromptLogprobs,
    ServerHello,
    Started,
    Subscribe,
    ToGateway,
    Token,
    ToNode,
)
from kvgrove_protocol.errors import Malformed, Retryable
from kvgrove_protocol.events import EventBatch, NodeLoad, SnapshotChunk

log = logging.getLogger(__name__)

HELLO_S = 5.0
PULSE_S = 1.0
LEAST_QUIET = 3
"""Pulses in a row without a word from the node before it counts as silent."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
RETIRED_S = 30.0
"""How long an idle link to a node that left the plan is kept: a planner that starts anew knows no nodes at first."""
RECEIVE_BURST = 64
CHUNKS_AT_ONCE = 4
"""Bundle chunks asked for ahead."""

NO_LOAD = NodeLoad(queued_prefill_tokens=0, running=0, prefill_tokens_per_s=0.0, decode_steps_per_s=0.0, free_blocks=0)


class LinkState(Enum):
    DOWN = "down"
    READY = "ready"


class SessionEnded(Retryable):
    """This session is of no more use.

    ``code`` is one of ``disconnected silent no_hello other_boot refused bad_address keys_refused retired``.
    """


class NodeLink:
    """One node as the gateway sees it. `run` keeps it connected until cancelled."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoint: NodeEndpoint,
        *,
        member: str,
        boot: str,
        residency: NodeResidency,
        limits: Limits,
        metrics: Metrics,
        clock: Callable[[], float],
        random: Random,
        keys: LinkKeys | None = None,
    ) -> None:
        """``member``/``boot``: this gateway's own, for the hello. ``keys``: None for a link in the clear."""
        self.endpoint = endpoint
        self.state = LinkState.DOWN
        self.load = NO_LOAD
        self.backlog = Backlog()
        self.residency = residency
        self._context = context
        self._member, self._boot = member, boot
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._random = random
        self._keys = keys
        self._answers: dict[str, AnswerStream] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(limits.node_send_queue)
        self._chunks: dict[tuple[bytes, int], asyncio.Future[BundleChunk]] = {}
        self._explained: dict[str, asyncio.Future[Explained]] = {}
        self._heard = 0.0
        self._retired_at: float | None = None

    @property
    def name(self) -> str:
        return self.endpoint.member

    @property
    def requests(self) -> int:
        return len(self._answers)

    @property
    def retired(self) -> bool:
        """Whether the plan no longer names this node."""
        return self._retired_at is not None

    def retire(self) -> None:
        """The plan no longer names this node: finish what is under way, then end `run`."""
        self._retired_at = self._clock()

    def revive(self) -> None:
        """The plan names it again, the same boot at the same address."""
        self._retired_at = None

    # -- for requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Generate, uncached_tokens: int) -> AnswerStream:
        """Send ``request``; its tokens count as backlog from now on.

        Raises NodeLost if it cannot be sent, FrameTooLarge if no node would take it.
        """
        if self.state is not LinkState.READY:
            raise NodeLost(f"node {self.name} is not connected")
        self._post(request)
        stream = AnswerStream(request.request_id, self._limits.stream_messages)
        self._answers[request.request_id] = stream
        self.backlog.dispatched(request.request_id, uncached_tokens)
        return stream

    def release(self, request_id: str) -> None:
        """The request is over for its caller: free the node too if it still works on it. Repeating it does nothing."""
        if self._answers.pop(request_id, None) is None:
            return
        self.backlog.prefilled(request_id)
        if self.state is LinkState.READY:
            try:
                self._post(Cancel(request_id=request_id))
            except NodeLost:
                log.warning("node %s: the send queue is full, a cancel was dropped", self.name)

    async def explain(self, request: Generate) -> Explained:
        """What the node would do with ``request`` now. Raises NodeLost or NodeRefused; the caller bounds the wait."""
        if self.state is not LinkState.READY:
            raise NodeLost(f"node {self.name} is not connected")
        self._post(Explain(request=request))
        future: asyncio.Future[Explained] = asyncio.get_running_loop().create_future()
        self._explained[request.request_id] = future
        try:
            return await future
        finally:
            self._explained.pop(request.request_id, None)

    async def bundle(self, digest: bytes) -> bytes:
        """Bytes of a tokenizer bundle; raises NodeLost, also where the node has none. The caller bounds the wait."""
        first = await self._chunk(digest, 0)
        if not 0 < first.chunks <= self._limits.bundle_bytes // max(len(first.body), 1) + 1:
            raise NodeLost(f"node {self.name} does not have the bundle", code="no_bundle")
        parts = [first.body]
        for start in range(1, first.chunks, CHUNKS_AT_ONCE):
            numbers = range(start, min(start + CHUNKS_AT_ONCE, first.chunks))
            parts += [chunk.body for chunk in await asyncio.gather(*(self._chunk(digest, each) for each in numbers))]
        return b"".join(parts)

    async def _chunk(self, digest: bytes, number: int) -> BundleChunk:
        if self.state is not LinkState.READY:
            raise NodeLost(f"node {self.name} is not connected")
        future = self._chunks.get((digest, number))
        if future is None:
            self._post(BundleRequest(digest=digest, chunk=number))
            future = self._chunks[digest, number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.shield(future)
        finally:
            self._chunks.pop((digest, number), None)

    def _post(self, message: ToNode) -> None:
        # Encoded here, not where it is sent: what cannot be encoded, and a frame at which the node would cut the
        # connection, ends the one request that asked for it and not the link with everybody's answers on it.
        frame = TO_NODE.encode(message)
        if len(frame) > MAX_FRAME_BYTES:
            raise FrameTooLarge(f"{len(frame)} bytes, a node takes at most {MAX_FRAME_BYTES}")
        try:
            self._outbox.put_nowait(frame)
        except asyncio.QueueFull:
            raise NodeLost(f"node {self.name} does not take messages fast enough", code="send_queue_full") from None

    # -- sessions --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Session after session, until cancelled; once retired, until the session ends."""
        failures = 0
        try:
            while True:
                was_ready = False
                try:
                    await self._session(failures)
                except* SessionEnded as ended:
                    was_ready = self.state is LinkState.READY
                    self._end_session(ended.exceptions)
                if self.retired:
                    return
                failures = 0 if was_ready else failures + 1
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures, 10))
                await asyncio.sleep(self._random.uniform(pause / 2, pause))
        finally:
            self._lose("the node has left the plan")

    async def _session(self, failures: int) -> None:
        socket = self._context.socket(zmq.DEALER)
        configure(socket)
        monitor = watch_end(socket)
        self._outbox = asyncio.Queue(self._limits.node_send_queue)
        self._heard = self._clock()
        try:
            try:
                if self._keys is not None:
                    dial_with(socket, self._keys, DAEMON, failures)
                socket.connect(self.endpoint.address)
            except LinkKeysUnusable as error:
                raise SessionEnded(error.message, code=KEYS_REFUSED) from None
            except zmq.ZMQError as error:
                raise SessionEnded(f"its address cannot be used: {error.strerror}", code="bad_address") from None
            self._post(ClientHello(member=self._member, boot=self._boot))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(monitor))
                tasks.create_task(self._send(socket))
                tasks.create_task(self._receive(socket))
                tasks.create_task(self._pulse())
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    def _end_session(self, errors: Iterable[BaseException]) -> None:
        first = next(error for error in errors if isinstance(error, SessionEnded))
        if self.state is LinkState.READY:
            log.warning("node %s: link lost (%s)", self.name, first.code)
        self._metrics.link_losses.labels(first.code).inc()
        self._lose(first.message)

    def _lose(self, why: str) -> None:
        self.state = LinkState.DOWN
        self.load = NO_LOAD
        self.residency.end()
        self.backlog.clear()
        answers, self._answers = self._answers, {}
        for stream in answers.values():
            stream.fail(NodeLost(f"node {self.name}: {why}"))
        chunks, self._chunks = self._chunks, {}
        explained, self._explained = self._explained, {}
        waiting: list[asyncio.Future[Any]] = [*chunks.values(), *explained.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(NodeLost(f"node {self.name}: {why}"))
                future.exception()  # seen, also where nobody waits any more

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        code = await how_it_ended(monitor)
        if code == KEYS_REFUSED:
            log.warning("node %s: it and this gateway do not accept each other's keys", self.name)
            raise SessionEnded("keys were not accepted", code=code)
        raise SessionEnded("the connection dropped", code=code)

    async def _send(self, socket: zmq.asyncio.Socket) -> None:
        outbox = self._outbox
        while True:
            await socket.send(await outbox.get())

    async def _pulse(self) -> None:
        """Keep the node answering also while its engine is busy, and notice when it does not."""
        started = self._clock()
        nonce = quiet = 0
        while True:
            heard = self._heard
            await asyncio.sleep(PULSE_S)
            now = self._clock()
            quiet = 0 if self._heard != heard else quiet + 1
            if self.state is LinkState.DOWN and now - started > HELLO_S:
                raise SessionEnded("no hello from the node", code="no_hello")
            # A loop that stood still heard nobody, whoever spoke: only pulses at which it had its turn count.
            if quiet >= LEAST_QUIET and now - self._heard > self._limits.node_silence_s:
                raise SessionEnded("the node has gone silent", code="silent")
            if self._retired_at is not None and not self._answers and now - self._retired_at > RETIRED_S:
                raise SessionEnded("the node has left the plan", code="retired")
            if self.state is LinkState.READY:
                nonce += 1
                self._try_post(Ping(nonce=nonce))
                self._follow(self.residency.tick(now))

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        for count in itertools.count(1):
            if count % RECEIVE_BURST == 0:
                await asyncio.sleep(0)  # a flood of events must not keep other requests from their turn
            frames = await socket.recv_multipart()
            try:
                if len(frames) != 1:
                    raise Malformed("frames", f"{len(frames)}, expected 1")
                message = TO_GATEWAY.decode(frames[0])
                self._heard = self._clock()
                self._on_message(message)
            except Malformed as error:
                self._metrics.malformed.inc()
                log.warning("node %s: a frame was dropped: %s", self.name, error.message)

    # -- messages --------------------------------------------------------------------------------------------------

    def _on_message(self, message: ToGateway) -> None:
        match message:
            case ServerHello():
                self._greeted(message)
            case Token() | Started() | PromptLogprobs() | Done():
                self._answer(message)
            case Error():
                self._error(message)
            case EventBatch():
                self.load = message.load
                self.backlog.reported(message.load.queued_prefill_tokens)
                self._follow(self.residency.batch(message, self._heard))
            case SnapshotChunk():
                self._follow(self.residency.chunk(message, self._heard))
            case BundleChunk():
                future = self._chunks.get((message.digest, message.chunk))
                if future is not None and not future.done():
                    future.set_result(message)
            case Explained():
                asked = self._explained.get(message.request_id)
                if asked is not None and not asked.done():
                    asked.set_result(message)
            case Pong():
                pass  # being heard was its purpose

    def _greeted(self, hello: ServerHello) -> None:
        if hello.boot != self.endpoint.boot or hello.member != self.endpoint.member:
            # Whoever answers there is not the one that the plan names: wait for the plan that does (ROU-08).
            raise SessionEnded("another boot answers at the node's address", code="other_boot")
        self.state = LinkState.READY
        log.info("node %s: link up", self.name)
        self._follow(self.residency.begin(hello.boot, self._heard, "start"))

    def _answer(self, message: Reply) -> None:
        stream = self._answers.get(message.request_id)
        if stream is None:
            return  # cancelled: what was under way arrives still
        if isinstance(message, Started):
            self.backlog.started(message.request_id, sum(message.missed.values()))
        elif not isinstance(message, PromptLogprobs):
            self.backlog.prefilled(message.request_id)
        if isinstance(message, Done):
            del self._answers[message.request_id]
        if not stream.push(message):
            self.release(message.request_id)

    def _error(self, message: Error) -> None:
        if not message.request_id:
            raise SessionEnded(f"the node refused the link: {message.code}", code="refused")
        refused = NodeRefused(message.code, message.message, retryable=message.retryable)
        asked = self._explained.get(message.request_id)
        if asked is not None and not asked.done():
            asked.set_exception(refused)
        stream = self._answers.pop(message.request_id, None)
        if stream is not None:
            self.backlog.prefilled(message.request_id)
            stream.fail(refused)

    def _follow(self, ask: Subscribe | None) -> None:
        if ask is not None:
            self._try_post(ask)

    def _try_post(self, message: ToNode) -> None:
        try:
            self._post(message)
        except NodeLost:
            log.debug("node %s: the send queue is full", self.name)  # requests meet the same bound, and say so
