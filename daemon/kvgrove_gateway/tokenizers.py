"""Tokenizers by bundle digest, and the threads that assemble prompts with them.

Bundles come from daemons, so that a gateway needs no weights; bytes whose digest is another are not used. Rendering
and tokenising run in a few threads: the event loop only streams. Both the waiting line and the number of tokenizers
kept are bounded (I11).
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from kvgrove_gateway.errors import Busy, Unavailable
from kvgrove_prompt.bundle import bundle_digest
from kvgrove_prompt.continuity import TemplateWarning, template_warnings
from kvgrove_prompt.template import Renderer
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.errors import Retryable, Terminal

log = logging.getLogger(__name__)

T = TypeVar("T")

FetchBundle = Callable[[bytes], Awaitable[bytes]]


class AssemblyThreads:
    """A small pool with a bounded waiting line."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="assembly")
        self._limit = threads + waiting
        self.pending = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of ``work``, computed off the loop; raises Busy when too many wait already.

        Cancelling the waiter does not stop work that has begun; the place in line is held until it ends.
        """
        if self.pending >= self._limit:
            raise Busy("Too many prompts are waiting to be tokenised: try again shortly.")
        self.pending += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._left)
        return await asyncio.shield(future)

    def _left(self, future: "asyncio.Future[T]") -> None:
        self.pending -= 1
        if not future.cancelled():
            future.exception()  # seen, also where the waiter has gone

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class TemplateWatcher(Protocol):
    """By the first 12 hexadecimal digits of a bundle's digest. On the event loop."""

    def warned(self, bundle: str, warnings: Sequence[TemplateWarning]) -> None:
        """A bundle was loaded."""

    def dropped(self, bundle: str) -> None:
        """It is kept no more."""


class TokenizerStore:
    """Digest -> tokenizer, loaded once each. On the event loop only."""

    def __init__(
        self,
        fetch: FetchBundle,
        threads: AssemblyThreads,
        *,
        keep: int,
        timeout_s: float,
        renderer: Renderer | None = None,
        watcher: TemplateWatcher | None = None,
    ) -> None:
        """``fetch``: bytes of a bundle from any daemon; raises Retryable if none has it. ``renderer``: of templates.

        ``watcher``: told of templates that re-write what was said.
        """
        self._fetch = fetch
        self._threads = threads
        self._keep = keep
        self._timeout_s = timeout_s
        self._renderer = renderer
        self._watcher = watcher
        self._loaded: OrderedDict[bytes, PromptTokenizer] = OrderedDict()
        self._loading: dict[bytes, asyncio.Task[PromptTokenizer]] = {}

    async def get(self, digest: bytes) -> PromptTokenizer:
        """The tokenizer of bundle ``digest``; raises Unavailable if it cannot be had in time."""
        known = self._loaded.get(digest)
        if known is not None:
            self._loaded.move_to_end(digest)
            return known
        task = self._loading.get(digest)
        if task is None:
            task = self._loading[digest] = asyncio.create_task(self._load(digest))
            task.add_done_callback(lambda done: self._finished(digest, done))
        return await asyncio.shield(task)

    async def _load(self, digest: bytes) -> PromptTokenizer:
        try:
            async with asyncio.timeout(self._timeout_s):
                bundle = await self._fetch(digest)
            if bundle_digest(bundle) != digest:
                raise Unavailable("The tokenizer arrived damaged: try again.", code="tokenizer_unavailable")
            tokenizer, warnings = await self._threads.run(lambda: _loaded(bundle, self._renderer))
        except (Retryable, TimeoutError) as error:
            if isinstance(error, (Unavailable, Busy)):
                raise
            raise Unavailable("The tokenizer is not available yet: try again.", code="tokenizer_unavailable") from None
        except Terminal as error:
            raise Unavailable("The tokenizer cannot be used: ask the operator.", code=error.code) from None
        self._loaded[digest] = tokenizer
        for warning in warnings:
            log.warning("tokenizer bundle %s: %s", _short(digest), warning.message)
        if self._watcher is not None:
            self._watcher.warned(_short(digest), warnings)
        while len(self._loaded) > self._keep:
            gone, _ = self._loaded.popitem(last=False)
            if self._watcher is not None:
                self._watcher.dropped(_short(gone))
        return tokenizer

    def _finished(self, digest: bytes, task: "asyncio.Task[PromptTokenizer]") -> None:
        self._loading.pop(digest, None)
        if not task.cancelled():
            task.exception()  # seen, also where every waiter has gone


def _loaded(bundle: bytes, renderer: Renderer | None) -> tuple[PromptTokenizer, list[TemplateWarning]]:
    """The tokenizer, and what is to be said of its template, found out now so that no request waits for it."""
    tokenizer = PromptTokenizer.from_bundle(bundle, renderer=renderer)
    return tokenizer, template_warnings(tokenizer)


def _short(digest: bytes) -> str:
    return digest.hex()[:12]
