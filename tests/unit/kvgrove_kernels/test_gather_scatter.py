"""`gather_blocks` and `scatter_blocks` on host arrays: what they move, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvgrove_kernels import ops
from kvgrove_kernels.errors import BadArgument

LAYERS, SLOTS, BLOCK, HEADS, DIM = 3, 7, 4, 2, 8


def _pool(dtype: str = "float32") -> np.ndarray:
    shape = (LAYERS, 2, SLOTS * BLOCK, HEADS, DIM)
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("ids", [[], [3], [0, 1, 2], [6, 0, 6, 2]])
def test_gathered_run_holds_the_blocks_in_order(ids: list[int]) -> None:
    pool = _pool()
    run = ops.gather_blocks(pool, ids, block_size=BLOCK)
    assert run.shape == (LAYERS, 2, len(ids) * BLOCK, HEADS, DIM)
    for place, slot in enumerate(ids):
        got = run[:, :, place * BLOCK : (place + 1) * BLOCK]
        assert np.array_equal(got, pool[:, :, slot * BLOCK : (slot + 1) * BLOCK])


def test_scatter_is_the_inverse_and_touches_nothing_else() -> None:
    pool, ids = _pool("int16"), [5, 0, 3]
    other = np.full_like(pool, -1)
    ops.scatter_blocks(ops.gather_blocks(pool, ids, block_size=BLOCK), other, ids, block_size=BLOCK)
    for slot in range(SLOTS):
        block = np.s_[:, :, slot * BLOCK : (slot + 1) * BLOCK]
        assert np.array_equal(other[block], pool[block]) if slot in ids else (other[block] == -1).all()


def test_torch_tensors_are_read_and_written_where_they_lie() -> None:
    pool = torch.from_numpy(_pool()).to(torch.bfloat16)
    run = ops.gather_blocks(pool, [2, 4], block_size=BLOCK)
    assert run.dtype == torch.bfloat16
    assert torch.equal(run[:, :, :BLOCK], pool[:, :, 2 * BLOCK : 3 * BLOCK])
    ops.scatter_blocks(run, pool, [0, 1], block_size=BLOCK)
    assert torch.equal(pool[:, :, :BLOCK], pool[:, :, 2 * BLOCK : 3 * BLOCK])


def test_gather_writes_the_given_array() -> None:
    pool = _pool()
    out = np.empty((LAYERS, 2, BLOCK, HEADS, DIM), np.float32)
    assert ops.gather_blocks(pool, [1], block_size=BLOCK, out=out) is out
    assert np.array_equal(out, pool[:, :, BLOCK : 2 * BLOCK])


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("ids", lambda p: ops.gather_blocks(p, [SLOTS], block_size=BLOCK)),
        ("ids", lambda p: ops.gather_blocks(p, [-1], block_size=BLOCK)),
        ("ids", lambda p: ops.gather_blocks(p, [0.5], block_size=BLOCK)),
        ("ids", lambda p: ops.gather_blocks(p, [[0]], block_size=BLOCK)),
        ("block_size", lambda p: ops.gather_blocks(p, [0], block_size=0)),
        ("pool", lambda p: ops.gather_blocks(p, [0], block_size=3)),
        ("pool", lambda p: ops.gather_blocks(p[0], [0], block_size=BLOCK)),
        ("pool", lambda p: ops.gather_blocks(p[:, :, ::2], [0], block_size=BLOCK)),
        ("pool", lambda p: ops.gather_blocks(p.tolist(), [0], block_size=BLOCK)),
        ("out", lambda p: ops.gather_blocks(p, [0], block_size=BLOCK, out=np.empty((1,), np.float32))),
        (
            "out",
            lambda p: ops.gather_blocks(p[:1], [0, 1], block_size=BLOCK, out=p[:1, :, : 2 * BLOCK].copy().astype("f8")),
        ),
        (
            "ids",
            lambda p: ops.scatter_blocks(ops.gather_blocks(p, [1, 1], block_size=BLOCK), p, [1, 1], block_size=BLOCK),
        ),
        ("values", lambda p: ops.scatter_blocks(p, p, [0], block_size=BLOCK)),
        ("values", lambda p: ops.scatter_blocks(p, p, list(range(SLOTS)), block_size=BLOCK)),
    ],
)
def test_refusals_name_the_argument(field: str, call: object) -> None:
    with pytest.raises(BadArgument) as refused:
        call(_pool())  # type: ignore[operator]
    assert refused.value.field == field


def test_a_read_only_pool_is_not_scattered_into() -> None:
    pool = _pool()
    run = ops.gather_blocks(pool, [0], block_size=BLOCK)
    pool.flags.writeable = False
    with pytest.raises(BadArgument, match="pool: must be writable"):
        ops.scatter_blocks(run, pool, [0], block_size=BLOCK)
