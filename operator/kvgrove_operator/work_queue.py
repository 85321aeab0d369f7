"""What is to be looked at, and when: a keyed queue with bounded, jittered retries. Pure: time and jitter are handed in.

A key says "look at this object", never what happened to it, so that any number of events for one object are one piece
of work and a missed event costs at most a resync. A key is worked on by one worker at a time: what is added meanwhile
is looked at again afterwards, as the work under way may have read what was there before.

=========  ===========================================================================================================
a key is   meaning
=========  ===========================================================================================================
waiting    It has a time from which on it may be taken.
running    Taken; `done` or `failed` ends that.
exhausted  Its retries have reached their bound: reported by `trouble`, and looked at again at the next `add`, which
           a resync is too. One success forgets everything.
=========  ===========================================================================================================

Of keys that are due, those that come first (few, and each one piece of work: what everybody waits for) go before all
others, whose number knows no bound; and among equals the one that has been due for the longest time. One that comes
first then rests for as long as it took, so that it leaves the others half of the time.
"""

import heapq
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Pace:
    """All times in seconds."""

    between: float = 0.2
    """From the end of a piece of work to the next of the same key."""
    first_backoff: float = 0.5
    longest_backoff: float = 60.0
    attempts: int = 8
    """In a row, before a key counts as exhausted."""
    keys: int = 65_536
    """Kept at once; further ones are refused and counted: the next resync brings them."""


@dataclass(frozen=True)
class Trouble:
    """Why a key does not get done."""

    reason: str
    attempts: int
    exhausted: bool


@dataclass
class _Work:
    due: float = 0.0
    waiting: bool = False
    running: bool = False
    free_from: float = 0.0
    """Not to be taken again before: the end of the last run and `Pace.between`."""
    began: float = 0.0
    """When it was taken last."""
    trouble: Trouble | None = None


class WorkQueue(Generic[K]):
    """``jitter()`` is uniform in [0, 1). ``first``: keys that come first."""

    def __init__(self, *, jitter: Callable[[], float], pace: Pace = Pace(), first: Collection[K] = ()) -> None:
        self._jitter, self._pace = jitter, pace
        self._works: dict[K, _Work] = {}
        self._first = frozenset(first)
        self._ahead: list[tuple[float, int, K]] = []
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self.refused = 0
        """Keys that found the queue full; only rises."""

    def __len__(self) -> int:
        """Keys that wait."""
        return sum(work.waiting for work in self._works.values())

    def add(self, key: K, now: float, *, delay: float = 0.0) -> None:
        """Look at ``key`` from ``now + delay`` on; one that waits already comes no later for it.

        A key that failed waits out its backoff, unless it is exhausted: then this is its next chance.
        """
        work = self._works.get(key)
        if work is None:
            if len(self._works) >= self._pace.keys:
                self.refused += 1
                return
            work = self._works[key] = _Work()
        due = max(now + delay, work.free_from)
        if work.waiting and work.due <= due:
            return
        if work.waiting and work.trouble is not None and not work.trouble.exhausted:
            return
        self._push(key, work, due)

    def take(self, now: float) -> K | None:
        """A key that is due, which is running from now on; None: none is."""
        for heap in (self._ahead, self._heap):
            due = self._next(heap)
            if due is None or due > now:
                continue
            key = heapq.heappop(heap)[2]
            work = self._works[key]
            work.waiting, work.running, work.began = False, True, now
            return key
        return None

    def done(self, key: K, now: float) -> None:
        """The work on ``key`` succeeded."""
        work = self._end(key, now)
        work.trouble = None
        self._again(key, work, now)

    def failed(self, key: K, now: float, reason: str) -> Trouble:
        """The work on ``key`` failed for ``reason`` (for people); it is retried, unless that is exhausted."""
        work = self._end(key, now)
        attempts = 1 if work.trouble is None or work.trouble.exhausted else work.trouble.attempts + 1
        work.trouble = Trouble(reason, attempts, exhausted=attempts >= self._pace.attempts)
        if not work.trouble.exhausted:
            longest = min(self._pace.longest_backoff, self._pace.first_backoff * 2.0 ** min(attempts - 1, 32))
            self._push(key, work, now + longest / 2 + self._jitter() * longest / 2)
        elif work.waiting:
            self._push(key, work, max(work.due, work.free_from))
        return work.trouble

    def trouble(self, key: K) -> Trouble | None:
        """What keeps ``key`` from getting done; None: nothing that is known."""
        work = self._works.get(key)
        return work.trouble if work is not None else None

    def next_due(self) -> float | None:
        """When `take` may give something, unless more is added; None: not before something is."""
        found = [due for heap in (self._ahead, self._heap) if (due := self._next(heap)) is not None]
        return min(found, default=None)

    def forget_idle(self, now: float) -> None:
        """Drop what is known of keys with nothing to do and no trouble; call it now and then."""
        self._works = {
            key: work
            for key, work in self._works.items()
            if work.waiting or work.running or work.trouble is not None or work.free_from > now
        }

    def forget(self, key: K) -> None:
        """The object of ``key`` is gone: whatever troubled it is over. What runs is not stopped."""
        work = self._works.get(key)
        if work is not None:
            work.trouble = None

    def _next(self, heap: list[tuple[float, int, K]]) -> float | None:
        """When the first of ``heap`` that still counts is due; what does not is dropped."""
        while heap:
            due, _, key = heap[0]
            work = self._works.get(key)
            if work is not None and work.waiting and work.due == due and not work.running:
                return due
            heapq.heappop(heap)  # an older time of it, or `done` will push it again
        return None

    def _push(self, key: K, work: _Work, due: float) -> None:
        work.waiting, work.due = True, due
        if work.running:
            return  # a worker has it; `done` or `failed` puts it back
        self._count += 1
        heapq.heappush(self._ahead if key in self._first else self._heap, (due, self._count, key))

    def _end(self, key: K, now: float) -> _Work:
        work = self._works[key]
        rest = max(self._pace.between, now - work.began) if key in self._first else self._pace.between
        work.running, work.free_from = False, now + rest
        return work

    def _again(self, key: K, work: _Work, now: float) -> None:
        if work.waiting:
            self._push(key, work, max(work.due, work.free_from, now))
