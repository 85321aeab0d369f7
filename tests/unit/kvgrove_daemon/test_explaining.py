"""What a node explains of a prompt is what a request for it would be told, and asking changes nothing (I10, MET-06)."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from runner_rig import BLOCK, Make, RunnerRig, rigs

from kvgrove_daemon.cache.tiers.stack import Lying
from kvgrove_daemon.explaining import Explainer
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_protocol.chain import Span, SpanKind
from kvgrove_protocol.data import Error, Explained, Generate, Sampling
from kvgrove_protocol.events import DISK, HOST
from kvgrove_protocol.identity import Caller
from kvgrove_protocol.reasons import MissReason

NOTHING_BELOW = Lying([], 0)


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


PROMPT = tokens(10 * BLOCK + 5, 1)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


def request(rig: RunnerRig, ids: list[int], *, tenant: str = "acme", shared: int = 0) -> Generate:
    spans = [Span(SpanKind.PREFIX, 0, shared, name="p")] if shared else []
    return Generate(
        request_id="asked",
        namespace_uid="uid",
        generation=rig.model.generation,
        fence=rig.table.namespaces["uid"].plan.fence,
        caller=Caller(tenant=tenant),
        tokens=struct.pack(f"<{len(ids)}I", *ids),
        spans=[*spans, Span(SpanKind.PRIVATE, shared, len(ids))],
        sampling=Sampling(),
        max_new_tokens=1,
    )


def explainer(rig: RunnerRig, lying: Lying = NOTHING_BELOW) -> Explainer:
    return Explainer(rig.around, rig.runner.models, rig.runner.history, lambda *_: lying)


def explained(rig: RunnerRig, ids: list[int], *, lying: Lying = NOTHING_BELOW, **more: object) -> Explained:
    answer = explainer(rig, lying).answer(request(rig, ids, **more))  # type: ignore[arg-type]
    assert isinstance(answer, Explained)
    edges = [0, *(each.end for each in answer.ranges)]
    assert [each.start for each in answer.ranges] == edges[:-1]
    assert edges[-1] == len(ids)
    assert all((each.reason is None) == bool(each.tier) for each in answer.ranges), "reused or one reason"
    return answer


def sums(answer: Explained) -> tuple[int, dict[MissReason, int]]:
    missed = Counter[MissReason]()
    for each in answer.ranges:
        if each.reason is not None:
            missed[each.reason] += each.end - each.start
    return sum(each.end - each.start for each in answer.ranges if each.reason is None), dict(missed)


def told(rig: RunnerRig, name: str, ids: list[int], **more: object) -> tuple[int, dict[MissReason, int]]:
    rig.ask(name, ids, **more)  # type: ignore[arg-type]
    rig.drain()
    rig.answer(name)
    done = rig.heard[name].done
    assert done is not None
    return done.usage.reused, done.usage.missed


def test_i10_explained_is_what_the_request_is_told_then(make: Make) -> None:
    rig = make(slots=64)
    changed = [*PROMPT[: 5 * BLOCK + 3], *tokens(4 * BLOCK, 2)]
    for name, ids in enumerate((PROMPT, PROMPT, changed, PROMPT[:7], [*PROMPT, *tokens(40, 3)])):
        before = sums(explained(rig, ids))
        assert before == told(rig, str(name), ids)


def test_met_06_evicted_blocks_are_named_where_they_lay(make: Make) -> None:
    rig = make(slots=64)
    told(rig, "0", PROMPT)
    rig.store.evict_to(rig.store.free_slots + 4, limit=4)
    ranges = explained(rig, PROMPT).ranges
    by_reason = {each.reason: (each.start, each.end) for each in ranges}
    cut = by_reason[None][1]
    assert by_reason[MissReason.EVICTED] == (cut, 10 * BLOCK)
    assert by_reason[MissReason.PARTIAL_BLOCK] == (10 * BLOCK, len(PROMPT))


def test_asking_is_no_use_of_a_block_and_leaves_nothing(make: Make) -> None:
    rig = make(slots=64)
    told(rig, "0", PROMPT)
    told(rig, "1", tokens(3 * BLOCK, 9))
    before, remembered = rig.store.stats(), len(rig.runner.history)
    for _ in range(5):
        explained(rig, PROMPT)
    after = rig.store.stats()
    assert (after.ready, after.leases, after.builds) == (before.ready, before.leases, before.builds)
    assert len(rig.runner.history) == remembered
    rig.store.evict_to(rig.store.free_slots + 1, limit=1)
    assert sums(explained(rig, tokens(3 * BLOCK, 9)))[0] > 0, "PROMPT was not made younger: it gave way first"


def test_i2_isolated_another_tenants_blocks_read_new(make: Make) -> None:
    rig = make(slots=64)
    told(rig, "0", PROMPT)
    rig.store.evict_to(rig.store.free_slots + 4, limit=4)
    assert sums(explained(rig, PROMPT, tenant="other")) == (
        0,
        {MissReason.NEW: 10 * BLOCK, MissReason.PARTIAL_BLOCK: 5},
    )


def test_lower_tiers_are_reused_or_not_worth_it(make: Make) -> None:
    rig = make(slots=64)
    told(rig, "0", PROMPT[: 2 * BLOCK + 1])
    lying = Lying([(HOST, 2, 4), (DISK, 4, 9)], worth_until=6)
    ranges = explained(rig, PROMPT, lying=lying).ranges
    assert [(each.start // BLOCK, each.tier, each.reason) for each in ranges] == [
        (0, HOST, None),
        (2, HOST, None),
        (4, DISK, None),
        (6, "", MissReason.NOT_WORTH_LOADING),
        (9, "", MissReason.NEW),
        (10, "", MissReason.PARTIAL_BLOCK),
    ]


def test_what_would_be_refused_or_served_cold_is_explained_as_that(make: Make) -> None:
    rig = make(slots=64)
    rig.lease = False
    assert sums(explained(rig, PROMPT)) == (0, {MissReason.CONTROL_PLANE_LOST: len(PROMPT)})
    rig.lease = True
    hosted = rig.table.namespaces["uid"]
    closed = msgspec.structs.replace(hosted.plan, tenants=["somebody"])
    rig.table = PlanTable(namespaces={"uid": replace(hosted, plan=closed)})
    answer = explainer(rig).answer(request(rig, PROMPT))
    assert isinstance(answer, Error)
    assert answer.code == "forbidden"
