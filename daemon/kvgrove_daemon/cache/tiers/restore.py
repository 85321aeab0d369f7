"""Fetches what the pool lacks and a slower tier has, straight into a request's own slots.

Role: hold the continuation of a pool's match on the tiers below, and move it. Invariants:

- What was found is under a lease from the look-up until the worker has acknowledged: it cannot go in between (CON-01,
  CON-05). It was proven by root, folds and every token (I1), and each body is verified by its medium (ISO-12).
- A worker writes only to slots that are private to the request, and to none once `Load.abandon` has returned: whoever
  waits may stop waiting at any time, and may use or free the slots at once.
- What failed at block j ends the reuse before j; the request computes the rest (I7).

Must not know: requests, engines, plans, how slots are allocated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvgrove_daemon.cache.leases import Lease
from kvgrove_daemon.cache.tiers.break_even import Found, Probes, blocks_worth_loading
from kvgrove_daemon.cache.tiers.facts import facts_of
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Facts, Medium, MediumCorrupt
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_protocol.errors import KvgroveError

PATIENCE: Final = 2.0
"""A load is given up after so many times what computing its blocks would have taken."""
SHORTEST_WAIT_S: Final = 0.25
LONGEST_WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Blocks ``[first, stop)`` of a chain on one tier."""

    tier: LowerTier
    first: int
    stop: int
    lease: Lease


Fill = Callable[[int, bytes], None]
"""Fills a slot of the pool, that is private to whoever waits, with a block's bytes."""


class Below:
    """What the tiers below have of one chain beyond the pool's match, under leases until `release`."""

    def __init__(self, parts: Sequence[Part], first: int, declined: int, write: Fill) -> None:
        self.parts = parts
        self.write = write
        self.first = first
        """Blocks that the pool has."""
        self.upto = parts[-1].stop if parts else first
        """Blocks ``[first, upto)`` are there and worth loading."""
        self.declined = declined
        """So many after them are there too, and computing them is quicker."""

    def by_tier(self, blocks: int) -> dict[str, int]:
        """Tier -> how many of the first ``blocks`` blocks come from it; tiers that give none are left out."""
        stop = self.first + blocks
        return {part.tier.name: min(part.stop, stop) - part.first for part in self.parts if part.first < stop}

    def release(self) -> None:
        """Let go of all of it. Calling it again does nothing."""
        for part in self.parts:
            if part.lease.active:
                part.lease.release()


Span = tuple[LowerTier, int, int, int]
"""A tier, the blocks ``[first, stop)`` of a chain that it adds, and its id of the last of them."""


def weigh(
    spans: Sequence[Span], first: int, write: Fill, *, block_tokens: int, prefill_tokens_per_s: float, probes: Probes
) -> Below:
    """Lease what is worth loading of ``spans``, which follow block ``first`` and each other."""
    end = spans[-1][2] if spans else first
    worth = worth_loading(spans, block_tokens=block_tokens, prefill_tokens_per_s=prefill_tokens_per_s)
    if first + worth < end and probes.overrule():
        worth = end - first
    parts = [
        Part(tier, start, stop, tier.resident.leases.take(tail))
        for tier, start, stop, tail in spans
        if stop <= first + worth
    ]
    return Below(parts, first, end - first - worth, write)


def worth_loading(spans: Sequence[Span], *, block_tokens: int, prefill_tokens_per_s: float) -> int:
    """How many leading blocks of ``spans`` are loaded sooner than computed, by the rates measured so far."""
    return blocks_worth_loading(
        [Found(stop - start, tier.speed.now) for tier, start, stop, _ in spans],
        block_bytes=spans[0][0].body_bytes if spans else 0,
        block_tokens=block_tokens,
        prefill_tokens_per_s=prefill_tokens_per_s,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    medium: Medium
    source: int
    facts: Facts
    target: int


class Load:
    """One `Below` on its way into private slots. Made in the core thread; `work` runs in a worker."""

    def __init__(self, below: Below, slots: Sequence[int], clock: Callable[[], float]) -> None:
        """``below`` has parts. ``slots``: for its blocks ``[first, upto)``, private to whoever waits."""
        self.below = below
        self._pieces: list[_Piece] = []
        self._tiers: list[LowerTier] = []
        self._blocks: list[int] = []  # ids on their tiers, which the leases keep from changing
        for part in below.parts:
            ids = part.tier.index.last_ids(part.lease.tail, part.stop - part.first).tolist()
            for at, block in enumerate(ids, part.first - below.first):
                index = part.tier.index
                self._pieces.append(_Piece(part.tier.medium, index.slot[block], facts_of(index, block), slots[at]))
                self._tiers.append(part.tier)
                self._blocks.append(block)
        self._block_tokens = below.parts[0].tier.index.block_size
        self._body_bytes = below.parts[0].tier.body_bytes
        self._write = below.write
        self._clock = clock
        self._begun_at = clock()
        self._lock = threading.Lock()
        self._abandoned = False
        self._seconds: list[float] = []
        self.loaded = 0
        """Leading blocks whose bytes are whole in their slots. Only grows; final after `abandon` or the conclusion."""
        self.error: KvgroveError | None = None
        """What ended it early."""

    def patience(self, prefill_tokens_per_s: float) -> float:
        """For how many seconds whoever waits should wait, in all."""
        if prefill_tokens_per_s <= 0.0:
            return LONGEST_WAIT_S
        tokens = len(self._pieces) * self._block_tokens
        return min(max(PATIENCE * tokens / prefill_tokens_per_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)

    def work(self) -> None:
        """Move block after block until one fails or nobody waits any more."""
        for piece in self._pieces:
            begun = self._clock()
            try:
                body = piece.medium.read(piece.source, piece.facts)
                if len(body) != self._body_bytes:
                    raise MediumCorrupt(f"{piece.medium.name}: {len(body)} bytes are no block", field="body")
            except KvgroveError as error:
                self.error = error
                return
            with self._lock:
                if self._abandoned:
                    return
                self._write(piece.target, bytes(body))
                self.loaded += 1
                self._seconds.append(self._clock() - begun)

    def abandon(self) -> int:
        """Wait no longer: from the return on no slot is written to. Answers how many blocks are whole."""
        with self._lock:
            self._abandoned = True
            return self.loaded

    def conclude(self) -> None:
        """In the core thread, once `work` has ended: measure, set aside what is broken, let go of the sources."""
        waited = self._clock() - self._begun_at - sum(self._seconds)
        for part in self.below.parts:
            low, high = part.first - self.below.first, min(part.stop - self.below.first, self.loaded)
            if high > low:
                part.tier.loaded += high - low
                moving = sum(self._seconds[low:high])
                size = (high - low) * part.tier.body_bytes
                part.tier.speed.record(size, moving_s=moving, waiting_s=waited)
        if self.error is not None:
            self._tiers[self.loaded].unreadable(self._blocks[self.loaded], self.error)
        self.below.release()


def begin_load(
    below: Below,
    slots: Sequence[int],
    *,
    workers: Workers,
    clock: Callable[[], float],
    ended: Callable[[Load], None],
) -> Load:
    """Move what ``below`` holds into ``slots``; ``ended`` is called in the core thread, once, when it is over."""
    load = Load(below, slots, clock)

    def conclude(_: None) -> None:
        load.conclude()
        ended(load)

    workers.submit("load", load.work, conclude)
    return load
