"""`plan_step` on arbitrary queues: its bounds hold, nobody is overtaken, and everything is finished in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvgrove_daemon.engine.scheduler import Pending, StepLimits, plan_step

limits = st.builds(StepLimits, max_batch=st.integers(1, 6), prefill_chunk=st.integers(1, 40))
queues = st.lists(st.integers(1, 100), max_size=10).map(
    lambda sizes: [Pending(f"p{i}", size) for i, size in enumerate(sizes)]
)


@given(queues, st.integers(0, 6), limits)
def test_a_plan_keeps_its_bounds_and_the_order(pending: list[Pending], decoding: int, limits: StepLimits) -> None:
    running = [f"d{i}" for i in range(min(decoding, limits.max_batch))]
    plan = plan_step(pending, running, limits)
    assert plan.decode == tuple(running), "decodes always go on"
    assert len(plan.decode) + len(plan.prefill) <= limits.max_batch
    assert sum(count for _, count in plan.prefill) <= limits.prefill_chunk
    assert [key for key, _ in plan.prefill] == [p.request_id for p in pending[: len(plan.prefill)]]
    remaining = {p.request_id: p.remaining for p in pending}
    assert all(1 <= count <= remaining[key] for key, count in plan.prefill)
    assert all(count == remaining[key] for key, count in plan.prefill[:-1]), "only the last may be left half done"
    if pending and len(running) < limits.max_batch:
        assert plan.prefill, "a free seat and a free budget are used"
    assert plan.is_empty == (not running and not plan.prefill)


@given(queues, limits)
def test_every_prompt_is_computed_whole(pending: list[Pending], limits: StepLimits) -> None:
    order: list[str] = []
    total = sum(p.remaining for p in pending)
    queue, steps = list(pending), 0
    while queue:
        done = dict(plan_step(queue, [], limits).prefill)
        queue = [Pending(p.request_id, p.remaining - done.get(p.request_id, 0)) for p in queue]
        order += [p.request_id for p in queue if not p.remaining]
        queue = [p for p in queue if p.remaining]
        steps += 1
        assert steps <= total
    assert order == [p.request_id for p in pending]
