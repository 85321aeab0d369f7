"""Every op on a real GPU, against the host's results and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvgrove_kernels import numbers, ops
from kvgrove_kernels.errors import BadArgument
from kvgrove_kernels.numbers import CODECS, Codec

BLOCK, SLOTS = 32, 96
FREQUENCIES = 10_000.0 ** (-np.arange(64) / 64)


@pytest.fixture
def pool() -> torch.Tensor:
    values = torch.randn((4, 2, SLOTS * BLOCK, 8, 128), generator=torch.Generator().manual_seed(0))
    return values.to(torch.bfloat16).cuda()


@pytest.fixture
def ids() -> list[int]:
    return np.random.default_rng(0).permutation(SLOTS)[:41].tolist()


def _host(array: Any) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        return array.cpu().view(torch.int16).numpy()
    return array.get()


def test_gather_and_scatter_move_the_same_bytes(pool: torch.Tensor, ids: list[int]) -> None:
    run = ops.gather_blocks(pool, ids, block_size=BLOCK)
    assert np.array_equal(_host(run), ops.gather_blocks(_host(pool), ids, block_size=BLOCK))
    target = torch.zeros_like(pool)
    ops.scatter_blocks(run, target, torch.tensor(ids, dtype=torch.int32).cuda(), block_size=BLOCK)
    expected = np.zeros_like(_host(pool))
    ops.scatter_blocks(_host(run), expected, ids, block_size=BLOCK)
    assert np.array_equal(_host(target), expected)


def test_misaligned_starts(ids: list[int]) -> None:
    import cupy

    shape = (2, 2, SLOTS * 3, 1, 7)
    size = int(np.prod(shape))
    for pool_at, out_at in ((0, 1), (1, 1), (2, 6), (4, 8), (13, 3)):
        pool = cupy.random.randint(0, 256, size + 64, dtype=cupy.uint8)[pool_at : pool_at + size].reshape(shape)
        out = cupy.zeros(2 * 2 * 41 * 3 * 7 + 64, cupy.uint8)[out_at : out_at + 2 * 2 * 41 * 3 * 7]
        out = out.reshape(2, 2, 41 * 3, 1, 7)
        ops.gather_blocks(pool, ids, block_size=3, out=out)
        assert np.array_equal(out.get(), ops.gather_blocks(pool.get(), ids, block_size=3))


def test_checksum_is_the_hosts(pool: torch.Tensor, ids: list[int]) -> None:
    found = ops.checksum_blocks(pool, ids, block_size=BLOCK).get()
    assert np.array_equal(found, ops.checksum_blocks(_host(pool), ids, block_size=BLOCK))


def test_wipe_leaves_nothing(pool: torch.Tensor, ids: list[int]) -> None:
    assert not ops.wipe_blocks(pool, ids, block_size=BLOCK).get().any()
    for slot in range(SLOTS):
        assert pool[:, :, slot * BLOCK : (slot + 1) * BLOCK].any().item() == (slot not in ids)


@pytest.mark.parametrize("codec", CODECS)
def test_codes_are_the_hosts(pool: torch.Tensor, ids: list[int], codec: Codec) -> None:
    """Bit for bit, which on sm_89 and later also compares the native e4m3 conversions with the integer ones."""
    found = ops.quantize_blocks(pool, ids, block_size=BLOCK, codec=codec)
    expected = ops.quantize_blocks(_host(pool), ids, block_size=BLOCK, codec=codec, dtype="bfloat16")
    assert np.array_equal(found.scales.get(), expected.scales)
    assert np.array_equal(found.codes.get(), expected.codes)
    target = torch.zeros_like(pool)
    ops.dequantize_blocks(found, target, ids, block_size=BLOCK)
    on_host = np.zeros_like(_host(pool))
    ops.dequantize_blocks(expected, on_host, ids, block_size=BLOCK, dtype="bfloat16")
    assert np.array_equal(_host(target), on_host)


def test_shift_is_the_hosts_within_a_rounding(pool: torch.Tensor, ids: list[int]) -> None:
    deltas = np.random.default_rng(1).integers(-200_000, 200_000, len(ids)).tolist()
    expected = _host(pool).copy()
    ops.rope_shift(pool, ids, deltas, FREQUENCIES.tolist(), block_size=BLOCK)
    ops.rope_shift(expected, ids, deltas, FREQUENCIES.tolist(), block_size=BLOCK, dtype="bfloat16")
    exact = numbers.to_float32(expected, "bfloat16")
    assert np.abs(pool.float().cpu().numpy() - exact).max() <= 2.0**-7 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 12])
@pytest.mark.parametrize("dim", [8, 64, 80, 128, 256])
def test_decode_is_float64s(dim: int, group: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(dim + group)
    lengths = [0, 1, 700, 3001]
    planes = torch.randn((2, 400 * BLOCK, 2, dim), generator=random).to(dtype)
    query = (torch.randn((4, 2 * group, dim), generator=random) * 2).to(dtype)
    table = torch.randperm(400, generator=random)[:376].reshape(4, 94).to(torch.int32)
    context = torch.tensor(lengths, dtype=torch.int32)
    arguments = [each.cuda() for each in (query, planes[0], planes[1], table, context)]
    found = ops.paged_attention_decode(*arguments, block_size=BLOCK).cpu().double()
    for row, length in enumerate(lengths):
        slots = table[row].long()[:, None] * BLOCK + torch.arange(BLOCK)
        keys, values = (plane[slots.reshape(-1)[:length]].double().transpose(0, 1) for plane in planes)
        grouped = query[row].double().reshape(2, group, dim)
        weights = torch.softmax(grouped @ keys.transpose(1, 2) * dim**-0.5, dim=-1)
        exact = (weights @ values).reshape(2 * group, dim)
        bound = exact.abs() * torch.finfo(dtype).eps / 2 + 1e-4
        assert ((found[row] - exact).abs() <= bound).all()


@pytest.mark.parametrize("codec", CODECS)
def test_decode_over_codes_is_the_hosts(pool: torch.Tensor, codec: Codec) -> None:
    coded = ops.quantize_blocks(pool, list(range(SLOTS)), block_size=BLOCK, codec=codec)
    query = torch.randn((2, 32, 128), generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    table = np.random.default_rng(2).permutation(SLOTS)[:80].reshape(2, 40).astype(np.int32)
    context = np.array([1280, 37], np.int32)
    import cupy

    def decode(query: Any, codes: Any, scales: Any, *where: Any, **more: Any) -> Any:
        both = {"key_scales": scales[1, 0], "value_scales": scales[1, 1]}
        planes = codes[1, 0], codes[1, 1]
        return ops.paged_attention_decode(query, *planes, *where, block_size=BLOCK, codec=codec, **both, **more)

    where = cupy.asarray(table), cupy.asarray(context)
    found = decode(query.cuda(), coded.codes, coded.scales, *where).float().cpu().numpy()
    bits = query.view(torch.int16).numpy()
    expected = decode(bits, coded.codes.get(), coded.scales.get(), table, context, dtype="bfloat16")
    exact = numbers.to_float32(expected, "bfloat16")
    assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-7 + 2e-4).all()


def test_nothing_waits_for_the_device(pool: torch.Tensor, ids: list[int]) -> None:
    """An op returns while the stream is still busy with what came before it."""
    import cupy

    on_device = torch.tensor(ids, dtype=torch.int32).cuda()
    out = ops.gather_blocks(pool, on_device, block_size=BLOCK)  # compiled and loaded by now
    busy, stream = cupy.zeros(1 << 28, cupy.float32), cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with stream:
        for _ in range(200):
            busy += 1
        ops.gather_blocks(pool, on_device, block_size=BLOCK, out=out)
        ops.gather_blocks(pool, ids, block_size=BLOCK, out=out)  # host ids go through pinned memory
        assert not stream.done
    stream.synchronize()


def test_pageable_mirrors_are_refused(pool: torch.Tensor) -> None:
    mirror = np.zeros((1, 4, 2, BLOCK, 8, 128), np.int16)
    with pytest.raises(BadArgument, match="mirror: must be pinned"):
        ops.copy_blocks(pool, [0], mirror, [0], block_size=BLOCK, to="mirror")
