"""Random lives of requests over one store: whatever happens in whatever order, no waiter is lost, nobody leads twice.

A small node around the real store and the real flights: it does what the request runner does, at once and without an
engine. An engine may fall silent about a build: it says nothing more of it, and its slots are its own until it ends.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from block_store_rig import BLOCK, always, chain_of, make_store, tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvgrove_daemon.cache.backoff import Backoff
from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.flight_life import FlightState, Wake
from kvgrove_daemon.cache.flights import WARM_UP, Flights, Pace, Wanted
from kvgrove_daemon.cache.store import Build, Chain, NoRoom

SLOTS = 40
MAX_WAIT_S = 20.0
PARTIES = ["acme", "other", WARM_UP, None]


@dataclass
class Request:
    id: str
    party: str | None
    chain: Chain
    arrived: float
    build: Build | None = None
    silent: bool = False


class FlightsMachine(RuleBasedStateMachine):
    @initialize(rate=st.sampled_from([0.0, 2.0, 16.0]))
    def start(self, rate: float) -> None:
        self.store = make_store(SLOTS)
        backoff = Backoff(base_s=1.0, max_s=4.0, jitter=lambda: 0.5, keys=4)
        self.flights = Flights(max_wait_s=MAX_WAIT_S, backoff=backoff)
        self.rate = rate
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.silenced: dict[str, frozenset[int]] = {}
        """Silent build -> its slots when it fell silent."""

    # -- what the request runner does

    def decide(self, request: Request) -> None:
        stop = (request.chain.token_count - 1) // BLOCK
        match = self.store.match(request.chain)
        wanted = Wanted(request.party, request.chain.keys, match.blocks, stop, BLOCK)
        if self.flights.join(request.id, wanted, self.now, Pace(BLOCK * len(self.running), self.rate)):
            match.release()
            self.waiting[request.id] = request
            return
        build = self.store.begin(match)
        if isinstance(build, NoRoom):
            match.release()
            self.flights.settle(request.id)
            return
        held = {slot for other in self.running.values() if other.build for slot in other.build.private_slots()}
        assert held.isdisjoint(build.private_slots())  # I5: also those of the silent
        request.build = build
        self.running[request.id] = request
        self.flights.lead(request.id, request.party, request.chain.keys, build.reused_blocks)
        self.flights.settle(request.id)

    def wake(self, woken: list[Wake]) -> None:
        for wake in woken:
            request = self.waiting.pop(wake.waiter)  # KeyError: it was woken twice, or never waited
            self.decide(request)

    # -- what happens to it

    @rule(
        values=st.lists(st.integers(0, 1), min_size=1, max_size=6),
        party=st.sampled_from(PARTIES),
        private=st.booleans(),
    )
    def arrive(self, values: list[int], party: str | None, private: bool) -> None:
        raw = tokens(value for value in [*values, 9] for _ in range(BLOCK))
        folds = {2: str(party).encode()} if private else {}
        self.decide(
            Request(str(next(self.numbers)), party, chain_of(self.store, raw, folds=folds, namespace="ns"), self.now)
        )

    def pick(self, data: st.DataObject, *, silent: bool = False) -> Request:
        names = [name for name, request in self.running.items() if silent or not request.silent]
        return self.running[data.draw(st.sampled_from(names))]

    @precondition(lambda self: any(not request.silent for request in self.running.values()))
    @rule(data=st.data(), upto=st.integers(1, 8))
    def commit(self, data: st.DataObject, upto: int) -> None:
        request = self.pick(data)
        assert request.build is not None
        upto = min(upto, len(request.chain.keys))
        request.build.commit(upto, always)
        self.wake(self.flights.progress(request.id, upto))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["finish", "fail", "cancel"]))
    def end(self, data: st.DataObject, how: str) -> None:
        request = self.pick(data, silent=True)
        assert request.build is not None
        del self.running[request.id]
        self.silenced.pop(request.id, None)
        woken = self.flights.end(request.id, self.now, failed=how == "fail")
        getattr(request.build, how)()
        self.wake(woken)

    @precondition(lambda self: any(not request.silent for request in self.running.values()))
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        request = self.pick(data)
        assert request.build is not None
        request.silent = True
        self.silenced[request.id] = frozenset(request.build.private_slots())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def caller_goes(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[waiter]
        self.flights.settle(waiter)

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.wake(self.flights.tick(self.now, self.rate))

    @rule(rate=st.sampled_from([0.0, 2.0, 16.0]))
    def pace_changes(self, rate: float) -> None:
        self.rate = rate

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        self.store.evict_to(self.store.stats().free + count, limit=count)

    # -- what always holds

    @invariant()
    def no_waiter_is_lost(self) -> None:
        asleep = {name for name, wait in self.flights._waits.items() if wait.deadline is not None}
        assert asleep == set(self.waiting)
        for name in asleep:
            flight = self.flights._waits[name].flight
            if flight is None:
                continue  # a pause after a failure: only time ends it
            assert flight.state is FlightState.FLYING
            assert flight in self.flights._flights.values()
            # What it waits for is on its way: its first missing block is led by that flight.
            assert self.flights._waits[name].upto > flight.committed

    @invariant()
    def waits_are_bounded(self) -> None:
        for name, request in self.waiting.items():
            deadline = self.flights._waits[name].deadline
            assert deadline is not None
            assert self.now < deadline <= request.arrived + MAX_WAIT_S

    @invariant()
    def a_key_has_one_leader_per_party_and_it_is_alive(self) -> None:
        for party, led in self.flights._led.items():
            assert led
            for key, flight in led.items():
                assert flight.party == party
                assert flight.state is FlightState.FLYING
                assert key in flight.keys[flight.committed :]
        assert self.flights._flights.keys() <= self.running.keys()

    @invariant()
    def nobody_waits_for_another_tenant(self) -> None:
        for name, request in self.waiting.items():
            flight = self.flights._waits[name].flight
            assert flight is None or flight.party in (request.party, WARM_UP)

    @invariant()
    def i5_slots_of_the_silent_are_not_reused_before_they_end(self) -> None:
        free = {slot for run in self.store._resident.pool.free_runs() for slot in run.slots()}
        for slots in self.silenced.values():
            assert free.isdisjoint(slots)
        held = [slot for request in self.running.values() if request.build for slot in request.build.private_slots()]
        assert len(held) == len(set(held))
        check(self.store)

    def teardown(self) -> None:
        """Left to itself, every wait ends, and nothing stays behind."""
        if not hasattr(self, "flights"):
            return
        while self.waiting:
            deadline = self.flights.next_deadline
            assert deadline is not None
            self.now = max(self.now, deadline)
            self.wake(self.flights.tick(self.now, self.rate))
        for request in list(self.running.values()):
            assert self.flights.end(request.id, self.now) == []
            assert request.build is not None
            request.build.cancel()
        assert (self.flights._flights, self.flights._led, self.flights._waits) == ({}, {}, {})
        stats = self.store.stats()
        assert (stats.private, stats.leases) == (0, 0)


TestFlights = FlightsMachine.TestCase
TestFlights.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
