"""paged_attention_decode, run from its source on the host, against float64 over every shape that it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rig import STEP, at_offset
from shim_device import ShimDevice

from kvgrove_kernels import attention, numbers
from kvgrove_kernels.arrays import Operand
from kvgrove_kernels.numbers import CODE_BITS, LARGEST_CODE

LENGTHS = [0, 1, 21, 70]


class Step:
    """A decode step of four sequences over a paged pool whose unused memory is NaN."""

    def __init__(self, kind: str, element: str, dim: int, group: int, block: int) -> None:
        rng = np.random.default_rng(dim * 1000 + group * 10 + block)
        self.block, self.dim, kv_heads = block, dim, 2
        needed = [-(-length // block) for length in LENGTHS]
        slots = sum(needed) + 3
        order = rng.permutation(slots).astype(np.int32)
        self.table = np.full((len(LENGTHS), max(needed) + 1), -7, np.int32)  # entries past the context are never read
        used = np.zeros((slots, block), bool)
        for row, (length, count) in enumerate(zip(LENGTHS, needed, strict=True)):
            self.table[row, :count], order = order[:count], order[count:]
            used.reshape(-1)[(self.table[row, :count, None] * block + np.arange(block)).reshape(-1)[:length]] = True
        self.query = numbers.from_float32(
            rng.standard_normal((len(LENGTHS), kv_heads * group, dim), dtype=np.float32) * 2, element
        )
        self.element, self.kind, self.used = element, kind, used
        self.planes, self.scales, self.values = [], [], []
        for _ in range(2):
            self._plane(rng, (slots * block, kv_heads, dim))

    def _plane(self, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
        values = rng.standard_normal(shape, dtype=np.float32) * 2
        if self.kind in CODE_BITS:
            codes = numbers.encode(values / 6 * LARGEST_CODE[self.kind], self.kind)  # type: ignore[arg-type]
            scales = (1 + rng.random((shape[0] // self.block, shape[1]), dtype=np.float32)) / LARGEST_CODE[self.kind]
            unused = ~self.used.any(axis=1)
            scales[unused] = np.nan
            self.scales.append(scales)
            decoded = numbers.decode(codes, self.kind)  # type: ignore[arg-type]
            self.values.append(decoded * np.repeat(scales, self.block, axis=0)[:, :, None])
            self.planes.append(at_offset(codes, 0))
        else:
            values[~self.used.reshape(-1)] = np.nan
            stored = numbers.from_float32(values, self.kind)
            self.values.append(numbers.to_float32(stored, self.kind))
            self.planes.append(at_offset(stored, 0))

    def exact(self, scale: float) -> np.ndarray[Any, Any]:
        """The answer in float64."""
        query = numbers.to_float32(self.query, self.element).astype(np.float64)
        heads, kv_heads = query.shape[1], self.planes[0].shape[1]
        out = np.zeros(query.shape)
        for row, length in enumerate(LENGTHS):
            tokens = (self.table[row].astype(int)[:, None] * self.block + np.arange(self.block)).reshape(-1)[:length]
            for head in range(heads):
                keys, values = (plane[tokens, head // (heads // kv_heads)].astype(np.float64) for plane in self.values)
                scores = keys @ query[row, head] * scale
                weights = np.exp(scores - scores.max(initial=-np.inf))
                out[row, head] = weights @ values / weights.sum() if length else 0
        return out

    def run(self, scale: float, max_context: int | None = None, **device: Any) -> np.ndarray[Any, Any]:
        codec = self.kind if self.kind in CODE_BITS else None
        kv = attention.KeysAndValues.of(
            *self.planes,
            *(self.scales or (None, None)),
            codec=codec,
            dtype=None if codec else self.kind,  # type: ignore[arg-type]
        )
        query = Operand("query", at_offset(self.query, 0), self.element)
        table, context = (
            Operand("block_table", self.table, "int32"),
            Operand("context", np.array(LENGTHS, np.int32), "int32"),
        )
        shape = attention.DecodeShape.of(query, kv, table, context, block_size=self.block, max_context=max_context)
        out = Operand("out", np.full_like(query.array, 77), self.element)
        attention.launch(ShimDevice(**device), query, kv, table, context, shape=shape, scale=scale, out=out)
        return numbers.to_float32(out.array, self.element)

    def check(self, **device: Any) -> None:
        scale = self.dim**-0.5
        exact = self.exact(scale)
        error = np.abs(self.run(scale, **device) - exact)
        # Rounding of the result, and of fp32 scores (|score| < 100, each off by 2^-20) in the exponent.
        assert (error <= np.abs(exact) * STEP[self.element] / 2 + 1e-4).all(), float(error.max())


QUICK = [("bfloat16", "bfloat16", 64, 4, 16), ("int8", "bfloat16", 16, 3, 8)]
FULL = [
    *[("bfloat16", "bfloat16", dim, 4, 16) for dim in (8, 24, 32, 80, 128, 256)],
    *[("float16", "float16", 64, group, 32) for group in (1, 2, 3, 6, 7, 8)],
    ("bfloat16", "bfloat16", 128, 12, 32),  # two tiles of six
    ("float16", "float16", 40, 11, 5),  # two tiles of six, the last not full
    *[(codec, element, 64, 2, 16) for codec in CODE_BITS for element in ("float16", "bfloat16")],
    ("int4", "bfloat16", 256, 8, 32),
    ("e4m3", "float16", 128, 1, 32),
    ("float32", "float32", 64, 2, 3),
    ("float16", "float32", 48, 5, 16),
]


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.kernels_full) for case in FULL)], ids=str
)
def test_decode_equals_float64_within_rounding(case: tuple[str, str, int, int, int]) -> None:
    Step(*case).check(order=2)


@pytest.mark.parametrize("splits", [1, 2, 7])
def test_splits_change_nothing(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SPLIT_TOKENS_AT_LEAST", 1)
    # 4 sequences x 2 KV heads: this many multiprocessors want so many splits.
    monkeypatch.setattr(attention, "_SPLITTERS_PER_MULTIPROCESSOR", 8)
    Step("bfloat16", "bfloat16", 16, 2, 16).check(multiprocessors=splits)


def test_far_apart_scores_keep_their_order() -> None:
    step = Step("float32", "float32", 16, 2, 16)
    scale = 40.0  # scores of thousands: every weight but one underflows, in whatever split or warp it is
    assert np.abs(step.run(scale) - step.exact(scale)).max() < 2e-3


def test_slots_out_of_range_are_left_out() -> None:
    step = Step("float32", "float32", 16, 1, 16)
    damaged = Step("float32", "float32", 16, 1, 16)
    damaged.table[3, 0] = -1
    kv = attention.KeysAndValues.of(*damaged.planes, None, None, codec=None, dtype="float32")
    query = Operand("query", damaged.query, "float32")
    context = Operand("context", np.array(LENGTHS, np.int32), "int32")
    shape = attention.DecodeShape.of(
        query, kv, Operand("block_table", step.table, "int32"), context, block_size=16, max_context=None
    )
    out = Operand("out", np.zeros_like(damaged.query), "float32")
    table = Operand("block_table", damaged.table, "int32")
    attention.launch(ShimDevice(), query, kv, table, context, shape=shape, scale=0.25, out=out)
    # The same answer as over the blocks that are left.
    step.table[3, :-1] = step.table[3, 1:]
    rest = Operand("out", np.zeros_like(step.query), "float32")
    fewer = Operand("context", np.array([0, 1, 21, 54], np.int32), "int32")
    kv = attention.KeysAndValues.of(*step.planes, None, None, codec=None, dtype="float32")
    left = Operand("block_table", step.table, "int32")
    attention.launch(
        ShimDevice(), Operand("query", step.query, "float32"), kv, left, fewer, shape=shape, scale=0.25, out=rest
    )
    assert np.abs(out.array - rest.array).max() < 1e-5
