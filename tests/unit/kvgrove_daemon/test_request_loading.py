"""Requests whose beginning comes from a slower tier: the state LOADING and its ends, over a real engine.

A `Shelf` stands for the tiers: it keeps real blocks by key, and loads when the test says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner_rig import BLOCK, Make, RunnerRig, rigs
from shelf import Shelf

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.commands import Restored
from kvgrove_daemon.request_life import RequestState
from kvgrove_daemon.waiting_room import WaitLimits
from kvgrove_protocol.events import DISK
from kvgrove_protocol.reasons import MissReason


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


PROMPT = tokens(10 * BLOCK + 5, 1)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def rig(make: Make, shelf: Shelf) -> RunnerRig:
    """A node whose pool is empty and whose shelf holds all whole blocks of PROMPT; ``0`` was its cold answer."""
    rig = make(slots=40, restorer=shelf)
    rig.ask("0", PROMPT)
    rig.drain()
    shelf.fill_from(rig)
    return rig


def missed(rig: RunnerRig, name: str) -> dict[MissReason, int]:
    started = rig.heard[name].started
    assert started is not None
    return started.missed


def test_what_was_loaded_is_reused_and_what_it_cost_is_told(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    assert rig.state_of("1") is RequestState.LOADING
    rig.turn()
    assert rig.heard["1"].started is None
    shelf.bring(rig)
    rig.drain()
    assert rig.answer("1") == rig.answer("0")
    assert rig.reused("1") == 10 * BLOCK
    assert rig.heard["1"].started is not None
    assert rig.heard["1"].started.tier == DISK
    assert missed(rig, "1") == {MissReason.PARTIAL_BLOCK: 5}
    rig.ask("2", PROMPT)  # it is in the pool again
    rig.drain()
    assert rig.heard["2"].started is not None
    assert (rig.reused("2"), rig.heard["2"].started.tier) == (10 * BLOCK, "host")
    rig.assert_nothing_is_held()
    check(rig.store)


@pytest.mark.parametrize("count", [0, 3])
def test_what_could_not_be_loaded_is_computed(rig: RunnerRig, shelf: Shelf, count: int) -> None:
    rig.ask("1", PROMPT)
    shelf.bring(rig, count)
    rig.drain()
    assert rig.answer("1") == rig.answer("0")
    assert rig.reused("1") == count * BLOCK
    assert missed(rig, "1") == {MissReason.CACHE_ERROR: (10 - count) * BLOCK, MissReason.PARTIAL_BLOCK: 5}
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("decline_from", [0, 4])
def test_what_is_quicker_to_compute_says_so(rig: RunnerRig, shelf: Shelf, decline_from: int) -> None:
    shelf.decline_from = decline_from
    rig.ask("1", PROMPT)
    if decline_from:
        shelf.bring(rig)
    assert rig.state_of("1") is RequestState.RUNNING
    rig.drain()
    assert rig.answer("1") == rig.answer("0")
    assert missed(rig, "1")[MissReason.NOT_WORTH_LOADING] == (10 - decline_from) * BLOCK
    assert [found.released for found in shelf.found] == [0 if decline_from else 1]
    rig.assert_nothing_is_held()


def test_a_load_is_a_flight_that_others_wait_for(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    rig.ask("2", PROMPT)
    assert (rig.state_of("1"), rig.state_of("2")) == (RequestState.LOADING, RequestState.WAITING_FLIGHT)
    assert len(shelf.loading) == 1
    shelf.bring(rig)
    rig.drain()
    assert rig.answer("1") == rig.answer("2") == rig.answer("0")
    assert rig.reused("2") == 10 * BLOCK
    rig.assert_nothing_is_held()


def test_i5_slots_of_a_cancelled_load_are_not_reused_before_the_worker_has_let_go(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    rig.ask("2", PROMPT)
    ((_, slots),) = shelf.loading.values()
    rig.cancel("1")
    assert rig.state_of("1") is RequestState.LETTING_GO
    rig.cancel("1")
    assert len(shelf.stopped) == 1
    rig.turn()
    assert rig.state_of("2") is RequestState.LOADING  # it took over, with slots of its own
    assert set(slots).isdisjoint(list(shelf.loading.values())[1][1])
    assert rig.runner.flights.stats().take_overs == 1
    assert set(slots).isdisjoint(slot for run in rig.store._resident.pool.free_runs() for slot in run.slots())
    shelf.bring(rig)
    assert rig.state_of("1") is None
    assert set(slots) <= {slot for run in rig.store._resident.pool.free_runs() for slot in run.slots()}
    shelf.bring(rig)
    rig.runner.on_restored(Restored("1", 3))  # a worker that says it twice
    rig.drain()
    assert rig.answer("2") == rig.answer("0")
    rig.assert_nothing_is_held()
    check(rig.store)


def test_a_lost_gateway_lets_its_loads_go(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    rig.runner.stop_all_of(b"gateway")
    assert not rig.runner.idle
    shelf.bring(rig)
    rig.assert_nothing_is_held()


def test_i3_what_was_loaded_while_the_plan_moved_on_is_never_read(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    rig.move_fence()
    shelf.bring(rig)
    assert rig.heard["1"].error is not None
    assert rig.heard["1"].error.code == "stale_fence"
    rig.drain()
    assert rig.store.stats().ready == 0
    rig.assert_nothing_is_held()


def test_a_load_whose_lease_ran_out_meanwhile_is_served_cold(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    rig.lease = False
    shelf.bring(rig)
    rig.drain()
    assert rig.answer("1") == rig.answer("0")
    assert missed(rig, "1") == {MissReason.CONTROL_PLANE_LOST: len(PROMPT)}
    assert rig.store.stats().ready == 0
    rig.assert_nothing_is_held()


def test_without_room_nothing_is_loaded(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", tokens(36 * BLOCK, 2), new=4)
    rig.ask("2", PROMPT)
    assert rig.state_of("2") is RequestState.WAITING_ROOM
    assert [found.released for found in shelf.found] == [1]
    assert not shelf.loading
    rig.drain()
    shelf.bring(rig)
    rig.drain()
    assert rig.answer("2") == rig.answer("0")
    rig.assert_nothing_is_held()


def test_a_silent_worker_holds_up_no_follower_for_longer_than_the_bound(rig: RunnerRig, shelf: Shelf) -> None:
    rig.ask("1", PROMPT)
    rig.ask("2", PROMPT)
    shelf.blocks.clear()
    assert rig.runner.next_deadline is not None
    assert rig.runner.next_deadline <= WaitLimits().flight_s
    rig.now = rig.runner.next_deadline
    rig.drain()
    assert rig.answer("2") == rig.answer("0")
    assert rig.state_of("1") is RequestState.LOADING
    rig.cancel("1")
    rig.runner.on_restored(Restored(next(iter(shelf.loading)), 0))
    rig.assert_nothing_is_held()
