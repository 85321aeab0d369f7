"""Every op in NumPy: the oracle that kernels are compared with, and what runs on machines without a GPU.

Role: say in the fewest lines what each op computes. Invariants: arguments were checked by `ops`; arithmetic follows
the kernels' definition of a result, not their order of summation. Must not know: devices, launches.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvgrove_kernels import numbers
from kvgrove_kernels.arrays import Ids
from kvgrove_kernels.geometry import PoolShape
from kvgrove_kernels.numbers import Codec

Bits = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

TILE_WORDS: Final = 128
TILE_FACTOR: Final = 0x9E3779B97F4A7C15
SMALLEST_SCALE: Final = np.float32(2.0**-126)
_DIGEST_BYTES_AT_ONCE: Final = 8 << 20


def _fragments(array: Bits, shape: PoolShape) -> Bits:
    """``[plane][block][element]``, a view."""
    return array.reshape(shape.planes, -1, shape.fragment)


def gather_blocks(pool: Bits, ids: Ids, shape: PoolShape, out: Bits) -> None:
    # mode="clip" (the ids are checked) lets NumPy write into `out` directly: each fragment is one memcpy.
    np.take(_fragments(pool, shape), ids, axis=1, out=_fragments(out, shape), mode="clip")


def scatter_blocks(values: Bits, pool: Bits, ids: Ids, shape: PoolShape) -> None:
    # Plane by plane: with the ids on the first axis, NumPy copies large fragments a tenth faster than on the second.
    for target, source in zip(_fragments(pool, shape), _fragments(values, shape), strict=True):
        target[ids] = source


def copy_to_mirror(pool: Bits, ids: Ids, mirror: Bits, mirror_ids: Ids, shape: PoolShape) -> None:
    blocks = mirror.reshape(-1, shape.planes, shape.fragment)
    fragments = _fragments(pool, shape)
    for slot, place in zip(ids.tolist(), mirror_ids.tolist(), strict=True):
        blocks[place] = fragments[:, slot]


def copy_from_mirror(mirror: Bits, mirror_ids: Ids, pool: Bits, ids: Ids, shape: PoolShape) -> None:
    blocks = mirror.reshape(-1, shape.planes, shape.fragment)
    fragments = _fragments(pool, shape)
    for place, slot in zip(mirror_ids.tolist(), ids.tolist(), strict=True):
        fragments[:, slot] = blocks[place]


def wipe_blocks(pool: Bits, ids: Ids, shape: PoolShape) -> npt.NDArray[np.uint64]:
    fragments = _fragments(pool, shape)
    for slot in ids.tolist():
        fragments[:, slot] = 0
    return count_residue(pool, ids, shape)


def count_residue(pool: Bits, ids: Ids, shape: PoolShape) -> npt.NDArray[np.uint64]:
    """How many bytes of each block are not zero."""
    fragments = _fragments(pool.view(np.uint8).reshape(shape.planes, -1), shape.in_bytes)
    return np.array([np.count_nonzero(fragments[:, slot]) for slot in ids.tolist()], dtype=np.uint64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


@cache
def _tile_keys() -> npt.NDArray[np.uint64]:
    return _mix(np.arange(1, TILE_WORDS + 1, dtype=np.uint64)) | np.uint64(1)


def checksum_blocks(pool: Bits, ids: Ids, shape: PoolShape) -> npt.NDArray[np.uint64]:
    """The digest that `cuda/checksum_blocks.cu` defines."""
    fragments = _fragments(pool.view(np.uint8).reshape(shape.planes, -1), shape.in_bytes)
    tiles = -(-shape.fragment_bytes // (4 * TILE_WORDS))
    padded = tiles * 4 * TILE_WORDS
    bases = np.full(shape.planes * tiles, TILE_FACTOR, dtype=np.uint64)
    bases[:1] = 1
    factors = np.cumprod(bases, dtype=np.uint64).reshape(shape.planes, tiles)
    sums = np.zeros(ids.size, dtype=np.uint64)
    planes_at_once = max(1, _DIGEST_BYTES_AT_ONCE // max(1, padded))
    for place, slot in enumerate(ids.tolist()):
        for first in range(0, shape.planes, planes_at_once):
            part = fragments[first : first + planes_at_once, slot]
            if padded != shape.fragment_bytes:
                part = np.pad(part, ((0, 0), (0, padded - shape.fragment_bytes)))
            words = np.ascontiguousarray(part).view("<u4").reshape(-1, tiles, TILE_WORDS)
            by_tile = words.astype(np.uint64) @ _tile_keys()
            sums[place] += (by_tile * factors[first : first + planes_at_once]).sum(dtype=np.uint64)
    return _mix(sums + np.uint64(shape.block_bytes))


def quantize_blocks(pool: Bits, element: str, ids: Ids, shape: PoolShape, codec: Codec) -> tuple[Bits, Floats]:
    """Codes ``(layers, 2, n * block_size, heads, head_dim * bits / 8)`` and scales ``(layers, 2, n, heads)``."""
    blocks = shape.by_block(pool)[:, :, ids]
    values = numbers.to_float32(blocks, element)
    # NumPy reduces into the order of its input's strides; the layout promised is C's.
    largest: Floats = np.ascontiguousarray(np.fmax.reduce(np.abs(values), axis=(3, 5), initial=np.float32(0)))
    scales = largest / numbers.LARGEST_CODE[codec]
    scales[scales < SMALLEST_SCALE] = 0
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    codes = np.ascontiguousarray(numbers.encode(values * inverse[:, :, :, None, :, None], codec))
    return codes.reshape(shape.layers, 2, ids.size * shape.block_size, shape.heads, -1), scales


def dequantize_blocks(
    codes: Bits, scales: Floats, pool: Bits, ids: Ids, shape: PoolShape, *, codec: Codec, element: str
) -> None:
    values = numbers.decode(codes, codec).reshape(shape.layers, 2, ids.size, shape.block_size, shape.heads, -1)
    values = values * scales[:, :, :, None, :, None]
    shape.by_block(pool)[:, :, ids] = numbers.from_float32(values, element).view(pool.dtype)


def rope_table(deltas: Ids, turns: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
    """(cos, sin) of each (block, pair). ``turns``: turns of a pair for each position."""
    angle = deltas.astype(np.float64)[:, None] * turns
    radians = 2 * np.pi * (angle - np.rint(angle))
    return np.cos(radians).astype(np.float32), np.sin(radians).astype(np.float32)


def rope_shift(
    pool: Bits,
    ids: Ids,
    deltas: Ids,
    turns: npt.NDArray[np.float64],
    shape: PoolShape,
    *,
    element: str,
    interleaved: bool,
) -> None:
    cos, sin = (table[None, :, None, None, :] for table in rope_table(deltas, turns))
    half = turns.size
    first, second = (
        (np.s_[0 : 2 * half : 2], np.s_[1 : 2 * half : 2])
        if interleaved
        else (
            np.s_[:half],
            np.s_[half : 2 * half],
        )
    )
    keys = shape.by_block(pool)[:, 0]
    before = numbers.to_float32(keys[:, ids], element)
    after = before.copy()
    after[..., first] = before[..., first] * cos - before[..., second] * sin
    after[..., second] = before[..., second] * cos + before[..., first] * sin
    # Elements past the rotary ones come back bit for bit: rounding a value to its own type changes nothing.
    keys[:, ids] = numbers.from_float32(after, element).view(pool.dtype)


def paged_attention_decode(
    query: Floats,
    keys: Floats,
    values: Floats,
    block_table: Ids,
    context: Ids,
    *,
    block_size: int,
    scale: float,
) -> Floats:
    """Attention in fp32 over KV already in fp32, ``(tokens, kv_heads, head_dim)``; one sequence after the other."""
    batch, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    out = np.zeros_like(query)
    for row in range(batch):
        length = int(context[row])
        if length == 0:
            continue
        slots = block_table[row, : -(-length // block_size)].astype(np.int64)
        tokens = (slots[:, None] * block_size + np.arange(block_size)).reshape(-1)[:length]
        grouped = query[row].reshape(kv_heads, heads // kv_heads, head_dim)
        scores = np.einsum("kgd,tkd->kgt", grouped, keys[tokens]) * np.float32(scale)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[row] = np.einsum("kgt,tkd->kgd", weights, values[tokens]).reshape(heads, head_dim)
    return out
