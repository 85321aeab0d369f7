"""Requests that want the same prefix at the same time, through a real cache, engine and model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from runner_rig import BLOCK, Make, RunnerRig, rigs

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.request_life import RequestState
from kvgrove_daemon.waiting_room import WaitLimits
from kvgrove_protocol.reasons import MissReason

PREFIX = 20 * BLOCK


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


SHARED = tokens(PREFIX, 1)
ONE, OTHER = SHARED + tokens(20, 2), SHARED + tokens(25, 3)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


@pytest.fixture(scope="module")
def cold(make: Make) -> Callable[[list[int]], list[int]]:
    """What a prompt is answered by a node that has never seen anything."""
    known: dict[tuple[int, ...], list[int]] = {}

    def answer(prompt: list[int]) -> list[int]:
        if tuple(prompt) not in known:
            rig = make()
            rig.ask("cold", prompt)
            rig.drain()
            known[tuple(prompt)] = rig.answer("cold")
        return known[tuple(prompt)]

    return answer


def computed_by(rig: RunnerRig, *names: str) -> int:
    done = [rig.heard[name].done for name in names]
    return sum(sum(ended.usage.missed.values()) for ended in done if ended is not None)


def test_a_prefix_that_two_want_is_computed_once(make: Make, cold: Callable[[list[int]], list[int]]) -> None:
    rig = make()
    rig.ask("1", ONE)
    rig.ask("2", OTHER)
    assert (rig.state_of("1"), rig.state_of("2")) == (RequestState.RUNNING, RequestState.WAITING_FLIGHT)
    assert rig.heard["2"].started is None
    rig.drain()
    assert rig.answer("1") == cold(ONE)
    assert rig.answer("2") == cold(OTHER)
    assert rig.reused("2") == PREFIX
    assert computed_by(rig, "1", "2") == len(ONE) + 25
    stats = rig.runner.flights.stats()
    assert (stats.led, stats.joined, stats.time_outs, stats.take_overs) == (2, 1, 0, 0)
    rig.assert_nothing_is_held()
    check(rig.store)


def test_a_follower_starts_before_the_leader_has_finished(make: Make) -> None:
    rig = make()
    rig.ask("1", ONE, new=100)
    rig.ask("2", OTHER, new=2)
    while rig.heard["2"].done is None:
        rig.turn()
    assert rig.heard["1"].done is None
    rig.cancel("1")
    rig.assert_nothing_is_held()


def test_a_cancelled_leader_is_succeeded_from_where_it_was(make: Make, cold: Callable[[list[int]], list[int]]) -> None:
    rig = make()
    rig.ask("1", ONE)
    rig.ask("2", OTHER)
    rig.ask("3", ONE)
    for _ in range(3):
        rig.turn()
    rig.cancel("1")
    rig.turn()
    assert (rig.state_of("2"), rig.state_of("3")) == (RequestState.RUNNING, RequestState.WAITING_FLIGHT)
    rig.drain()
    assert rig.answer("2") == cold(OTHER)
    assert rig.answer("3") == cold(ONE)
    assert rig.reused("2") == 3 * 32
    assert rig.reused("3") == PREFIX
    assert rig.runner.flights.stats().take_overs == 1
    assert MissReason.BUILDING not in rig.heard["2"].done.usage.missed  # type: ignore[union-attr]
    rig.assert_nothing_is_held()


def test_a_leader_whose_gateway_is_lost_is_succeeded(make: Make) -> None:
    rig = make()
    rig.ask("1", ONE, peer=b"lost")
    rig.ask("2", ONE)
    rig.turn()
    rig.runner.stop_all_of(b"lost")
    rig.drain()
    assert rig.reused("2") == 32
    rig.assert_nothing_is_held()


def test_after_a_failure_a_follower_tries_again_in_a_while(
    make: Make, cold: Callable[[list[int]], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make()
    rig.ask("1", ONE)
    rig.ask("2", OTHER)
    rig.turn()

    def out_of_memory(batch: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(rig.model.runner, "step", out_of_memory)
    rig.turn()
    monkeypatch.undo()
    assert rig.heard["1"].error is not None
    assert rig.state_of("2") is RequestState.WAITING_FLIGHT
    assert rig.runner.next_deadline == WaitLimits().retry_base_s
    rig.turn()
    assert rig.state_of("2") is RequestState.WAITING_FLIGHT
    rig.now = WaitLimits().retry_base_s
    rig.turn()
    assert rig.state_of("2") is RequestState.RUNNING
    rig.drain()
    assert rig.answer("2") == cold(OTHER)
    rig.assert_nothing_is_held()


def test_a_silent_leader_is_succeeded_into_fresh_slots(make: Make, cold: Callable[[list[int]], list[int]]) -> None:
    rig = make()
    rig.ask("1", ONE)
    rig.ask("2", OTHER)
    (leader,) = rig.runner.roster.of(b"gateway", "1")
    assert leader.work is not None
    slots = set(leader.work.build.private_slots())
    rig.engine.cancel(leader.id)  # the engine will never say a word about it again
    rig.now = WaitLimits().flight_s
    rig.turn()
    (follower,) = rig.runner.roster.of(b"gateway", "2")
    assert follower.work is not None
    assert slots.isdisjoint(follower.work.build.slots)
    rig.drain()
    assert rig.answer("2") == cold(OTHER)
    missed = rig.heard["2"].done.usage.missed  # type: ignore[union-attr]
    assert missed[MissReason.BUILDING] == PREFIX
    assert (rig.runner.flights.stats().take_overs, rig.runner.flights.stats().time_outs) == (1, 1)
    assert slots.isdisjoint(slot for run in rig.store._resident.pool.free_runs() for slot in run.slots())  # I5
    rig.cancel("1")
    rig.assert_nothing_is_held()


def test_i11_the_bound_of_a_wait_follows_the_measured_rate(make: Make) -> None:
    rig = make()
    rig.engine_seconds = 0.5
    rig.ask("0", tokens(PREFIX, 9))
    rig.drain()  # 32 tokens in half a second
    rig.ask("1", ONE)
    rig.ask("2", OTHER)
    rate = rig.engine.load().prefill_tokens_per_s
    assert rate == pytest.approx(64)
    assert rig.runner.next_deadline == pytest.approx(min((len(ONE) + PREFIX) / rate, WaitLimits().flight_s))
    rig.drain()
    rig.assert_nothing_is_held()


def test_i2_tenants_compute_the_same_declared_prefix_side_by_side(make: Make) -> None:
    rig = make()
    rig.ask("1", ONE, shared=PREFIX)
    rig.ask("2", OTHER, shared=PREFIX, tenant="other")
    rig.ask("3", OTHER, shared=PREFIX, tenant=None)
    assert {rig.state_of(name) for name in "123"} == {RequestState.RUNNING}
    rig.drain()
    assert [rig.reused(name) for name in "123"] == [0, 0, 0]
    # Whose blocks they were nobody learns: to each of them they are new.
    assert all(MissReason.BUILDING not in rig.heard[name].done.usage.missed for name in "123")  # type: ignore[union-attr]
    rig.assert_nothing_is_held()


def test_i3_a_leader_that_may_store_no_more_is_not_waited_for(make: Make) -> None:
    rig = make()
    rig.ask("1", ONE)
    rig.ask("2", ONE)
    rig.turn()
    rig.move_fence()
    rig.turn()
    # The follower was resolved under the old state as well, and is told so instead of being served from it.
    assert rig.heard["2"].error is not None
    assert rig.heard["2"].error.code == "stale_fence"
    rig.drain()
    rig.assert_nothing_is_held()


def test_a_request_served_cold_neither_leads_nor_waits(make: Make) -> None:
    rig = make()
    rig.lease = False
    rig.ask("1", ONE)
    rig.ask("2", ONE)
    assert {rig.state_of("1"), rig.state_of("2")} == {RequestState.RUNNING}
    rig.drain()
    assert rig.runner.flights.stats().led == 0
    rig.assert_nothing_is_held()
