"""Half a minute of the soak, and that its judges would notice what they are there for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from soak_load import Load, Pending
from soak_run import Soak
from soak_verdict import Life, Sample
from soak_world import BLOCK, World

from kvgrove_protocol.data import Done, TokenLogprob, Usage
from kvgrove_protocol.reasons import MissReason

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_i5_i6_i11_a_node_under_random_load_and_failures_stays_whole(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    report = Soak(tiny_model("llama"), tmp_path, seed=4, seconds=25.0, say=lambda _line: None).run()
    assert report["broken"] == []
    assert report["pauses"] >= 2
    assert report["events"]["kills"] == 1
    assert report["requests"]["done"] > 20  # else nothing was soaked
    assert report["load"]["compared_host"] > 0


def lived(rss: Callable[[float], int], threads: Callable[[float], int] = lambda _at: 9) -> Life:
    seconds = [float(at) for at in range(300)]
    samples = [Sample(at, rss(at), 30, threads(at)) for at in seconds]
    return Life(samples, samples[::30])


def test_a_process_that_keeps_growing_is_noticed_and_one_that_has_grown_up_is_not() -> None:
    assert lived(lambda at: (500 << 20) + int(at * 100_000)).growth().broken
    assert not lived(lambda at: (500 << 20) + int(min(at, 60.0) * 1_000_000)).growth().broken
    assert lived(lambda _at: 500 << 20, lambda at: 9 + int(at / 10)).growth().broken


def judged(reused: int, *, changed: Callable[[World], None] = lambda _world: None) -> list[str]:
    """One prompt is asked, and asked again with so much of it reused."""
    world = World(1)
    load = Load(world)
    load.connect("inproc://nowhere")
    try:
        prompt = world.prompt()
        world.note(prompt)
        changed(world)
        pending = load._send(prompt, world.homes[prompt.namespace].plan.fence, 1)
        again = Pending(pending.request, prompt, 0, 0.0, reused=reused, tier="host")
        missed = {MissReason.NEW: len(prompt.tokens) - reused}
        usage = Usage(prompt=len(prompt.tokens), reused=reused, completion=1, missed=missed)
        load._judge(again, Done(request_id="r1", finish_reason="length", usage=usage))
    finally:
        load.close()
    return load.broken


def purge_all(world: World) -> None:
    for _ in range(30):
        world.purge()


def test_reuse_of_what_was_said_is_fine_and_of_what_was_purged_is_noticed() -> None:
    assert judged(2 * BLOCK) == []
    assert judged(2 * BLOCK, changed=purge_all)


def test_an_answer_that_differs_from_a_cold_run_is_noticed_unless_two_tokens_are_equal() -> None:
    load = Load(World(1))
    warm = [TokenLogprob(5, -0.1, [(5, -0.1), (6, -0.2)])]
    load._compare(warm, [TokenLogprob(6, -0.1, [(6, -0.1), (5, -0.100001)])], "host")
    assert load.broken == []
    load._compare(warm, [TokenLogprob(6, -0.1, [(6, -0.1), (5, -0.4)])], "host")
    assert load.broken
    load.close()
