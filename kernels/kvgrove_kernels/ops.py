"""The ops on KV blocks: one typed function each, on NumPy, CuPy and torch arrays alike.

Role: check arguments, then run the NumPy reference for host arrays or launch kernels for device arrays. Invariants:
arrays are worked on where they lie; device work is ordered on CuPy's current stream (``with stream:``) and nothing
waits for it; results are valid once that stream has reached them. Must not know: who owns a block.

Shapes: ``pool`` is ``(layers, 2, slots * block_size, kv_heads, head_dim)``, C-contiguous; ``ids`` are slots, int32
where they are device arrays. bfloat16 arrays of NumPy and CuPy are 2-byte integers with ``dtype="bfloat16"``.
Errors: `BadArgument` naming the argument; for device arrays also `KernelsUnavailable` where CuPy is not installed,
`KernelCompileFailed` and `DeviceOutOfMemory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvgrove_kernels import attention, numbers, reference
from kvgrove_kernels.arrays import Array, Operand, block_ids, cupy, like, operand, short_vector
from kvgrove_kernels.device import cupy_device
from kvgrove_kernels.errors import BadArgument
from kvgrove_kernels.geometry import PoolShape
from kvgrove_kernels.numbers import Codec
from kvgrove_kernels.on_device import DeviceOps


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
    target.need_side_of(source)
    target.need_apart_from(source)
    if source.on_device:
        _kernels(source).gather_blocks(source, slots, shape, target)
    else:
        reference.gather_blocks(source.array, slots.on_host(), shape, target.array)
    return result


def scatter_blocks(values: Array, pool: Array, ids: Array | Sequence[int], *, block_size: int) -> None:
    """The opposite of `gather_blocks`: write a contiguous run into blocks ``ids`` of ``pool``, in place."""
    target = operand("pool", pool, writable=True)
    shape = PoolShape.of(target, block_size)
    slots = block_ids("ids", ids, shape.slots, distinct=True)
    source = operand("values", values)
    source.need_shape(shape.run(slots.shape[0]))
    source.need_dtype(str(target.array.dtype))
    source.need_side_of(target)
    source.need_apart_from(target)
    if target.on_device:
        _kernels(target).scatter_blocks(source, target, slots, shape)
    else:
        reference.scatter_blocks(source.array, target.array, slots.on_host(), shape)


def copy_blocks(
    pool: Array,
    ids: Array | Sequence[int],
    mirror: Array,
    mirror_ids: Sequence[int],
    *,
    block_size: int,
    to: Literal["mirror", "pool"],
) -> None:
    """Copy blocks ``ids`` of ``pool`` to slots ``mirror_ids`` of ``mirror``, or back.

    ``mirror`` is a host array ``(slots, layers, 2, block_size, kv_heads, head_dim)`` of elements as large as the
    pool's, so that a block is one piece of memory; for a device pool it must be pinned, and neither side may be
    touched before the stream has got there.
    """
    on_pool = operand("pool", pool, writable=to == "pool")
    shape = PoolShape.of(on_pool, block_size)
    on_mirror = operand("mirror", mirror, writable=to == "mirror")
    on_mirror.on_host()
    if on_mirror.array.dtype.itemsize != shape.item_bytes:
        raise BadArgument("mirror", f"its elements must have {shape.item_bytes} bytes, not those of {mirror.dtype}")
    on_mirror.need_shape(shape.mirror(on_mirror.shape[0] if on_mirror.shape else 0))
    slots = block_ids("ids", ids, shape.slots, distinct=to == "pool")
    places = block_ids("mirror_ids", mirror_ids, on_mirror.shape[0], distinct=to == "mirror")
    places.need_shape(slots.shape)
    on_mirror.need_apart_from(on_pool)
    if on_pool.on_device:
        _kernels(on_pool).copy_blocks(on_pool, slots, on_mirror, places, shape, to_mirror=to == "mirror")
    elif to == "mirror":
        same = on_mirror.array.view(on_pool.array.dtype)
        reference.copy_to_mirror(on_pool.array, slots.on_host(), same, places.on_host(), shape)
    else:
        same = on_mirror.array.view(on_pool.array.dtype)
        reference.copy_from_mirror(same, places.on_host(), on_pool.array, slots.on_host(), shape)


def checksum_blocks(pool: Array, ids: Array | Sequence[int], *, block_size: int) -> Array:
    """A 64-bit digest of each block's bytes, ``(n,)`` of uint64, the same on the host and on the device.

    Finds damage (any change within one aligned 4-byte word for certain), not forgery; see `cuda/checksum_blocks.cu`.
    """
    source = operand("pool", pool)
    shape = PoolShape.of(source, block_size)
    slots = block_ids("ids", ids, shape.slots, distinct=False)
    if source.on_device:
        return _kernels(source).checksum_blocks(source, slots, shape).array
    return reference.checksum_blocks(source.array, slots.on_host(), shape)


def wipe_blocks(pool: Array, ids: Array | Sequence[int], *, block_size: int) -> Array:
    """Overwrite blocks with zeros and read them back: how many bytes of each were not zero then, ``(n,)`` of uint64.

    All zero is the evidence that an erase needs. Ids may repeat.
    """
    target = operand("pool", pool, writable=True)
    shape = PoolShape.of(target, block_size)
    slots = block_ids("ids", ids, shape.slots, distinct=False)
    if target.on_device:
        return _kernels(target).wipe_blocks(target, slots, shape).array
    return reference.wipe_blocks(target.array, slots.on_host(), shape)


@dataclass(frozen=True, slots=True)
class Quantised:
    """Blocks under a lossy codec, laid out as a pool of ``n`` slots.

    ``codes``: uint8, ``(layers, 2, n * block_size, kv_heads, head_dim * bits / 8)``; ``scales``: float32,
    ``(layers, 2, n, kv_heads)``. Both may be gathered, scattered and attended on like any pool.
    """

    codes: Array
    scales: Array
    codec: Codec


def quantize_blocks(
    pool: Array, ids: Array | Sequence[int], *, block_size: int, codec: Codec, dtype: str | None = None
) -> Quantised:
    """Blocks ``ids`` of ``pool`` under ``codec``, one scale for each (block, head). Values must be finite.

    Largest error: ``scale / 2`` for int8 and int4, a sixteenth of the value (``scale / 1024`` near zero) for e4m3.
    """
    source = operand("pool", pool, dtype)
    source.need_element()
    source.need_alignment(16)
    shape = PoolShape.of(source, block_size)
    _need_octets(shape)
    _need_codec(codec)
    slots = block_ids("ids", ids, shape.slots, distinct=False)
    if not source.on_device:
        codes, scales = reference.quantize_blocks(source.array, source.element, slots.on_host(), shape, codec)
        return Quantised(codes, scales, codec)
    blocks = slots.shape[0]
    coded = (*shape.run(blocks)[:-1], shape.head_dim * numbers.CODE_BITS[codec] // 8)
    codes_on, scales_on = cupy().empty(coded, "uint8"), cupy().empty((shape.layers, 2, blocks, shape.heads), "float32")
    targets = operand("codes", codes_on), operand("scales", scales_on)
    _kernels(source).quantize_blocks(source, slots, shape, *targets, codec=codec)
    return Quantised(codes_on, scales_on, codec)


def dequantize_blocks(
    quantised: Quantised, pool: Array, ids: Array | Sequence[int], *, block_size: int, dtype: str | None = None
) -> None:
    """Write the ``n`` blocks of ``quantised`` into blocks ``ids`` of ``pool``, in place."""
    target = operand("pool", pool, dtype, writable=True)
    target.need_element()
    target.need_alignment(16)
    shape = PoolShape.of(target, block_size)
    _need_octets(shape)
    _need_codec(quantised.codec)
    slots = block_ids("ids", ids, shape.slots, distinct=True)
    blocks = slots.shape[0]
    codes, scales = operand("quantised.codes", quantised.codes), operand("quantised.scales", quantised.scales)
    codes.need_dtype("uint8")
    codes.need_alignment(16)
    codes.need_shape((*shape.run(blocks)[:-1], shape.head_dim * numbers.CODE_BITS[quantised.codec] // 8))
    codes.need_side_of(target)
    scales.need_dtype("float32")
    scales.need_shape((shape.layers, 2, blocks, shape.heads))
    scales.need_side_of(target)
    if target.on_device:
        _kernels(target).dequantize_blocks(codes, scales, target, slots, shape, codec=quantised.codec)
    else:
        args = codes.array, scales.array, target.array, slots.on_host(), shape
        reference.dequantize_blocks(*args, codec=quantised.codec, element=target.element)


def rope_shift(
    pool: Array,
    ids: Array | Sequence[int],
    deltas: Array | Sequence[int],
    inverse_frequencies: Sequence[float],
    *,
    block_size: int,
    interleaved: bool = False,
    dtype: str | None = None,
) -> None:
    """Turn the keys of blocks ``ids`` as if each of their tokens stood ``deltas[i]`` positions further on, in place.

    ``inverse_frequencies``: radians for each position, ``rotary_dim / 2`` of them, on the host, as the model's RoPE
    has them (scaled variants included); elements from ``rotary_dim`` on stay. Pairs are (j, j + rotary_dim / 2), or
    neighbours with ``interleaved``. Adds one rounding to the pool's type.
    """
    target = operand("pool", pool, dtype, writable=True)
    target.need_element()
    target.need_alignment(16)
    shape = PoolShape.of(target, block_size)
    _need_octets(shape)
    slots = block_ids("ids", ids, shape.slots, distinct=True)
    moved = short_vector("deltas", deltas, "int32")
    moved.need_shape(slots.shape)
    frequencies = short_vector("inverse_frequencies", inverse_frequencies, "float64")
    turns = frequencies.on_host() / (2 * np.pi)
    if 2 * turns.size > shape.head_dim:
        raise BadArgument("inverse_frequencies", f"must be at most head_dim / 2 = {shape.head_dim // 2}")
    if target.on_device:
        each = Operand("turns", turns, "float64")
        _kernels(target).rope_shift(target, slots, moved, each, shape, interleaved=interleaved)
    else:
        args = target.array, slots.on_host(), moved.on_host(), turns, shape
        reference.rope_shift(*args, element=target.element, interleaved=interleaved)


def paged_attention_decode(
    query: Array,
    keys: Array,
    values: Array,
    block_table: Array,
    context: Array,
    *,
    block_size: int,
    scale: float | None = None,
    max_context: int | None = None,
    codec: Codec | None = None,
    key_scales: Array | None = None,
    value_scales: Array | None = None,
    dtype: str | None = None,
    out: Array | None = None,
) -> Array:
    """Attention of one new token of each sequence over KV that stays in its blocks: ``(batch, heads, head_dim)``.

    ``query``: ``(batch, heads, head_dim)``. ``keys``, ``values``: one plane each, ``pool[layer, 0]`` and
    ``pool[layer, 1]``; with ``codec``, planes of codes and their scales ``(slots, kv_heads)``. ``block_table``: int32,
    ``(batch, width)``; ``context``: int32, tokens of each sequence (none: zeros). ``scale``: 1 / sqrt(head_dim) where
    not given. ``max_context``, no smaller than any context, sizes a device launch: without it the table's width does.
    """
    asked = operand("query", query, dtype)
    kv = attention.KeysAndValues.of(keys, values, key_scales, value_scales, codec=codec, dtype=dtype)
    table, lengths = operand("block_table", block_table), operand("context", context)
    shape = attention.DecodeShape.of(asked, kv, table, lengths, block_size=block_size, max_context=max_context)
    result = like(query, asked.shape) if out is None else out
    target = operand("out", result, dtype, writable=True)
    target.need_shape(asked.shape)
    target.need_dtype(str(asked.array.dtype))
    target.need_side_of(asked)
    factor = shape.head_dim**-0.5 if scale is None else scale
    if asked.on_device:
        device = _kernels(asked).device
        attention.launch(device, asked, kv, table, lengths, shape=shape, scale=factor, out=target)
    else:
        args = numbers.to_float32(asked.array, asked.element), *kv.in_float32(block_size), table.array, lengths.array
        found = reference.paged_attention_decode(*args, block_size=block_size, scale=factor)
        target.array[...] = numbers.from_float32(found, asked.element).view(target.array.dtype)
    return result


def _kernels(operand: Operand) -> DeviceOps:
    return DeviceOps(cupy_device(operand.array.device.id))


def _need_octets(shape: PoolShape) -> None:
    if shape.head_dim % 8 or not 8 <= shape.head_dim <= attention.MAX_HEAD_DIM:
        limit = attention.MAX_HEAD_DIM
        raise BadArgument("pool", f"head_dim must be a multiple of 8 up to {limit}, not {shape.head_dim}")


def _need_codec(codec: str) -> None:
    if codec not in numbers.CODECS:
        raise BadArgument("codec", f"must be one of {', '.join(numbers.CODECS)}, not {codec!r}")
