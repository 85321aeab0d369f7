"""Metrics say what callers were told: each tier and path moves its own, idling moves none (MET-02, MET-03, MET-04)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner_rig import BLOCK, Make, RunnerRig, rigs
from shelf import Shelf

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_protocol.events import DISK, HOST
from kvgrove_protocol.reasons import BypassReason, MissReason

PROMPT, REUSED, MISSED = (f"kvgrove_node_{what}_tokens_total" for what in ("prompt", "reused", "missed"))
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


def counters(rig: RunnerRig) -> Figures:
    """All counters of the node as a scrape shows them, histograms included, gauges left out."""
    metrics = rig.runner._around.metrics
    metrics.show_stores([rig.store.stats()])
    metrics.show_waiting(rig.runner.flights.stats(), rig.runner.waiting_for_room)
    metrics.show_beacons(rig.log.beacons.untold)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        if family.type != "gauge"
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def moved(before: Figures, after: Figures, *names: str) -> dict[str, float]:
    """By name and last label: what grew, of the token counters."""
    grown = {key: value - before.get(key, 0) for key, value in after.items() if key[0] in names}
    return {
        dict(labels).get("tier") or dict(labels).get("reason", name): by for (name, labels), by in grown.items() if by
    }


def one_request(rig: RunnerRig, name: str, act: Callable[[], None]) -> dict[str, float]:
    """What ``act``, which serves request ``name``, moved; it must be what the caller was told."""
    before = counters(rig)
    act()
    rig.drain()
    rig.answer(name)
    grown = moved(before, counters(rig), PROMPT, REUSED, MISSED)
    done = rig.heard[name].done
    assert done is not None
    usage = done.usage
    assert grown.get(PROMPT) == usage.prompt
    assert sum(by for key, by in grown.items() if key in (HOST, DISK)) == usage.reused
    assert {key: by for key, by in grown.items() if key not in (PROMPT, HOST, DISK)} == dict(usage.missed)
    return grown


def test_met_02_a_half_warm_prompt_counts_half_of_its_tokens(make: Make) -> None:
    rig = make()
    half = tokens(5 * BLOCK, 1)
    rig.ask("0", half, new=1)
    rig.drain()
    grown = one_request(rig, "1", lambda: rig.ask("1", half + tokens(5 * BLOCK, 2), new=1))
    assert grown[HOST] / grown[PROMPT] == 0.5


def test_met_02_a_cold_prompt_counts_into_the_denominator(make: Make) -> None:
    rig = make()
    grown = one_request(rig, "0", lambda: rig.ask("0", tokens(4 * BLOCK, 3), new=1))
    assert grown == {PROMPT: 4 * BLOCK, MissReason.NEW: 3 * BLOCK, MissReason.PARTIAL_BLOCK: BLOCK}


def test_met_03_a_hit_in_the_pool_moves_the_pools_counter(make: Make) -> None:
    rig, prompt = make(), tokens(4 * BLOCK + 3, 4)
    one_request(rig, "0", lambda: rig.ask("0", prompt, new=1))
    grown = one_request(rig, "1", lambda: rig.ask("1", prompt, new=1))
    assert grown == {PROMPT: 4 * BLOCK + 3, HOST: 4 * BLOCK, MissReason.PARTIAL_BLOCK: 3}


def test_met_03_a_load_from_a_slower_tier_moves_that_tiers_counter(make: Make) -> None:
    shelf, prompt = Shelf(), tokens(6 * BLOCK + 3, 5)
    rig = make(restorer=shelf)
    one_request(rig, "0", lambda: rig.ask("0", prompt, new=1))
    shelf.fill_from(rig)

    def load() -> None:
        rig.ask("1", prompt, new=1)
        shelf.bring(rig)

    assert one_request(rig, "1", load) == {PROMPT: 6 * BLOCK + 3, DISK: 6 * BLOCK, MissReason.PARTIAL_BLOCK: 3}


def test_met_03_one_prompt_from_two_tiers_moves_both(make: Make) -> None:
    shelf, prompt = Shelf(), tokens(6 * BLOCK + 3, 6)
    rig = make(restorer=shelf)
    one_request(rig, "0", lambda: rig.ask("0", prompt, new=1))
    shelf.fill_from(rig)
    shelf.decline_from = 2

    def first_two() -> None:
        rig.ask("1", prompt[: 2 * BLOCK + 1], new=1)
        shelf.bring(rig)

    one_request(rig, "1", first_two)
    shelf.decline_from = 1 << 30

    def the_rest() -> None:
        rig.ask("2", prompt, new=1)
        shelf.bring(rig)

    grown = one_request(rig, "2", the_rest)
    assert grown == {PROMPT: 6 * BLOCK + 3, HOST: 2 * BLOCK, DISK: 4 * BLOCK, MissReason.PARTIAL_BLOCK: 3}


def test_met_03_who_waits_for_anothers_build_counts_as_a_hit(make: Make) -> None:
    rig, prompt = make(), tokens(6 * BLOCK + 3, 7)
    rig.ask("0", prompt, new=1)
    before = counters(rig)
    rig.ask("1", prompt, new=1)
    rig.drain()
    rig.answer("0")
    rig.answer("1")
    grown = moved(before, counters(rig), PROMPT, REUSED, MISSED)
    assert (grown[PROMPT], grown[HOST]) == (2 * len(prompt), 6 * BLOCK)
    after = counters(rig)
    assert after["kvgrove_flight_joined_total", ()] - before["kvgrove_flight_joined_total", ()] == 1


def test_met_03_a_cold_answer_moves_its_reason_and_no_tier(make: Make) -> None:
    rig, prompt = make(), tokens(4 * BLOCK + 3, 8)
    one_request(rig, "0", lambda: rig.ask("0", prompt, new=1))
    rig.lease = False
    grown = one_request(rig, "1", lambda: rig.ask("1", prompt, new=1))
    assert grown == {PROMPT: len(prompt), MissReason.CONTROL_PLANE_LOST: len(prompt)}


def test_met_03_a_refused_request_moves_no_token_counter(make: Make) -> None:
    rig = make()
    before = counters(rig)
    rig.move_fence()
    rig.ask("0", tokens(4 * BLOCK, 9))
    rig.drain()
    assert rig.heard["0"].error is not None
    after = counters(rig)
    assert moved(before, after, PROMPT, REUSED, MISSED) == {}
    code = (("code", "stale_fence"), ("namespace", "team/chat"))
    assert after["kvgrove_node_requests_total", code] == 1


def test_met_04_five_idle_minutes_of_scrapes_move_nothing(make: Make) -> None:
    rig = make(slots=12)
    for number in range(4):
        rig.ask(str(number), tokens(6 * BLOCK + 3, 20 + number), new=1)
        rig.drain()
    first = counters(rig)
    assert first["kvgrove_node_removed_blocks_total", (("cause", "pressure"),)] > 0
    for _ in range(300):  # a heartbeat a second, and a scrape with each
        rig.now += 1.0
        rig.turn()
        rig.store.relieve(256)
        assert counters(rig) == first


def test_counters_over_closed_lists_are_there_before_anything_happened() -> None:
    metrics = NodeMetrics()
    shown = {
        (sample.name, *sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }
    assert {shown["kvgrove_node_removed_blocks_total", cause.value] for cause in RemovalCause} == {0}
    assert {shown["kvgrove_node_stores_bypassed_total", reason.value] for reason in BypassReason} == {0}
    assert shown["kvgrove_evictions_on_request_path_total", HOST] == 0
