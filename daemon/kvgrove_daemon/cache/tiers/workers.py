"""Worker threads for what blocks: reading, writing and erasing media.

Role: run a piece of work elsewhere and its conclusion back in the core thread. Invariants: conclusions run in the order
in which the work ended, only within `poll`, so the cache stays single-threaded; loads, which a request waits for, never
queue behind writes, which nobody waits for. Bounded by those who submit: each keeps count of what it has under way.
Must not know: blocks, media. Work catches the errors that it expects; any other is a defect and is raised by `poll`.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Protocol, TypeVar

import torch

Lane = Literal["load", "write"]
T = TypeVar("T")


class Workers(Protocol):
    """What tiers ask for."""

    def submit(self, lane: Lane, work: Callable[[], T], conclude: Callable[[T], None]) -> None:
        """Run ``work`` elsewhere, later ``conclude`` with its answer in the core thread."""


class TierWorkers:
    """Threads for both lanes. ``wake()`` is called from a worker whenever `poll` has something to do."""

    def __init__(self, wake: Callable[[], None], *, loaders: int = 2, writers: int = 1) -> None:
        self._wake = wake
        self._lanes: dict[Lane, ThreadPoolExecutor] = {
            "load": ThreadPoolExecutor(loaders, "kvgrove-load", initializer=_alone),
            "write": ThreadPoolExecutor(writers, "kvgrove-write", initializer=_alone),
        }
        self._ended: queue.SimpleQueue[tuple[Future[Any], Callable[[Any], None]]] = queue.SimpleQueue()

    def submit(self, lane: Lane, work: Callable[[], T], conclude: Callable[[T], None]) -> None:
        """See `Workers`."""

        def ended(future: Future[T]) -> None:
            if not future.cancelled():
                self._ended.put((future, conclude))
                self._wake()

        self._lanes[lane].submit(work).add_done_callback(ended)

    def poll(self) -> int:
        """Conclude what has ended; how many. Raises what work raised."""
        concluded = 0
        while True:
            try:
                future, conclude = self._ended.get_nowait()
            except queue.Empty:
                return concluded
            conclude(future.result())
            concluded += 1

    def close(self) -> None:
        """Start nothing more and wait for what is running; nothing is concluded any more."""
        for lane in self._lanes.values():
            lane.shutdown(wait=True, cancel_futures=True)


def _alone() -> None:
    """A copy of one block is too small to be worth a team of threads, which would also disturb the engine's."""
    torch.set_num_threads(1)
