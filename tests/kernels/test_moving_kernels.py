"""move_blocks, checksum_blocks and wipe_blocks, run from their sources on the host: bytes, at any size and start."""

from __future__ import annotations

import numpy as np
import pytest
from rig import STORAGE, Dims, at_offset, ids_of, on_shim, random_pool, shape_of

from kvgrove_kernels import on_device, reference
from kvgrove_kernels.arrays import Operand

SMALL = Dims()
ODD = Dims(layers=3, slots=4, block=3, heads=1, dim=7)  # 21 bytes of uint8: no multiple of anything
TWO_TILES = Dims(layers=1, slots=3, block=32, heads=2, dim=80)  # 20 KiB of fp32: a whole tile and a part
EXACT_TILE = Dims(layers=1, slots=2, block=32, heads=2, dim=64)
LISTS = [[], [3], [0, 1, 2], [2, 0, 2, 3, 3]]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("ids", LISTS, ids=str)
def test_gather_of_any_list(ids: list[int], order: int) -> None:
    _gather(SMALL, "float32", ids, order=order)


@pytest.mark.kernels_full
@pytest.mark.parametrize("element", list(STORAGE))
@pytest.mark.parametrize("dims", [SMALL, TWO_TILES, EXACT_TILE], ids=str)
def test_gather_of_any_type_and_size(dims: Dims, element: str) -> None:
    _gather(dims, element, [1, 0, 1], order=1)


@pytest.mark.parametrize("pool_at", [0, 1, 2, 4, 8, 13])
@pytest.mark.parametrize("out_at", [0, 1, 6, 12, 13])
def test_gather_at_misaligned_starts(pool_at: int, out_at: int) -> None:
    for dims in (ODD, SMALL):
        _gather(dims, "uint8", [2, 0, 2], pool_at=pool_at, out_at=out_at)


def _gather(dims: Dims, element: str, ids: list[int], *, pool_at: int = 0, out_at: int = 0, order: int = 0) -> None:
    pool = random_pool(dims, element, offset=pool_at)
    shape = shape_of(pool, dims)
    out = at_offset(np.zeros(shape.run(len(ids)), pool.array.dtype), out_at)
    expected = np.zeros_like(out)
    on_shim(order).gather_blocks(pool, ids_of(ids), shape, Operand("out", out, element))
    reference.gather_blocks(pool.array, ids_of(ids).array, shape, expected)
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("dims", [SMALL, ODD, pytest.param(TWO_TILES, marks=pytest.mark.kernels_full)], ids=str)
def test_scatter_writes_its_blocks_and_no_others(dims: Dims, at: int) -> None:
    values = random_pool(Dims(dims.layers, 2, dims.block, dims.heads, dims.dim), "uint8", seed=1, offset=at)
    pool = random_pool(dims, "uint8")
    shape, expected = shape_of(pool, dims), pool.array.copy()
    on_shim().scatter_blocks(values, pool, ids_of([2, 0]), shape)
    reference.scatter_blocks(values.array, expected, ids_of([2, 0]).array, shape)
    assert np.array_equal(pool.array, expected)


def test_ids_out_of_range_are_skipped_on_the_device() -> None:
    pool = random_pool(SMALL, "float32")
    shape = shape_of(pool, SMALL)
    out = np.full(shape.run(4), 9, np.float32)
    on_shim().gather_blocks(pool, ids_of([-1, 2, 5, 1 << 30], checked=False), shape, Operand("out", out, "float32"))
    block = out.reshape(2, 2, 4, 4, 2, 16)
    assert (block[:, :, [0, 2, 3]] == 9).all()
    assert np.array_equal(block[:, :, 1], pool.array[:, :, 8:12])
    before = pool.array.copy()
    on_shim().scatter_blocks(Operand("values", out, "float32"), pool, ids_of([-1, 5, 7, -7], checked=False), shape)
    assert np.array_equal(pool.array, before)


@pytest.mark.parametrize("staging", [None, 2], ids=["by the kernel over the bus", "by DMA through staging"])
def test_mirror_and_back(staging: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = random_pool(SMALL, "float32")
    shape, before = shape_of(pool, SMALL), pool.array.copy()
    if staging:
        monkeypatch.setattr(on_device, "DMA_BYTES_AT_LEAST", 1)
        monkeypatch.setattr(on_device, "STAGING_BYTES", staging * shape.block_bytes)
    mirror = np.zeros(shape.mirror(6), np.float32)
    expected = mirror.copy()
    ids, places = ids_of([4, 1, 0, 2]), ids_of([1, 2, 3, 5])
    ops = on_shim()
    ops.copy_blocks(pool, ids, Operand("mirror", mirror, "float32"), places, shape, to_mirror=True)
    reference.copy_to_mirror(pool.array, ids.array, expected, places.array, shape)
    assert np.array_equal(mirror, expected)
    pool.array[...] = 0
    ops.copy_blocks(pool, ids, Operand("mirror", mirror, "float32"), places, shape, to_mirror=False)
    restored = np.zeros_like(before)
    reference.copy_from_mirror(expected, places.array, restored, ids.array, shape)
    assert np.array_equal(pool.array, restored)
    assert np.array_equal(pool.array[:, :, :12], before[:, :, :12])
    # Slots 1, 2, 3 and 5 are two runs, and a staging buffer of two blocks cuts the first.
    assert ops.device.launched.count("copy") == (6 if staging else 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("at", [0, 3, 4])
@pytest.mark.parametrize("dims", [SMALL, ODD, Dims(layers=20, slots=10, block=1, heads=1, dim=8)], ids=str)
def test_checksum_equals_the_hosts(dims: Dims, at: int, order: int) -> None:
    for element in ("uint8", "float32"):
        pool = random_pool(dims, element, offset=at if element == "uint8" else 0)
        shape, ids = shape_of(pool, dims), ids_of([*range(dims.slots), 1, 1])
        digests = on_shim(order).checksum_blocks(pool, ids, shape).array
        assert np.array_equal(digests, reference.checksum_blocks(pool.array, ids.array, shape))
        assert len(set(digests.tolist())) == dims.slots


@pytest.mark.kernels_full
@pytest.mark.parametrize("element", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("dims", [TWO_TILES, EXACT_TILE], ids=str)
def test_checksum_of_large_fragments(dims: Dims, element: str) -> None:
    pool = random_pool(dims, element)
    shape, ids = shape_of(pool, dims), ids_of([1, 0])
    expected = reference.checksum_blocks(pool.array, ids.array, shape)
    assert np.array_equal(on_shim(1).checksum_blocks(pool, ids, shape).array, expected)


def test_unknown_blocks_have_no_checksum() -> None:
    pool = random_pool(SMALL, "float32")
    assert on_shim().checksum_blocks(pool, ids_of([-1, 5], checked=False), shape_of(pool, SMALL)).array.tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize("at", [0, 1, 12])
@pytest.mark.parametrize("dims", [SMALL, ODD, pytest.param(TWO_TILES, marks=pytest.mark.kernels_full)], ids=str)
def test_wipe_clears_its_blocks_and_no_others(dims: Dims, at: int) -> None:
    pool = random_pool(dims, "uint8", offset=at)
    shape, expected = shape_of(pool, dims), pool.array.copy()
    residue = on_shim().wipe_blocks(pool, ids_of([2, 0, 2]), shape).array
    assert residue.tolist() == [0, 0, 0]
    reference.wipe_blocks(expected, ids_of([2, 0]).array, shape)
    assert np.array_equal(pool.array, expected)
    assert pool.array.any()


@pytest.mark.parametrize("dims", [SMALL, ODD], ids=str)
def test_residue_counts_every_byte_that_is_left(dims: Dims) -> None:
    pool = random_pool(dims, "uint8", offset=2)
    pool.array[pool.array < 100] = 0
    shape, ids = shape_of(pool, dims), ids_of([1, 3, 0])
    assert (
        on_shim().count_residue(pool, ids, shape).array.tolist()
        == reference.count_residue(pool.array, ids.array, shape).tolist()
    )


def test_a_block_that_could_not_be_wiped_is_all_residue() -> None:
    pool = random_pool(SMALL, "float32")
    shape, before = shape_of(pool, SMALL), pool.array.copy()
    assert on_shim().wipe_blocks(pool, ids_of([5, -1], checked=False), shape).array.tolist() == [shape.block_bytes] * 2
    assert np.array_equal(pool.array, before)


def test_nothing_to_do_launches_nothing_that_fails() -> None:
    pool = random_pool(SMALL, "float32")
    shape, ops = shape_of(pool, SMALL), on_shim()
    assert ops.wipe_blocks(pool, ids_of([]), shape).array.size == 0
    assert ops.checksum_blocks(pool, ids_of([]), shape).array.size == 0
