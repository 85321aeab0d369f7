"""The ops on KV blocks: one typed function each, on NumPy, CuPy and torch arrays alike.

Role: check arguments, then run the NumPy reference for host arrays or launch the kernel for device arrays.
Invariants: arrays are worked on where they lie; device work is ordered on the given stream (default: CuPy's current
one) and nothing waits for it; results are valid once that stream has reached them. Must not know: who owns a block.

Shapes: ``pool`` is ``(layers, 2, slots * block_size, kv_heads, head_dim)``, C-contiguous; ``ids`` are slots. Errors:
`BadArgument` naming the argument, `KernelsUnavailable` for device arrays where CuPy is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvgrove_kernels import reference
from kvgrove_kernels.arrays import Array, block_ids, like, operand
from kvgrove_kernels.geometry import PoolShape


def gather_blocks(pool: Array, ids: Array | Sequence[int], *, block_size: int, out: Array | None = None) -> Array:
    """Copy blocks ``ids`` of ``pool`` into one contiguous run ``(layers, 2, n * block_size, kv_heads, head_dim)``.

    Writes ``out`` and returns it, or a new array. Ids may repeat. ``out`` must not overlap ``pool``.
    """
    source = operand("pool", pool)
    shape = PoolShape.of(source, block_size)
    slots = block_ids("ids", ids, shape.slots, distinct=False)
    run = shape.run(slots.shape[0])
    result = like(pool, run) if out is None else out
    target = operand("out", result, writable=True)
    target.need_shape(run)
    target.need_dtype(str(source.array.dtype))
    target.need_apart_from(source)
    reference.gather_blocks(source.array, slots.array, shape, target.array)
    return result


def scatter_blocks(values: Array, pool: Array, ids: Array | Sequence[int], *, block_size: int) -> None:
    """The opposite of `gather_blocks`: write a contiguous run into blocks ``ids`` of ``pool``, in place."""
    target = operand("pool", pool, writable=True)
    shape = PoolShape.of(target, block_size)
    slots = block_ids("ids", ids, shape.slots, distinct=True)
    source = operand("values", values)
    source.need_shape(shape.run(slots.shape[0]))
    source.need_dtype(str(target.array.dtype))
    source.need_apart_from(target)
    reference.scatter_blocks(source.array, target.array, slots.array, shape)
