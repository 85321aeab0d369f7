"""quantize_blocks, dequantize_blocks and rope_shift, run from their sources on the host, against NumPy and float64."""

from __future__ import annotations

import numpy as np
import pytest
from rig import STEP, Dims, floats, ids_of, on_shim, random_pool, shape_of

from kvgrove_kernels import numbers, reference
from kvgrove_kernels.arrays import Operand
from kvgrove_kernels.numbers import CODECS, Codec

ELEMENTS = ["float32", "float16", "bfloat16"]
SMALL = Dims()
GRID = [
    pytest.param(
        dims,
        element,
        codec,
        id=f"{dims.block}x{dims.heads}x{dims.dim}-{element}-{codec}",
        marks=() if (dims, element) == (SMALL, "bfloat16") else pytest.mark.kernels_full,
    )
    for dims, elements in (
        (SMALL, ELEMENTS),
        (Dims(layers=1, slots=3, block=5, heads=3, dim=8), ["bfloat16"]),
        (Dims(layers=1, slots=3, block=32, heads=1, dim=128), ["bfloat16"]),
        (Dims(layers=1, slots=2, block=40, heads=2, dim=256), ["float32"]),  # more octets than a thread keeps
    )
    for element in elements
    for codec in CODECS
]


@pytest.mark.parametrize(("dims", "element", "codec"), GRID)
def test_quantised_bits_are_the_references(dims: Dims, element: str, codec: Codec) -> None:
    pool = random_pool(dims, element)
    # A row of zeros, one whose scale fp32 cannot invert, and a value that clamps at the largest code.
    raw = floats(pool).copy()
    raw[:, :, : dims.block, 0] = 0
    raw[0, 1, dims.block : 2 * dims.block, -1] = 1e-38
    pool.array[...] = numbers.from_float32(raw, element)
    shape, ids = shape_of(pool, dims), ids_of([1, 0, 1])
    codes, scales = reference.quantize_blocks(pool.array, element, ids.array, shape, codec)
    got_codes, got_scales = np.zeros_like(codes), np.zeros_like(scales)
    ops = on_shim(order=3)
    got = Operand("codes", got_codes, "uint8"), Operand("scales", got_scales, "float32")
    ops.quantize_blocks(pool, ids, shape, *got, codec=codec)
    assert np.array_equal(got_scales, scales)
    assert np.array_equal(got_codes, codes)

    target, expected = random_pool(dims, element, seed=5), random_pool(dims, element, seed=5)
    places = ids_of([1, 0])
    half = codes[:, :, : 2 * dims.block].copy(), scales[:, :, :2].copy()
    given = Operand("codes", half[0], "uint8"), Operand("scales", half[1], "float32")
    ops.dequantize_blocks(*given, target, places, shape, codec=codec)
    args = *half, expected.array, places.array, shape
    reference.dequantize_blocks(*args, codec=codec, element=element)
    assert np.array_equal(target.array, expected.array)


def test_quantising_skips_unknown_blocks() -> None:
    pool = random_pool(SMALL, "bfloat16")
    shape, ids = shape_of(pool, SMALL), ids_of([-1, 5], checked=False)
    codes, scales = np.full((2, 2, 8, 2, 16), 7, np.uint8), np.full((2, 2, 2, 2), 7, np.float32)
    given = Operand("codes", codes, "uint8"), Operand("scales", scales, "float32")
    on_shim().quantize_blocks(pool, ids, shape, *given, codec="int8")
    assert (codes == 7).all()
    assert (scales == 7).all()
    before = pool.array.copy()
    on_shim().dequantize_blocks(*given, pool, ids, shape, codec="int8")
    assert np.array_equal(pool.array, before)


def test_every_e4m3_tie() -> None:
    """Values in the middle between two codes, where rounding up and rounding to even differ."""
    magnitudes = numbers.e4m3_magnitudes()
    middles = (magnitudes[:-1] + magnitudes[1:]) / 2
    dims = Dims(layers=1, slots=2, block=4, heads=1, dim=16)
    values = np.zeros(dims.pool, np.float32)
    # 448 in each block makes its scale 1, so that codes are those of the values themselves.
    blocks = values.reshape(4, 64)  # [plane and slot][token and element]
    for first, block in zip((0, 63), (0, 1), strict=True):
        blocks[block, 1:] = middles[first : first + 63]
    blocks[:, 0] = 448
    pool = Operand("pool", values, "float32")
    shape, ids = shape_of(pool, dims), ids_of([0, 1])
    codes, scales = reference.quantize_blocks(values, "float32", ids.array, shape, "e4m3")
    assert (scales == 1).all()
    got = np.zeros_like(codes)
    given = Operand("codes", got, "uint8"), Operand("scales", np.zeros_like(scales), "float32")
    on_shim().quantize_blocks(pool, ids, shape, *given, codec="e4m3")
    assert np.array_equal(got, codes)


ROTARIES = [
    pytest.param(
        dims,
        element,
        rotary,
        interleaved,
        id=f"{dims.dim}-{element}-{rotary}-{'gptj' if interleaved else 'llama'}",
        marks=() if element == "bfloat16" and rotary == 16 else pytest.mark.kernels_full,
    )
    for dims, rotaries in ((SMALL, [16, 12, 8]), (Dims(layers=2, slots=3, block=3, heads=3, dim=80), [80, 64]))
    for element in ELEMENTS
    for rotary in rotaries
    for interleaved in (False, True)
]


@pytest.mark.parametrize(("dims", "element", "rotary", "interleaved"), ROTARIES)
def test_shifted_keys_are_those_of_float64(dims: Dims, element: str, rotary: int, interleaved: bool) -> None:
    pool = random_pool(dims, element)
    before, shape = pool.array.copy(), shape_of(pool, dims)
    ids, deltas = [2, 0], np.array([131_071, -3], dtype=np.int32)
    frequencies = 10_000.0 ** (-np.arange(rotary // 2) / (rotary // 2))
    turns = Operand("turns", frequencies / (2 * np.pi), "float64")
    moved = Operand("deltas", deltas, "int32")
    on_shim(order=1).rope_shift(pool, ids_of(ids), moved, turns, shape, interleaved=interleaved)

    exact = numbers.to_float32(before, element).astype(np.float64)
    keys = exact.reshape(dims.layers, 2, dims.slots, dims.block, dims.heads, dims.dim)[:, 0]
    for slot, delta in zip(ids, deltas.tolist(), strict=True):
        complex_turn = np.exp(1j * delta * frequencies)
        rows = keys[:, slot]
        pairs = (
            rows[..., :rotary].reshape(*rows.shape[:-1], -1, 2)
            if interleaved
            else np.stack([rows[..., : rotary // 2], rows[..., rotary // 2 : rotary]], axis=-1)
        )
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * complex_turn
        rows[..., :rotary] = (
            np.stack([turned.real, turned.imag], axis=-1).reshape(*rows.shape[:-1], rotary)
            if interleaved
            else np.concatenate([turned.real, turned.imag], axis=-1)
        )
    # Half a step of the type for the rounding, and as much again in fp32 for the arithmetic; 30 bounds |pair|.
    bound = np.abs(exact) * STEP[element] / 2 + 30 * 2.0**-22
    assert (np.abs(floats(pool) - exact) <= bound).all()
    untouched = np.ones(pool.array.shape, bool).reshape(dims.layers, 2, dims.slots, -1, dims.heads, dims.dim)
    untouched[:, 0, ids, :, :, :rotary] = False
    assert np.array_equal(pool.array[untouched.reshape(pool.shape)], before[untouched.reshape(pool.shape)])


def test_shifting_skips_unknown_blocks() -> None:
    pool = random_pool(SMALL, "bfloat16")
    before = pool.array.copy()
    turns = Operand("turns", np.full(8, 0.1), "float64")
    moved = Operand("deltas", np.array([5, 5], np.int32), "int32")
    on_shim().rope_shift(pool, ids_of([-1, 5], checked=False), moved, turns, shape_of(pool, SMALL), interleaved=False)
    assert np.array_equal(pool.array, before)
