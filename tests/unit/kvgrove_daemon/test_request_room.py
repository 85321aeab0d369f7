"""Room for requests: a line per pool, answers without room, and everything given back (MEM-02, MEM-03, MEM-07, I11)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner_rig import BLOCK, Make, RunnerRig, rigs

from kvgrove_daemon.cache.debug import check
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.request_life import RequestState
from kvgrove_daemon.waiting_room import WaitingRoom, WaitLimits


def tokens(blocks: int, seed: int) -> list[int]:
    """A prompt of ``blocks`` blocks, the last not quite full."""
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(blocks * BLOCK - 4)]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


def ended(rig: RunnerRig, name: str) -> str:
    heard = rig.heard[name]
    return heard.error.code if heard.error is not None else "done" if heard.done is not None else ""


def test_mem_02_with_everything_pinned_a_request_is_answered_at_once_and_served_when_one_lease_ends(
    make: Make,
) -> None:
    rig = make(slots=8)
    rig.ask("1", tokens(8, 1))
    rig.drain()
    readers = pin_all(rig)
    rig.ask("2", tokens(3, 2))
    assert ended(rig, "2") == "no_room"  # in the same call: nobody is there whose end would make room
    assert rig.heard["2"].error is not None
    assert rig.heard["2"].error.retryable
    for release in readers:
        release()
    rig.ask("3", tokens(3, 3))
    rig.drain()
    assert ended(rig, "3") == "done"
    rig.assert_nothing_is_held()
    check(rig.store)


def pin_all(rig: RunnerRig) -> list[Callable[[], object]]:
    """Leases on everything that is resident."""
    index, leases = rig.store._resident.index, rig.store._resident.leases
    return [leases.take(block).release for block in index.ready_ids().tolist()]


def test_mem_02_who_waits_for_room_is_served_when_one_request_ends(make: Make) -> None:
    rig = make(slots=8)
    rig.ask("1", tokens(5, 1), new=2)
    rig.ask("2", tokens(6, 2), new=2)
    assert rig.state_of("2") is RequestState.WAITING_ROOM
    rig.drain()
    assert (ended(rig, "1"), ended(rig, "2")) == ("done", "done")
    rig.assert_nothing_is_held()
    check(rig.store)


def test_mem_02_a_wait_for_room_ends_with_a_named_refusal(make: Make) -> None:
    rig = make(slots=8, limits=WaitLimits(room_s=5.0))
    rig.ask("1", tokens(5, 1), new=100)
    rig.turn()
    rig.ask("2", tokens(6, 2))
    rig.now = 2.0
    rig.ask("3", tokens(6, 3))
    assert rig.runner.next_deadline == 5.0
    rig.now = 5.0
    rig.turn()
    assert (ended(rig, "2"), ended(rig, "3")) == ("no_room", "")
    rig.now = 7.0
    rig.turn()
    assert ended(rig, "3") == "no_room"
    rig.cancel("1")
    rig.assert_nothing_is_held()


def test_mem_03_pins_go_and_the_line_moves_without_new_traffic(make: Make) -> None:
    rig = make(slots=20)
    for n in range(4):
        rig.ask(f"run{n}", tokens(4, n), new=8)
    rig.ask("long", tokens(19, 50), new=2)  # 95 % of the pool: nothing fits beside it
    rig.ask("short", tokens(2, 51), new=2)
    assert rig.runner.waiting_for_room == 2
    rig.drain()  # no command comes in any more
    assert [ended(rig, name) for name in ("run0", "run1", "run2", "run3", "long", "short")] == ["done"] * 6
    rig.assert_nothing_is_held()


def test_mem_07_finished_requests_leave_only_what_is_cached(make: Make) -> None:
    rig = make(slots=16)
    for n in range(60):
        rig.ask(str(n), tokens(3, n), new=1)
        rig.drain()
        assert ended(rig, str(n)) == "done"
    stats = rig.store.stats()
    assert stats.free + stats.ready == stats.slots
    assert stats.removed[RemovalCause.PRESSURE] > 0
    assert stats.no_room == 0
    rig.assert_nothing_is_held()
    check(rig.store)


def test_in_one_pool_nobody_overtakes_who_waits_for_room(make: Make) -> None:
    rig = make(slots=8)
    rig.ask("1", tokens(4, 1), new=40)
    rig.ask("large", tokens(7, 2))
    rig.ask("small", tokens(2, 3))
    assert rig.state_of("small") is RequestState.WAITING_ROOM  # it would fit
    rig.cancel("large")
    rig.turn()
    assert rig.state_of("small") is RequestState.RUNNING
    rig.cancel("1")
    rig.drain()
    rig.assert_nothing_is_held()


def test_who_waits_for_a_flight_holds_nobody_up(make: Make) -> None:
    rig = make(slots=24)
    prompt = tokens(8, 1)
    rig.ask("1", prompt, new=2)
    rig.ask("follower", [*prompt, *tokens(2, 2)], new=2)
    rig.ask("other", tokens(3, 3), new=2)
    assert rig.state_of("follower") is RequestState.WAITING_FLIGHT
    assert rig.state_of("other") is RequestState.RUNNING
    rig.drain()
    assert rig.reused("follower") > 0
    rig.assert_nothing_is_held()


def test_a_flight_is_joined_from_behind_a_line_and_costs_no_place_in_it(make: Make) -> None:
    rig = make(slots=12)
    prompt = tokens(6, 1)
    rig.ask("1", prompt, new=2)
    rig.ask("follower", [*prompt[: 4 * BLOCK], *tokens(2, 2)], new=2)  # before the next in order of arrival
    rig.ask("large", tokens(11, 3), new=2)
    rig.ask("joins", prompt, new=2)
    assert rig.state_of("large") is RequestState.WAITING_ROOM
    assert rig.state_of("joins") is RequestState.WAITING_FLIGHT
    order = []
    while len(order) < 4:
        rig.turn()
        order += [name for name in rig.heard if rig.heard[name].started is not None and name not in order]
    assert order.index("follower") < order.index("large")
    rig.drain()
    assert [ended(rig, name) for name in rig.heard] == ["done"] * 4
    rig.assert_nothing_is_held()


def test_i11_beyond_the_places_requests_are_refused_by_name(make: Make) -> None:
    rig = make(slots=8, limits=WaitLimits(places=2))
    rig.ask("1", tokens(6, 1), new=20)
    rig.ask("follows", tokens(6, 1))
    rig.ask("waits", tokens(6, 2))
    rig.ask("one too many", tokens(6, 3))
    rig.ask("one more to follow", tokens(6, 1))
    assert ended(rig, "one too many") == ended(rig, "one more to follow") == "queue_full"
    for name in ("1", "follows", "waits"):
        rig.cancel(name)
    rig.assert_nothing_is_held()


def test_i11_one_tenant_never_fills_all_places(make: Make) -> None:
    rig = make(slots=8, limits=WaitLimits(places=3, places_per_tenant=2))
    rig.ask("1", tokens(6, 1), new=20)
    for n in range(3):
        rig.ask(f"loud{n}", tokens(6, 2 + n), tenant="loud")
    rig.ask("quiet", tokens(6, 9), tenant="quiet")
    assert ended(rig, "loud2") == "queue_full"
    assert rig.state_of("quiet") is RequestState.WAITING_ROOM
    rig.drain()
    assert ended(rig, "quiet") == "done"
    rig.assert_nothing_is_held()


def test_a_cancel_gives_everything_back_once_in_every_state(make: Make) -> None:
    rig = make(slots=12)
    rig.ask("running", tokens(6, 1), new=20)
    rig.ask("follows", tokens(6, 1))
    rig.ask("waits", tokens(11, 2))
    rig.turn()
    states = [RequestState.RUNNING, RequestState.WAITING_FLIGHT, RequestState.WAITING_ROOM]
    assert [rig.state_of(name) for name in ("running", "follows", "waits")] == states
    for name in ("waits", "follows", "running"):
        rig.cancel(name)
        rig.cancel(name)
        assert rig.state_of(name) is None
    rig.assert_nothing_is_held()
    assert not rig.engine.has_work
    check(rig.store)


def test_a_lost_gateway_takes_all_its_requests_along(make: Make) -> None:
    rig = make(slots=12)
    rig.ask("running", tokens(6, 1), new=20)
    rig.ask("follows", tokens(6, 1))
    rig.ask("waits", tokens(11, 2))
    rig.runner.stop_all_of(b"gateway")
    rig.runner.advance()
    rig.assert_nothing_is_held()
    assert rig.store.stats().free == 12


def test_after_a_wait_a_request_is_judged_by_the_rules_of_that_moment(make: Make) -> None:
    rig = make(slots=8)
    rig.ask("1", tokens(6, 1), new=4)
    rig.ask("2", tokens(6, 2))
    rig.move_fence()
    rig.drain()
    assert ended(rig, "2") == "stale_fence"
    rig.assert_nothing_is_held()


def test_the_line_goes_by_arrival_whenever_one_enters() -> None:
    room = WaitingRoom()
    for number in (5, 3, 9):
        room.enter("pool", number, float(number))
    room.enter("other", 1, 7.0)
    assert {pool: room.first(pool) for pool in room.pools()} == {"pool": 3, "other": 1}
    assert room.is_behind("pool", 4)
    assert not room.is_behind("pool", 2)
    assert not room.is_behind("empty", 4)
    assert room.overdue(7.0) == [1, 3, 5]
    assert room.next_deadline == 3.0
    for number in (3, 3, 5, 9, 1):
        room.leave(number)
    assert (len(room), room.pools(), room.next_deadline) == (0, [], None)
