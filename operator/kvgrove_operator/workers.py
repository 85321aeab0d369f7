"""Takes keys off the queue and has them worked on, a few at a time; and adds all of them again now and then.

A reconcile that fails on purpose (our own errors, or a status that cannot be composed) is retried by the queue's
bounds. What ends the operator's right to act, or is a defect, ends the run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from kvgrove_link.clock import boottime
from kvgrove_operator.fleet_memory import Outdated
from kvgrove_operator.keys import PLAN, Key
from kvgrove_operator.leadership import LeadershipLost
from kvgrove_operator.store import StoreTaken
from kvgrove_operator.work_queue import WorkQueue
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger("kvgrove_operator")

AT_ONCE = 8
_FINAL = (LeadershipLost, Outdated, StoreTaken)


@dataclass
class WorkCounters:
    """All only rise."""

    done: int = 0
    failed: int = 0
    exhausted: int = 0
    resyncs: int = 0


@dataclass(frozen=True)
class Work:
    """What is done. All but ``reconcile`` return at once."""

    reconcile: Callable[[Key], Awaitable[None]]
    """The work of a key."""
    everything: Callable[[], Iterable[Key]]
    """All keys there are."""
    turned: Callable[[Key], None]
    """Is told of a key whose retries have reached their bound, and again when it gets done after all."""


class Workers:
    """``resync``: seconds between two looks at everything."""

    def __init__(self, queue: WorkQueue[Key], *, resync: float) -> None:
        self.counters = WorkCounters()
        self.planned_at = boottime()
        """When everything declared was last read and planned (CLOCK_BOOTTIME)."""
        self._queue, self._resync = queue, resync
        self._woken = asyncio.Event()

    def add(self, key: Key, *, delay: float = 0.0) -> None:
        """Have ``key`` looked at. Only from the event loop."""
        self._queue.add(key, boottime(), delay=delay)
        self._woken.set()

    async def run(self, work: Work) -> None:
        """For ever. Raises what ends the operator's right to act."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._resync_for_ever(work))
            slots = asyncio.Semaphore(AT_ONCE)
            while True:
                await slots.acquire()
                key = await self._next()
                group.create_task(self._do(work, key, slots))

    async def _next(self) -> Key:
        while True:
            self._woken.clear()
            now = boottime()
            key = self._queue.take(now)
            if key is not None:
                return key
            due = self._queue.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _do(self, work: Work, key: Key, slots: asyncio.Semaphore) -> None:
        try:
            await work.reconcile(key)
        except _FINAL:
            raise
        except (KvgroveError, ValidationError) as error:
            self._fail(work, key, error)
        else:
            self.counters.done += 1
            before = self._queue.trouble(key)
            self._queue.done(key, boottime())
            if before is not None and before.exhausted:
                work.turned(key)
            if key == PLAN:
                self.planned_at = boottime()
            log.debug("%s: done", key)
        finally:
            self._woken.set()
            slots.release()

    def _fail(self, work: Work, key: Key, error: KvgroveError | ValidationError) -> None:
        reason = error.message if isinstance(error, KvgroveError) else f"{error.error_count()} fields cannot be written"
        trouble = self._queue.failed(key, boottime(), reason)
        self.counters.failed += 1
        log.warning("%s: attempt %d: %s", key, trouble.attempts, reason)
        if trouble.exhausted:
            self.counters.exhausted += 1
            work.turned(key)

    async def _resync_for_ever(self, work: Work) -> None:
        while True:
            for key in work.everything():
                self.add(key)
            self.counters.resyncs += 1
            self._queue.forget_idle(boottime())
            await asyncio.sleep(self._resync)
