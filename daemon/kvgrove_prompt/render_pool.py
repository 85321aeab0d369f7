"""Templates rendered in processes that are killed when they take too long (ISO-15). Thread-safe.

A template is other people's code. Nested loops, a huge product or a pattern without end cost the worker that renders
it, never the process that serves: it is killed at its bound and replaced. A template that was killed several times in
a row is not tried again. Workers are kept, so that an ordinary render costs a round trip; there are as many as may run
at once, and whoever finds none free waits for one, for no longer than the bound.
"""

import hashlib
import os
import queue
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from kvgrove_prompt.errors import InvalidMessages, RendererLost, TemplateTooSlow, TemplateUnsupported
from kvgrove_prompt.render_wire import Order, Reply, receive_reply, send
from kvgrove_prompt.rendering import Job
from kvgrove_prompt.seams import Piece

KILLS_AT_MOST = 3
"""Of one template in a row; then it is refused without being tried."""

MAX_KILLED = 256
"""Templates whose kills are remembered."""

BUFFER_BYTES = 1 << 20

_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG")


class RenderPool:
    """A `template.Renderer`. `close` ends the workers; a worker also ends by itself when this process does."""

    def __init__(
        self,
        workers: int,
        *,
        seconds: float = 5.0,
        on_kill: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seconds``: bound of one render, or compilation. ``on_kill``: told of each worker killed at it."""
        self._seconds = seconds
        self._on_kill = on_kill
        self._clock = clock
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._closed = False
        self._kills: OrderedDict[bytes, int] = OrderedDict()
        for _ in range(workers):
            self._free.put(None)  # started when first wanted

    def prepare(self, source: str, max_chars: int) -> Callable[[Job], list[Piece]]:
        """See `template.Renderer`; both also raise RendererLost where a worker cannot be had or died of itself."""
        template = _Template(hashlib.sha256(f"{max_chars} {source}".encode()).digest(), source, max_chars)
        self._run(template, None)
        return lambda job: self._run(template, job)

    def close(self) -> None:
        """End the workers that are idle; the others end when they are done, or at their bound."""
        self._closed = True
        while True:
            try:
                worker = self._free.get_nowait()
            except queue.Empty:
                return
            if worker is not None:
                worker.end()

    def _run(self, template: "_Template", job: Job | None) -> list[Piece]:
        if self._kills.get(template.digest, 0) >= KILLS_AT_MOST:
            raise _too_slow(self._seconds)
        try:
            worker = self._free.get(timeout=self._seconds)
        except queue.Empty:
            raise RendererLost("no template worker became free in time: try again") from None
        kept: _Worker | None = None
        try:
            worker = worker if worker is not None and worker.alive else _Worker()
            reply = self._ask(worker, template, job)
            kept = worker
        finally:
            if kept is None and worker is not None:
                worker.end()
            self._put_back(kept)
        if reply.error == InvalidMessages.code:
            raise InvalidMessages(reply.field, reply.message.removeprefix(f"{reply.field}: "))
        if reply.error:
            raise TemplateUnsupported(reply.message, field=reply.field or None)
        return reply.pieces

    def _ask(self, worker: "_Worker", template: "_Template", job: Job | None) -> Reply:
        deadline = self._clock() + self._seconds
        sources = (template.source,) if job is None else ("", template.source)
        for source in sources:
            order = Order(template.digest, template.max_chars, self._seconds, source, job)
            try:
                reply = worker.ask(order, max(0.001, deadline - self._clock()))
            except TimeoutError:
                self._killed(template)
                raise _too_slow(self._seconds) from None
            if reply is None:
                raise RendererLost("a template worker ended: try again")
            if not reply.unknown:
                self._kills.pop(template.digest, None)
                return reply
        raise RendererLost("a template worker forgets its templates: try again")

    def _killed(self, template: "_Template") -> None:
        """One kill more; of two threads at once one may go uncounted, which does no harm."""
        self._kills[template.digest] = self._kills.get(template.digest, 0) + 1
        while len(self._kills) > MAX_KILLED:
            self._kills.popitem(last=False)
        self._on_kill()

    def _put_back(self, worker: "_Worker | None") -> None:
        if self._closed and worker is not None:
            worker.end()
            worker = None
        self._free.put(worker)


class _Template(msgspec.Struct, frozen=True):
    digest: bytes
    source: str
    max_chars: int


class _Worker:
    """One process. Raises RendererLost if it cannot be started."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for side in (ours, theirs):  # a long prompt in one go, where the system allows it
            side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvgrove_prompt.render_worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback could quote what was rendered (I12)
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            )
        except OSError as error:
            ours.close()
            raise RendererLost(f"a template worker cannot be started: {error.strerror}") from None
        finally:
            theirs.close()
        self._link = ours

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, order: Order, seconds: float) -> Reply | None:
        """The reply; None if the worker ends first. Raises TimeoutError after ``seconds`` without progress."""
        self._link.settimeout(seconds)
        try:
            send(self._link, order)
            return receive_reply(self._link)
        except (BrokenPipeError, ConnectionResetError):
            return None

    def end(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()


def _too_slow(seconds: float) -> TemplateTooSlow:
    return TemplateTooSlow(
        f"the chat template takes more than {seconds:g} s to render: simplify its loops", field="chat_template"
    )
