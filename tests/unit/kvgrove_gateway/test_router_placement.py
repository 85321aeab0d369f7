"""Index, builds under way, recent work and decision together; time is given."""

from __future__ import annotations

import random

import pytest

from kvgrove_gateway.router.builds import LONGEST_S, NOTED_BLOCKS, Builds
from kvgrove_gateway.router.decide import Lately
from kvgrove_gateway.router.index import NOTHING, BlockIndex, Match
from kvgrove_gateway.router.placement import NodeView, Router
from kvgrove_gateway.router.recent import RecentWork

BLOCK = 32


class Clock:
    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def keys(count: int, seed: int = 0) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(32) for _ in range(count)]


def rig(clock: Clock, nodes: int = 4) -> tuple[Router, list[NodeView]]:
    index = BlockIndex(100_000)
    return Router(index, clock=clock), [NodeView(f"n{at}", index.open_slot(), 0, 0, 1000.0) for at in range(nodes)]


def test_a_cold_prefix_goes_to_the_node_that_is_building_it() -> None:
    router, views = rig(Clock())
    chain = keys(100)
    first = router.choose(views, 3300, chain, BLOCK)
    router.dispatched(first)
    second = router.choose(views, 3400, [*chain, *keys(3, seed=1)], BLOCK)
    assert second.decision.node == first.decision.node
    assert second.decision.matched_tokens == 100 * BLOCK
    assert second.resident_blocks == 0


def test_a_choice_that_was_not_sent_counts_for_nothing() -> None:
    router, views = rig(Clock())
    router.choose(views, 3300, keys(100), BLOCK)
    assert len(router.index) == 0


def test_a_note_of_a_build_runs_out_whatever_became_of_it() -> None:
    clock = Clock()
    router, views = rig(clock)
    router.dispatched(router.choose(views, 3300, keys(100), BLOCK))
    assert len(router.builds) == 100
    clock.now += LONGEST_S
    router.choose(views, 3300, [], BLOCK)
    assert len(router.builds) == 0
    assert router.choose(views, 3300, keys(100), BLOCK).decision.matched_tokens == 0


def test_notes_of_builds_are_bounded_and_what_is_not_noted_is_counted() -> None:
    index = BlockIndex(1000)
    builds, slot = Builds(index, capacity=150), index.open_slot()
    for seed in range(3):
        builds.begin(slot, keys(100, seed), 0, 1.0, 0.0)
    assert (len(builds), builds.overflows) == (100, 2)


def test_only_the_beginning_of_a_prompt_is_noted() -> None:
    index = BlockIndex(1000)
    builds, slot, chain = Builds(index, capacity=1000), index.open_slot(), keys(NOTED_BLOCKS + 1)
    builds.begin(slot, chain, 0, 1.0, 0.0)
    assert len(builds) == NOTED_BLOCKS


def credited(builds: Builds, slot: int, chain: list[bytes], match: Match = NOTHING) -> Match:
    matches = {"n": match}
    builds.credit(matches, {"n": slot}, chain)
    return matches["n"]


def test_a_build_is_credited_as_far_as_prompts_go_along_and_only_behind_what_is_held() -> None:
    index = BlockIndex(1000)
    builds, slot, chain = Builds(index, capacity=1000), index.open_slot(), keys(100)
    builds.begin(slot, chain, 20, 1.0, 0.0)
    for common in (20, 21, 22, 50, 99, 100):
        prompt = [*chain[:common], *keys(30, seed=1)]
        assert credited(builds, slot, prompt, Match(20, 0, 20.0)).building == common - 20
    assert credited(builds, slot, chain, Match(10, 0, 10.0)).building == 0  # a hole: what was held has gone
    assert credited(builds, slot, chain, Match(60, 0, 60.0)) == Match(60, 40, 60 + 0.98 * 40)
    assert credited(builds, slot, chain[:15], Match(15, 0, 15.0)) == Match(15, 0, 15.0)
    builds.begin(slot, [*chain, *keys(10, seed=2)], 100, 9.0, 0.0)  # one build behind another
    assert credited(builds, slot, [*chain, *keys(10, seed=2)], Match(20, 0, 20.0)).building == 90
    builds.expire(5.0)
    assert credited(builds, slot, [*chain, *keys(10, seed=2)], Match(20, 0, 20.0)).building == 0


def test_rou_06_who_gets_a_slot_next_inherits_no_build() -> None:
    index = BlockIndex(1000)
    builds, slot, chain = Builds(index, capacity=1000), index.open_slot(), keys(100)
    builds.begin(slot, chain, 0, 60.0, 0.0)
    index.close_slot(slot)
    while index.sweep():
        pass
    assert index.open_slot() == slot
    assert credited(builds, slot, chain) == NOTHING


def test_per_04_a_late_look_up_is_given_up_for_the_least_loaded_node_and_counted() -> None:
    router, views = rig(Clock(step=0.015))
    slot = views[0].slot
    assert slot is not None
    chain = keys(50)
    router.index.store(slot, b"".join(chain), "host")
    busy = [NodeView("n0", slot, 100_000, 0, 1000.0), *views[1:]]
    assert router.choose(busy, 1600, chain, BLOCK).decision.node != "n0"
    assert router.fallbacks == 1


def test_a_node_in_doubt_is_judged_by_its_load() -> None:
    router, views = rig(Clock(), nodes=2)
    slot = views[0].slot
    assert slot is not None
    chain = keys(50)
    router.index.store(slot, b"".join(chain), "host")
    assert router.choose(views, 1600, chain, BLOCK).decision.matched_tokens > 0
    doubted = [NodeView("n0", None, 10, 0, 1000.0), NodeView("n1", views[1].slot, 0, 5, 1000.0)]
    decision = router.choose(doubted, 100, chain, BLOCK).decision
    assert (decision.node, decision.matched_tokens) == ("n1", 0)


def test_recent_work_fades_and_a_new_node_starts_at_the_mean() -> None:
    recent = RecentWork(time_constant_s=10.0)
    recent.follow(["a", "b"])
    recent.placed("a", 300, 300, 0.0, 0.0)
    recent.placed("b", 100, 100, 0.0, 0.0)
    recent.follow(["a", "b", "c"])
    assert recent.tokens(0.0)["c"] == 200.0
    assert recent.tokens(100.0)["a"] < 1.0
    recent.follow(["c"])
    assert set(recent.tokens(100.0)) == {"c"}


def test_what_requests_find_is_a_share_of_tokens_and_of_nodes_and_is_corrected() -> None:
    recent = RecentWork(time_constant_s=10.0)
    assert recent.lately == Lately(busy=0.0, reuse=0.0)
    recent.follow(["a"])
    recent.placed("a", 1000, 100, 0.5, 0.0)
    recent.placed("a", 1000, 300, 0.0, 0.0)
    assert recent.lately == Lately(busy=0.25, reuse=0.8)
    recent.corrected("a", 400, 0.0)
    assert recent.lately.reuse == pytest.approx(0.6)
    assert recent.tokens(0.0)["a"] == 800
    recent.placed("a", 1000, 1000, 1.0, 1e6)  # all before has faded
    assert recent.lately == Lately(busy=1.0, reuse=0.0)


def test_what_is_placed_teaches_how_dear_computing_is_and_what_was_only_chosen_does_not() -> None:
    """The same prompt, the same queues: what is worth waiting for depends on what requests found before."""
    calm, busy = Clock(), Clock()
    chosen = []
    for clock, queue, dispatch in ((calm, 0, True), (busy, 5000, True), (busy, 5000, False)):
        router, views = rig(clock)
        for seed in range(20):
            views = [view._replace(queued_tokens=queue) for view in views]
            choice = router.choose(views, 640, keys(20, seed=100 + seed), BLOCK)
            if dispatch:
                router.dispatched(choice)
        slot = views[0].slot
        assert slot is not None
        chain = keys(20)
        router.index.store(slot, b"".join(chain), "host")
        asked = [view._replace(queued_tokens=2000 if view.slot == slot else 0) for view in views]
        chosen.append(router.choose(asked, 640, chain, BLOCK).decision.node == "n0")
    assert chosen == [False, True, False]


def test_what_nodes_compute_beyond_what_was_expected_counts_against_them() -> None:
    router, views = rig(Clock(), nodes=2)
    for _ in range(10):
        router.dispatched(router.choose(views, 640, keys(20, seed=100), BLOCK))
    views = [views[0]._replace(surplus_tokens=100_000), views[1]]
    decision = router.choose(views, 640, keys(20, seed=7), BLOCK).decision
    assert [row.node for row in decision.explain() if row.recent_tokens > 100_000 - 1] == ["n0"]


def test_a_session_returns_where_it_was_unless_another_node_is_better() -> None:
    router, views = rig(Clock())
    first = router.choose(views, 640, keys(20, seed=1), BLOCK, session=b"s")
    router.dispatched(first, session=b"s")
    router.builds.expire(1e9)
    views = [view._replace(requests=9 if view.name == first.decision.node else 0) for view in views]
    cold = keys(20, seed=2)
    assert router.choose(views, 640, cold, BLOCK, session=b"s").decision.node == first.decision.node
    assert router.choose(views, 640, cold, BLOCK, session=b"other").decision.node != first.decision.node
    views = [view._replace(queued_tokens=9000 if view.name == first.decision.node else 0) for view in views]
    assert router.choose(views, 640, cold, BLOCK, session=b"s").decision.node != first.decision.node


def test_sessions_are_bounded_and_the_oldest_is_forgotten() -> None:
    index = BlockIndex(1000)
    router = Router(index, clock=Clock(), sessions=2)
    views = [NodeView(f"n{at}", index.open_slot(), 0, 0, 1000.0) for at in range(2)]
    where = {}
    for name in (b"1", b"2", b"3"):
        choice = router.choose(views, 10, [], BLOCK, session=name)
        router.dispatched(choice, session=name)
        where[name] = choice.decision.node
        views = [view._replace(requests=view.requests + (view.name == where[name])) for view in views]
    shunned = [view._replace(requests=99 if view.name == where[b"1"] else 0) for view in views]
    assert router.choose(shunned, 10, [], BLOCK, session=b"1").decision.node != where[b"1"]
    shunned = [view._replace(requests=99 if view.name == where[b"3"] else 0) for view in views]
    assert router.choose(shunned, 10, [], BLOCK, session=b"3").decision.node == where[b"3"]


def test_a_prompt_that_was_sent_outlives_others_in_a_full_index() -> None:
    index = BlockIndex(40_000)
    router = Router(index, clock=Clock())
    slot = index.open_slot()
    hot, cold, fresh = keys(4000, seed=1), keys(34_000, seed=2), keys(8000, seed=3)
    for chain in (hot, cold):
        index.store(slot, b"".join(chain), "host")
    views = [NodeView("n", slot, 0, 0, 1000.0)]
    router.dispatched(router.choose(views, 4001 * BLOCK, hot, BLOCK))
    index.store(slot, b"".join(fresh), "host")
    assert index.dropped > 4000
    assert all(index.holds(slot, key) for key in hot)


def test_the_last_token_is_always_computed() -> None:
    router, views = rig(Clock(), nodes=1)
    slot = views[0].slot
    assert slot is not None
    chain = keys(20)
    router.index.store(slot, b"".join(chain), "host")
    assert router.choose(views, 640, chain, BLOCK).uncached_tokens == 1
