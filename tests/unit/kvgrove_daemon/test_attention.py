"""Attention over pool memory: views are read in place, parts add up to the whole, and misuse is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_rig import EngineRig
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from kvgrove_daemon.engine.attention import MAX_VIEWS, StepContext, _attend_masked, paged_attention
from kvgrove_daemon.engine.errors import CacheNotAdvanced, UnsupportedModel
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.sequence import BlockTable, SequenceState, Slice, StepBatch

BLOCK, HEADS, KV_HEADS, DIM = 4, 6, 2, 16


class Layer(torch.nn.Module):
    layer_idx = 0


def run(slots: list[int], past: int, new: int, scaling: float | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Our attention, and plain attention in double precision over the same tokens in one piece."""
    generator = torch.Generator().manual_seed(past * 100 + new)
    pool = torch.full((1, 2, 40 * BLOCK, KV_HEADS, DIM), float("nan"))
    keys, values = (torch.randn(past + new, KV_HEADS, DIM, generator=generator) for _ in range(2))
    sequence = SequenceState(BlockTable(BLOCK, slots), past)
    where = torch.from_numpy(sequence.table.positions(0, past + new))
    pool[0, 0, where], pool[0, 1, where] = keys, values
    query = torch.randn(1, HEADS, new, DIM, generator=generator)
    step = StepContext.of(StepBatch((Slice(sequence, np.zeros(new), True),)), pool)
    own = (tensor[past:].transpose(0, 1)[None] for tensor in (keys, values))
    ours, _ = paged_attention(Layer(), query, *own, None, kvgrove_step=step, scaling=scaling)
    mask = torch.ones(new, past + new, dtype=torch.bool).tril(past)
    plain = scaled_dot_product_attention(
        query.double(),
        keys.transpose(0, 1)[None].double(),
        values.transpose(0, 1)[None].double(),
        attn_mask=mask,
        scale=scaling,
        enable_gqa=True,
    )
    return ours, plain.transpose(1, 2)


@pytest.mark.parametrize("past", [0, 1, 7, 12])
@pytest.mark.parametrize("new", [1, 2, 9])
@pytest.mark.parametrize(
    "slots",
    [list(range(6)), [0, 1, 2, 9, 10, 11], [9, 7, 5, 3, 1, 0], list(range(0, 40, 3))],
    ids=["one run", "two runs", "all apart", "more than views"],
)
def test_parts_add_up_to_the_whole(slots: list[int], past: int, new: int) -> None:
    ours, plain = run(slots, past, new)
    torch.testing.assert_close(ours.double(), plain, atol=2e-6, rtol=0)


def test_a_long_past_in_pieces_is_gathered_and_still_right() -> None:
    slots = list(range(0, 40, 3))
    assert len(slots) > MAX_VIEWS
    ours, plain = run(slots, 49, 3)
    torch.testing.assert_close(ours.double(), plain, atol=2e-6, rtol=0)


def test_the_model_s_scaling_is_honoured() -> None:
    ours, plain = run([3, 1, 2], 7, 3, scaling=0.9)
    torch.testing.assert_close(ours.double(), plain, atol=2e-6, rtol=0)


@pytest.mark.parametrize("new", [1, 5])
def test_the_portable_form_agrees(new: int) -> None:
    generator = torch.Generator().manual_seed(1)
    pool = torch.randn(2, 24, KV_HEADS, DIM, generator=generator)
    query = torch.randn(1, HEADS, new, DIM, generator=generator)
    own = (pool[0, 8 : 8 + new].transpose(0, 1)[None], pool[1, 8 : 8 + new].transpose(0, 1)[None])
    visible = 8 if new > 1 else 9
    context = [(pool[0, :4], pool[1, :4]), (pool[0, 4:visible], pool[1, 4:visible])]
    ours = _attend_masked(query, own if new > 1 else None, context, None)
    mask = torch.ones(new, 8 + new, dtype=torch.bool).tril(8)
    whole = (tensor[: 8 + new].transpose(0, 1)[None] for tensor in pool)
    torch.testing.assert_close(ours, scaled_dot_product_attention(query, *whole, attn_mask=mask, enable_gqa=True))


class KernelInputs(TorchDispatchMode):
    """What the attention kernel itself is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[torch.Tensor] = []
        self.copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "flash_attention_for_cpu" in str(func):
            self.keys.append(args[1])
        if str(func) in (
            "aten.clone.default",
            "aten.copy_.default",
            "aten.cat.default",
            "aten.repeat_interleave.self_int",
        ):
            self.copies += args[0].numel() >= 64 * KV_HEADS * DIM if isinstance(args[0], torch.Tensor) else 1
        return func(*args, **kwargs or {})


def test_the_kernel_reads_the_pool_where_it_lies() -> None:
    pool = torch.randn(1, 2, 64 * BLOCK, KV_HEADS, DIM)
    sequence = SequenceState(BlockTable(BLOCK, range(5, 37)), 127)
    query = torch.randn(1, HEADS, 1, DIM)
    own = torch.randn(1, KV_HEADS, 1, DIM)
    step = StepContext.of(StepBatch((Slice(sequence, [1], True),)), pool)
    with KernelInputs() as seen:
        paged_attention(Layer(), query, own, own, None, kvgrove_step=step)
    (keys,) = seen.keys
    assert keys.untyped_storage().data_ptr() == pool.untyped_storage().data_ptr()
    assert keys.shape == (1, KV_HEADS, 128, DIM)
    assert seen.copies == 0


def test_a_mask_is_refused() -> None:
    one = torch.zeros(1, 1, 1, 8)
    with pytest.raises(ValueError, match="no mask"):
        paged_attention(Layer(), one, one, one, one, kvgrove_step=StepContext(one, [], one, one))


def test_a_model_that_bypasses_the_cache_is_caught(tiny_model: Callable[[str], Path]) -> None:
    rig = EngineRig(tiny_model("llama"))
    try:
        rig.runner._cache_argument = "a_name_that_transformers_swallows"
        sequence = SequenceState(BlockTable(16, [0]))
        with pytest.raises(CacheNotAdvanced, match=r"wrote \[0\] tokens of 3"):
            rig.runner.step(StepBatch((Slice(sequence, [5, 6, 7], True),)))
        assert sequence.computed == 0
    finally:
        rig.close()


def test_steps_that_make_no_sense_are_refused(tiny_model: Callable[[str], Path]) -> None:
    rig = EngineRig(tiny_model("llama"))
    try:
        sequence = SequenceState(BlockTable(16, [0]))
        for batch, reason in (
            ((), "at least one slice"),
            ((Slice(sequence, [], True),), "at least one token"),
            ((Slice(sequence, [1], True), Slice(sequence, [2], True)), "only once"),
            ((Slice(sequence, [1] * 17, True),), "has no slot"),
            ((Slice(SequenceState(BlockTable(16, range(128)), 2047), [1, 2], True),), "exceed the model's context"),
        ):
            with pytest.raises(ValueError, match=reason):
                rig.runner.step(StepBatch(batch))
    finally:
        rig.close()


def test_an_arena_of_another_layout_is_refused(tiny_model: Callable[[str], Path]) -> None:
    rig, other = EngineRig(tiny_model("llama")), EngineRig(tiny_model("qwen3"))
    try:
        with pytest.raises(UnsupportedModel, match="does not fit the model"):
            ModelRunner(rig.runner._model, other.arena)
    finally:
        rig.close()
        other.close()
