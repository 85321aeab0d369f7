"""Random lives of requests through a real runner, cache, engine and slower tier: right answers, and nothing kept.

Prompts are built from a few chunks, so that they share beginnings, wait for each other's builds, and crowd the pool.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from runner_rig import BLOCK, Make, RunnerRig, rigs
from shelf import Shelf

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.request_life import RequestState
from kvgrove_daemon.roster import WAITING
from kvgrove_daemon.waiting_room import WaitLimits

SLOTS = 14
LIMITS = WaitLimits(places=5, room_s=6.0, flight_s=4.0, retry_base_s=0.5, retry_max_s=2.0)
PEERS = [b"one", b"two"]
CHUNKS = [[random.Random(n).randrange(300, 1000) for _ in range(BLOCK)] for n in range(3)]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


def machine_over(make: Make) -> type[RuleBasedStateMachine]:
    reference = make(slots=SLOTS)
    known: dict[tuple[int, ...], list[int]] = {}

    def cold(prompt: list[int]) -> list[int]:
        """The answer of a node that has never seen anything."""
        if tuple(prompt) not in known:
            name = f"cold-{len(known)}"
            reference.store.clear()
            reference.ask(name, prompt, new=3)
            reference.drain()
            known[tuple(prompt)] = reference.answer(name)
        return known[tuple(prompt)]

    class RequestLives(RuleBasedStateMachine):
        @initialize()
        def start(self) -> None:
            self.shelf = Shelf()
            self.rig: RunnerRig = make(slots=SLOTS, chunk=BLOCK, limits=LIMITS, restorer=self.shelf)
            self.numbers = itertools.count()
            self.prompts: dict[str, list[int]] = {}
            self.cancelled: set[str] = set()

        @rule(
            chunks=st.lists(st.integers(0, 2), min_size=1, max_size=7),
            tail=st.integers(1, BLOCK),
            tenant=st.sampled_from(["acme", "other", None]),
            shared=st.integers(0, 7),
            peer=st.sampled_from(PEERS),
        )
        def ask(self, chunks: list[int], tail: int, tenant: str | None, shared: int, peer: bytes) -> None:
            name = str(next(self.numbers))
            self.prompts[name] = [token for chunk in chunks for token in CHUNKS[chunk]] + CHUNKS[0][:tail]
            declared = min(shared, len(chunks)) * BLOCK
            self.rig.ask(name, self.prompts[name], shared=declared, tenant=tenant, new=3, peer=peer)

        @rule(turns=st.integers(1, 6))
        def turn(self, turns: int) -> None:
            for _ in range(turns):
                self.rig.turn()

        @rule(seconds=st.sampled_from([0.4, 2.0, 5.0]))
        def time_passes(self, seconds: float) -> None:
            self.rig.now += seconds
            self.rig.turn()

        def open_requests(self) -> list[str]:
            return [name for name in self.prompts if self.rig.state_of(name, self.rig.peers[name]) is not None]

        @precondition(lambda self: self.open_requests())
        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            name = data.draw(st.sampled_from(self.open_requests()))
            self.cancelled.add(name)
            self.rig.runner.stop(self.rig.peers[name], name)

        @rule(peer=st.sampled_from(PEERS))
        def lose(self, peer: bytes) -> None:
            self.cancelled |= {name for name in self.open_requests() if self.rig.peers[name] == peer}
            self.rig.runner.stop_all_of(peer)

        @precondition(lambda self: self.shelf.loading)
        @rule(count=st.integers(0, 7))
        def bring(self, count: int) -> None:
            self.shelf.bring(self.rig, count)

        @rule()
        def put_on_the_shelf(self) -> None:
            self.shelf.fill_from(self.rig)

        @rule(holds=st.booleans())
        def lease(self, holds: bool) -> None:
            self.rig.lease = holds

        @invariant()
        def no_wait_is_without_end(self) -> None:
            roster = self.rig.runner.roster
            waiting = [active for active in roster.of(b"one") + roster.of(b"two") if active.state in WAITING]
            assert len(waiting) <= LIMITS.places
            if waiting:
                assert self.rig.runner.next_deadline is not None
            asleep = [active for active in waiting if active.state is RequestState.WAITING_FLIGHT]
            woken = {wake.waiter for wake in self.rig.runner._woken}
            assert self.rig.runner.flights.stats().waiting == len([a for a in asleep if a.id not in woken])

        @invariant()
        def the_store_adds_up(self) -> None:
            check(self.rig.store)

        def teardown(self) -> None:
            """Left alone, everything comes to its end, and nothing stays behind."""
            if not hasattr(self, "rig"):
                return
            rig = self.rig
            while not rig.runner.idle:
                while self.shelf.loading:
                    self.shelf.bring(rig)
                rig.drain()
                deadline = rig.runner.next_deadline
                rig.now = max(rig.now, deadline if deadline is not None else rig.now)
            rig.assert_nothing_is_held()
            check(rig.store)
            for name, prompt in self.prompts.items():
                heard = rig.heard[name]
                if heard.done is not None:
                    assert rig.answer(name) == cold(prompt)  # I1
                elif name not in self.cancelled:
                    assert heard.error is not None
                    assert heard.error.code in ("no_room", "queue_full")
            rig.pools.close()

    return RequestLives


def test_requests_end_well_and_give_everything_back(make: Make) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine_over(make),
        settings=settings(max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=checks),
    )
