"""The export's sockets and their thread: PUB for live batches, ROUTER for what readers missed.

Live: ``topic "" | number (8 bytes, big-endian) | payload``. Numbers begin with 0 in each boot, and batch 0 is always
an AllBlocksCleared, so that a reader of the former boot forgets it.

A reader asks with ``empty | number``, and gets ``empty | topic | number | payload`` for each batch from that number on,
then ``empty | empty | ff x 8 | empty``. Where the beginning is no longer kept, the first number that comes is higher
than the one asked for. Where the reader is too slow to take the answer, it is cut off: no end comes.

With `LISTING` in place of the number, the answer is all that is exported, as an AllBlocksCleared and what follows it;
every batch of it carries the number of the last batch published before it was made. A publisher that does not know the
request takes it for a number that it has not reached yet, and answers with the end alone.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import zmq
from zmq.auth import load_certificate

from kvgrove_daemon.kv_events.address import CurveFiles, ExportRefused, ExportSettings
from kvgrove_daemon.kv_events.blocks import Cleared, Listed, Note, blocks_of
from kvgrove_daemon.kv_events.history import MAX_BATCHES, History
from kvgrove_daemon.kv_events.metrics import ExportMetrics
from kvgrove_daemon.kv_events.outbox import Outbox
from kvgrove_daemon.kv_events.readers import KnownReaders
from kvgrove_daemon.kv_events.schema import Encoder

log = logging.getLogger(__name__)

TOPIC = b""
LISTING = b"snapshot"
END = b"\xff" * 8
MAX_LISTING_REQUESTS = 64
MAX_REQUESTS_AT_ONCE = 64
MAX_BLOCKS_PER_BATCH = 1024
PUBLISH_HIGH_WATER = 100_000
STOP_S = 10.0


class Publisher:
    """Owns its sockets from construction to `close`. Between, only its thread touches them."""

    def __init__(
        self,
        settings: ExportSettings,
        outbox: Outbox,
        encoder: Encoder,
        metrics: ExportMetrics,
        *,
        now: Callable[[], float],
        history: History | None = None,
    ) -> None:
        """Binds. Raises ExportRefused. ``now``: seconds since 1970."""
        self._outbox, self._encoder, self._metrics = outbox, encoder, metrics
        self._now = now
        self._history = history if history is not None else History()
        self._next = 0
        self._askers: list[bytes] = []
        self._stopping = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._readers: KnownReaders | None = None
        self._replay: zmq.Socket[bytes] | None = None
        with ExitStack() as undo:
            undo.callback(self._context.destroy, 0)
            if settings.curve is not None:
                self._readers = KnownReaders(self._context, settings.curve.clients)
            self._publish = self._bind(zmq.PUB, "--kv-events", settings.publish, PUBLISH_HIGH_WATER, settings.curve)
            if settings.replay is not None:
                # Room for a whole history, twice: a ROUTER drops what does not fit, and the reader would not know.
                water = 2 * (MAX_BATCHES + 1)
                self._replay = self._bind(zmq.ROUTER, "--kv-events-replay", settings.replay, water, settings.curve)
            undo.pop_all()
        self.address = self._publish.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_address = self._replay.getsockopt_string(zmq.LAST_ENDPOINT) if self._replay is not None else None
        self._thread = threading.Thread(target=self._main, name="kvgrove-kv-events", daemon=True)

    def _bind(self, kind: int, option: str, address: str, water: int, curve: CurveFiles | None) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, water)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            if curve is not None:
                socket.curve_publickey, socket.curve_secretkey = _key_pair(curve)
                socket.curve_server = True
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ExportRefused(
                f"{option} {address}: {error.strerror}; choose another address, or port * for any", field=option
            ) from None
        return socket

    def start(self) -> None:
        self._metrics.up.set(1)
        self._thread.start()

    def close(self) -> bool:
        """End the thread and release the addresses; False where it has not ended in `STOP_S`.

        It then keeps what it uses: sockets closed under it, or their numbers given to others, are worse than a thread
        that ends with the process.
        """
        self._stopping = True
        self._outbox.ring()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        if self._thread.is_alive():
            log.warning(
                "the publisher of KV events has not ended in %g s and is left to the end of the process", STOP_S
            )
            return False
        self._context.destroy(0)
        return True

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        poller = zmq.Poller()
        poller.register(self._outbox.wake, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        if self._readers is not None:
            poller.register(self._readers.socket, zmq.POLLIN)
        try:
            while not self._stopping:
                poller.poll()
                if self._readers is not None:
                    self._readers.answer()
                requests = self._requests()  # taken first: an answer has all that was put before it was asked for
                self._outbox.hush()
                while (item := self._outbox.take()) is not None and not self._stopping:
                    if item.answer:
                        self._answer_listing(item.notes)
                    else:
                        for part in _batches(item.notes):
                            self._send(part)
                for frames in requests:
                    self._serve(frames)
        except zmq.ZMQError as error:
            log.error("the export of KV events ends: %s", error.strerror)
        finally:
            self._metrics.up.set(0)  # an alert hangs on it: readers get no more, and requests are served on

    def _send(self, notes: Sequence[Note]) -> None:
        payload = self._payload(notes)
        self._publish.send_multipart([TOPIC, self._next.to_bytes(8, "big"), payload])
        self._history.add(self._next, payload)
        self._next += 1
        self._metrics.batches.inc()
        for note in notes:
            if not isinstance(note, Cleared):
                self._metrics.blocks.labels("stored" if isinstance(note, Listed) else "removed").inc(blocks_of(note))

    def _payload(self, notes: Sequence[Note]) -> bytes:
        return self._encoder.payload(notes, self._now())

    def _requests(self) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        while self._replay is not None and len(found) < MAX_REQUESTS_AT_ONCE:
            try:
                found.append(self._replay.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        return found

    def _serve(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or frames[1] or len(frames[2]) != len(END):
            self._metrics.replays.labels("malformed").inc()
        elif frames[2] != LISTING:
            self._answer(frames[0], self._history.since(int.from_bytes(frames[2], "big")))
        elif len(self._askers) < MAX_LISTING_REQUESTS:
            self._askers.append(frames[0])
            self._outbox.want_listing()
        else:
            self._metrics.replays.labels("refused").inc()

    def _answer_listing(self, notes: Sequence[Note]) -> None:
        askers, self._askers = dict.fromkeys(self._askers), []
        payloads = [self._payload(part) for part in _batches(notes)]
        for asker in askers:
            self._answer(asker, ((self._next - 1, payload) for payload in payloads))

    def _answer(self, asker: bytes, batches: Iterable[tuple[int, bytes]]) -> None:
        assert self._replay is not None  # noqa: S101 - somebody asked
        try:
            for number, payload in batches:
                self._replay.send_multipart([asker, b"", TOPIC, number.to_bytes(8, "big"), payload], zmq.NOBLOCK)
            self._replay.send_multipart([asker, b"", b"", END, b""], zmq.NOBLOCK)
        except zmq.Again:
            self._metrics.replays.labels("cut").inc()
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._metrics.replays.labels("gone").inc()
        else:
            self._metrics.replays.labels("complete").inc()


def _batches(notes: Sequence[Note]) -> Iterator[list[Note]]:
    """``notes`` in parts that keep a payload short."""
    part: list[Note] = []
    blocks = 0
    for note in notes:
        if part and blocks + blocks_of(note) > MAX_BLOCKS_PER_BATCH:
            yield part
            part, blocks = [], 0
        part.append(note)
        blocks += blocks_of(note)
    if part:
        yield part


def _key_pair(curve: CurveFiles) -> tuple[bytes, bytes]:
    try:
        public, secret = load_certificate(str(curve.key))
    except (OSError, ValueError):
        public, secret = b"", None
    if secret is None:
        raise ExportRefused(
            f"--kv-events-key {curve.key}: no ZeroMQ certificate with a secret key can be read there; make one with "
            "zmq.auth.create_certificates",
            field="--kv-events-key",
        )
    return public, secret
