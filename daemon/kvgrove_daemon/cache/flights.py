"""Who computes which missing block, and who waits for it: one build per key, party and node.

Role: keep requests from computing the same prefix twice at the same time. The *leader* of a flight is a live build; a
request whose next missing block is on its way *waits* for it. Pure bookkeeping: time, jitter and the node's pace are
given, and what is to be done about it is answered as `Wake`. Single-threaded.
Must not know: stores, engines, sockets. A waiter holds nothing while it waits: it is matched again when it is woken.

Invariants:

- *Different tenants never wait for each other* (I2, I11). A party is a tenant, and a request waits for flights of its
  own party or of warm-up, which is nobody's. Keys of declared prefixes are equal for all tenants, so two tenants may
  compute the same one at the same time: that costs a prefill, and a common flight would let one tenant's slow, failing
  or hostile request delay another's. A caller without a tenant is a party of its own: it waits for warm-up alone.
- *A key has one leader per party*: the first that said so. Everything that keys hold (generation with adapter,
  namespace, purge, policy, private realm, tokens) tells flights apart too (CON-09).
- *Waits are bounded* (I11): by ``max_wait_s`` in all, over however many leaders, and for each leader by what computing
  the blocks oneself would have taken, with the node's queue and its measured rate. A wait that ran out is not repeated.
- *A leader that ends, however it does, wakes all its waiters*, oldest first: the first of them to begin is the next
  leader. One that committed nothing for as long as a waiter may wait is SILENT: it leads no more, and its successor
  computes into slots of its own. The silent one's slots are its build's until that ends (I5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvgrove_daemon.cache.backoff import Backoff
from kvgrove_daemon.cache.flight_life import FlightEvent, FlightState, Wake, WakeCause, step

WARM_UP: Final = ""
"""The party of warm-up: no tenant has this name, and every tenant may wait for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request found, and what it lacks."""

    party: str | None
    """Its tenant, `WARM_UP`, or None for a caller without a tenant."""
    keys: Sequence[bytes]
    """Of all full blocks of its prompt."""
    matched: int
    """Blocks that it would reuse now."""
    stop: int
    """Blocks from there on it could not reuse."""
    block_size: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How long this node takes to compute a prompt."""

    queued_tokens: int
    """To be computed before a request that comes now."""
    tokens_per_s: float
    """0: not measured yet."""


@dataclass(frozen=True, slots=True)
class FlightStats:
    """Counters only grow; ``waiting`` is of now."""

    led: int
    joined: int
    take_overs: int
    time_outs: int
    waiting: int


@dataclass(slots=True)
class _Flight:
    party: str
    keys: Sequence[bytes]
    committed: int
    state: FlightState = FlightState.FLYING


@dataclass(slots=True)
class _Wait:
    """Kept from the first `join` to `settle`, so that bounds hold over several leaders."""

    limit: float
    since: float = 0.0
    tokens: int = 0
    """What this node would have computed by the time that this request had computed what it waits for itself."""
    flight: _Flight | None = None
    upto: int = 0
    """Blocks that are shared with the flight."""
    seen: int = 0
    """Of the flight, committed when this wait for it began."""
    deadline: float | None = None
    """None: awake."""
    spent: bool = False
    """Its bound ran out: it joins no more."""
    orphaned: bool = False
    """Its leader ended or fell silent: if it leads next, that is a take-over."""
    ran_out: range = range(0)

    def patience(self, tokens_per_s: float) -> float | None:
        """Until when computing would have taken; None where nothing was measured."""
        return self.since + self.tokens / tokens_per_s if tokens_per_s > 0 else None


class Flights:
    """All flights of one store. Ids of leaders and waiters are the caller's, each a request's."""

    def __init__(self, *, max_wait_s: float, backoff: Backoff) -> None:
        self._max_wait_s = max_wait_s
        self._backoff = backoff
        self._flights: dict[str, _Flight] = {}
        self._led: dict[str, dict[bytes, _Flight]] = {}
        """Party -> key that is not READY yet -> its flight."""
        self._waits: dict[str, _Wait] = {}
        """In order of their first `join`."""
        self._counts = {"led": 0, "joined": 0, "take_overs": 0, "time_outs": 0}

    # -- leaders -------------------------------------------------------------------------------------------------------

    def lead(self, leader: str, party: str | None, keys: Sequence[bytes], first: int) -> None:
        """``leader`` computes the blocks of ``keys`` from ``first`` on. Those that fly already keep their leader."""
        wait = self._waits.get(leader)
        if wait is not None and wait.orphaned:
            self._counts["take_overs"] += 1
        if party is None or first >= len(keys):
            return
        led = self._led.setdefault(party, {})
        free = [key for key in keys[first:] if key not in led]
        if free:
            flight = self._flights[leader] = _Flight(party, keys, first)
            led.update(dict.fromkeys(free, flight))
            self._counts["led"] += 1

    def progress(self, leader: str, upto: int) -> list[Wake]:
        """Blocks below ``upto`` of the leader are READY. An unknown leader is a no-op, here and in `end`."""
        flight = self._flights.get(leader)
        if flight is None or upto <= flight.committed:
            return []
        flight.state = step(flight.state, FlightEvent.COMMIT)
        done = flight.keys[flight.committed : upto]
        flight.committed = min(upto, len(flight.keys))
        self._release(flight, done)
        self._backoff.succeeded((flight.party, key) for key in done)
        return [
            self._wake(waiter, wait, WakeCause.COVERED)
            for waiter, wait in self._waits.items()
            if wait.flight is flight and wait.upto <= flight.committed
        ]

    def end(self, leader: str, now: float, *, failed: bool = False) -> list[Wake]:
        """The leader makes no more blocks READY. ``failed``: its next block is tried again only after a pause."""
        flight = self._flights.pop(leader, None)
        if flight is None:
            return []
        flight.state = step(flight.state, FlightEvent.END)
        if failed and flight.committed < len(flight.keys):
            self._backoff.failed((flight.party, flight.keys[flight.committed]), now)
        return self._orphan(flight)

    # -- waiters -------------------------------------------------------------------------------------------------------

    def join(self, waiter: str, wanted: Wanted, now: float, pace: Pace) -> bool:
        """Wait for the first block that is wanted, if it is on its way. False: compute it now.

        An awake waiter may join again.
        """
        wait = self._waits.get(waiter)
        if wanted.matched >= wanted.stop or (wait is not None and (wait.spent or now >= wait.limit)):
            return False
        key = wanted.keys[wanted.matched]
        flight, upto = self._flight_of(wanted.party, key), wanted.stop
        until = self._backoff.until((wanted.party, key), now) if flight is None else None
        if flight is None and until is None:
            return False
        if wait is None:
            wait = self._waits[waiter] = _Wait(limit=now + self._max_wait_s)
        if flight is not None:
            self._counts["joined"] += 1
            upto = _common(wanted.keys, flight.keys, wanted.matched, min(upto, len(flight.keys)))
            wait.since, wait.tokens = now, pace.queued_tokens + (upto - wanted.matched) * wanted.block_size
            until = wait.patience(pace.tokens_per_s)
            wait.seen, wait.orphaned = flight.committed, False
        wait.flight, wait.upto, wait.ran_out = flight, upto, range(wanted.matched, upto)
        wait.deadline = min(wait.limit, until) if until is not None else wait.limit
        return True

    def settle(self, waiter: str) -> None:
        """It waits no more: begun, refused or gone. Unknown ones are a no-op."""
        self._waits.pop(waiter, None)

    def tick(self, now: float, tokens_per_s: float) -> list[Wake]:
        """Waits whose bound has run out by the rate measured now, and those whose leader is found silent by it."""
        woken: list[Wake] = []
        for waiter, wait in self._waits.items():
            if wait.deadline is None or wait.deadline > now:
                continue
            flight = wait.flight
            if flight is None:
                woken.append(self._wake(waiter, wait, WakeCause.RETRY))
                continue
            until = wait.patience(tokens_per_s)
            if until is not None and now < min(until, wait.limit):  # computing itself would take longer by now, too
                wait.deadline = min(until, wait.limit)
                continue
            self._counts["time_outs"] += 1
            wait.orphaned = flight.committed == wait.seen
            woken.append(self._wake(waiter, wait, WakeCause.TIMED_OUT))
            if wait.orphaned:
                flight.state = step(flight.state, FlightEvent.SILENCE)
                woken += self._orphan(flight)
        return woken

    @property
    def next_deadline(self) -> float | None:
        """When `tick` has something to do; None while nobody waits."""
        return min((wait.deadline for wait in self._waits.values() if wait.deadline is not None), default=None)

    def ran_out(self, waiter: str) -> range:
        """The blocks for which ``waiter`` waited in vain; empty where it did not, or has what it waited for."""
        wait = self._waits.get(waiter)
        return wait.ran_out if wait is not None and wait.spent else range(0)

    def shared(self, waiter: str) -> int:
        """Blocks of ``waiter`` that somebody else is computing."""
        wait = self._waits.get(waiter)
        return wait.upto if wait is not None and wait.flight is not None else 0

    def stats(self) -> FlightStats:
        waiting = sum(wait.deadline is not None for wait in self._waits.values())
        return FlightStats(**self._counts, waiting=waiting)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _flight_of(self, party: str | None, key: bytes) -> _Flight | None:
        for name in (party, WARM_UP):
            if name is not None and (flight := self._led.get(name, {}).get(key)) is not None:
                return flight
        return None

    def _release(self, flight: _Flight, keys: Sequence[bytes]) -> None:
        """``flight`` is not the leader of ``keys`` any more, where it was."""
        led = self._led.get(flight.party, {})
        for key in keys:
            if led.get(key) is flight:
                del led[key]
        if not led:
            self._led.pop(flight.party, None)

    def _orphan(self, flight: _Flight) -> list[Wake]:
        self._release(flight, flight.keys[flight.committed :])
        woken: list[Wake] = []
        for waiter, wait in self._waits.items():
            if wait.flight is flight:
                wait.orphaned = True
                woken.append(self._wake(waiter, wait, WakeCause.ENDED))
        return woken

    @staticmethod
    def _wake(waiter: str, wait: _Wait, cause: WakeCause) -> Wake:
        wait.flight, wait.deadline = None, None
        wait.spent = wait.spent or cause is WakeCause.TIMED_OUT
        return Wake(waiter, cause)


def _common(one: Sequence[bytes], other: Sequence[bytes], equal: int, stop: int) -> int:
    """How many leading keys are equal, given that key ``equal`` is. By bisection: a key holds all that is before it."""
    low, high = equal + 1, stop
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
