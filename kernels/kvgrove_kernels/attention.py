"""Decode attention over blocks: its arguments, and its launches.

Role: check how query, KV, scales and tables fit together; split contexts so that the device is full. Invariants:
nothing is copied or read. Must not know: the arithmetic, streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kvgrove_kernels import numbers
from kvgrove_kernels.arrays import Array, Operand, operand
from kvgrove_kernels.compile import Variant
from kvgrove_kernels.device import Argument, Device, Launch
from kvgrove_kernels.errors import BadArgument
from kvgrove_kernels.numbers import Codec
from kvgrove_kernels.on_device import KIND, MAX_GRID_Y

MAX_HEAD_DIM: Final = 256
MAX_GROUP: Final = 8
"""Query heads that one block of threads serves, so that their KV is read once."""

_SPLIT_TOKENS_AT_LEAST = 256
_SPLITTERS_PER_MULTIPROCESSOR = 4


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """One layer's planes, ``(tokens, kv_heads, head_dim)`` or codes of it, and the scales of codes."""

    keys: Operand
    values: Operand
    key_scales: Operand | None
    value_scales: Operand | None
    codec: Codec | None

    @classmethod
    def of(
        cls,
        keys: Array,
        values: Array,
        key_scales: Array | None,
        value_scales: Array | None,
        *,
        codec: Codec | None,
        dtype: str | None,
    ) -> KeysAndValues:
        plain = None if codec else dtype
        planes = operand("keys", keys, plain), operand("values", values, plain)
        if codec is None:
            for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
                if scales is not None:
                    raise BadArgument(name, "belongs to codes: give the codec too")
            planes[0].need_element()
            planes[1].need_dtype(str(planes[0].array.dtype))
            return cls(*planes, None, None, None)
        if codec not in numbers.CODECS:
            raise BadArgument("codec", f"must be one of {', '.join(numbers.CODECS)}, not {codec!r}")
        for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
            if scales is None:
                raise BadArgument(name, f"codes of {codec} have scales")
        for plane in planes:
            plane.need_dtype("uint8")
        both = operand("key_scales", key_scales), operand("value_scales", value_scales)
        return cls(*planes, *both, codec)

    @property
    def kind(self) -> str:
        return self.codec or self.keys.element

    def in_float32(self, block_size: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Both planes' values on the host."""
        if self.codec is None:
            element = self.keys.element
            return numbers.to_float32(self.keys.array, element), numbers.to_float32(self.values.array, element)
        keys, values = (numbers.decode(plane.on_host(), self.codec) for plane in (self.keys, self.values))
        for rows, scales in ((keys, self.key_scales), (values, self.value_scales)):
            if scales is not None:  # `of` sees to it that codes have them
                np.multiply(rows, np.repeat(scales.on_host(), block_size, axis=0)[:, :, None], out=rows)
        return keys, values


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Counts of one decode step. ``group``: query heads for each KV head; ``kind``: what the KV is stored as."""

    batch: int
    kv_heads: int
    group: int
    head_dim: int
    block_size: int
    slots: int
    table_width: int
    max_context: int
    kind: str

    @classmethod
    def of(
        cls,
        query: Operand,
        kv: KeysAndValues,
        table: Operand,
        context: Operand,
        *,
        block_size: int,
        max_context: int | None,
    ) -> DecodeShape:
        """Raises `BadArgument` where the arguments do not fit together."""
        query.need_element()
        if len(query.shape) != 3:
            raise BadArgument("query", f"shape must be (batch, heads, head_dim), not {query.shape}")
        batch, heads, head_dim = query.shape
        if head_dim % 8 or not 8 <= head_dim <= MAX_HEAD_DIM:
            raise BadArgument("query", f"head_dim must be a multiple of 8 up to {MAX_HEAD_DIM}, not {head_dim}")
        if len(kv.keys.shape) != 3:
            raise BadArgument("keys", f"shape must be (tokens, kv_heads, head_dim), not {kv.keys.shape}")
        tokens, kv_heads, _ = kv.keys.shape
        if block_size < 1:
            raise BadArgument("block_size", f"must be at least 1, not {block_size}")
        if tokens % block_size:
            raise BadArgument("keys", f"its {tokens} tokens are no whole number of blocks of {block_size}")
        if kv_heads < 1 or heads % kv_heads:
            raise BadArgument("query", f"its {heads} heads must be a multiple of the {kv_heads} heads of keys")
        width = head_dim * numbers.CODE_BITS[kv.codec] // 8 if kv.codec else head_dim
        for plane in (kv.keys, kv.values):
            plane.need_shape((tokens, kv_heads, width))
        for scales in (kv.key_scales, kv.value_scales):
            if scales is not None:
                scales.need_dtype("float32")
                scales.need_shape((tokens // block_size, kv_heads))
        for whole in (table, context):
            whole.need_dtype("int32")
        if len(table.shape) != 2 or table.shape[0] != batch:
            raise BadArgument("block_table", f"shape must be ({batch}, width), not {table.shape}")
        context.need_shape((batch,))
        for each in (query, kv.keys, kv.values, kv.key_scales, kv.value_scales, table, context):
            if each is not None:
                each.need_side_of(query)
        for each in (query, kv.keys, kv.values):
            each.need_alignment(16)
        most = table.shape[1] * block_size
        if max_context is not None and not 0 <= max_context <= most:
            raise BadArgument("max_context", f"must be in 0..{most}, what the table has room for, not {max_context}")
        slots = tokens // block_size
        longest = most if max_context is None else max_context
        shape = cls(batch, kv_heads, heads // kv_heads, head_dim, block_size, slots, table.shape[1], longest, kv.kind)
        if not query.on_device:
            _check_tables(table.on_host(), context.on_host(), shape)
        return shape


def _check_tables(table: npt.NDArray[np.int32], context: npt.NDArray[np.int32], shape: DecodeShape) -> None:
    """Host tables only: reading device ones would wait. There a kernel leaves out tokens of slots it does not know."""
    if context.size and (int(context.min()) < 0 or int(context.max()) > shape.max_context):
        raise BadArgument("context", f"every length must be in 0..{shape.max_context}")
    blocks = -(-context // shape.block_size)
    used = table[np.arange(shape.table_width) < blocks[:, None]]
    if used.size and (int(used.min()) < 0 or int(used.max()) >= shape.slots):
        raise BadArgument("block_table", f"every slot in use must be in 0..{shape.slots - 1}")


def launch(
    device: Device,
    query: Operand,
    kv: KeysAndValues,
    block_table: Operand,
    context: Operand,
    *,
    shape: DecodeShape,
    scale: float,
    out: Operand,
) -> None:
    """Two launches: each split of each context on its own, then their sums. All operands are on the device."""
    heads = shape.kv_heads * shape.group
    if shape.batch == 0 or heads == 0:
        return
    # Tiles as equal as can be: 12 heads in two tiles of 6, not 8 and 4.
    tiles = -(-shape.group // MAX_GROUP)
    tile = -(-shape.group // tiles)
    if max(shape.kv_heads * tiles, shape.batch) > MAX_GRID_Y:
        raise BadArgument("query", f"one launch reaches {MAX_GRID_Y} sequences and as many tiles of heads")
    splits, split_tokens = _splits(shape, tiles, device.multiprocessors)
    variant = Variant(
        "paged_attention_decode",
        (
            ("KVG_KV", KIND[shape.kind]),
            ("KVG_QUERY", KIND[query.element]),
            ("KVG_HEAD_DIM", shape.head_dim),
            ("KVG_BLOCK_SIZE", shape.block_size),
            ("KVG_GROUP", tile),
        ),
    )
    sums = device.scratch((shape.batch, heads, splits, shape.head_dim), "float32")
    weights = device.scratch((shape.batch, heads, splits, 2), "float32")
    planes = kv.keys, kv.values, kv.key_scales, kv.value_scales
    counts = np.int32(shape.table_width), np.int32(shape.kv_heads), np.int32(shape.group), np.int32(split_tokens)
    args: tuple[Argument, ...]
    args = (query, *planes, block_table, context, np.int64(shape.slots), *counts, np.float32(scale), sums, weights)
    device.launch(Launch(variant, "attend_split", (splits, shape.kv_heads * tiles, shape.batch), 128, args))
    args = sums, weights, np.int32(splits), out
    device.launch(Launch(variant, "combine_splits", (shape.batch * heads, 1, 1), -(-shape.head_dim // 32) * 32, args))


def _splits(shape: DecodeShape, tiles: int, multiprocessors: int) -> tuple[int, int]:
    """How many splits, and tokens in each: enough to fill the device, none so short that starting it is the cost."""
    longest = max(1, shape.max_context)
    wanted = -(-multiprocessors * _SPLITTERS_PER_MULTIPROCESSOR // (shape.batch * shape.kv_heads * tiles))
    splits = max(1, min(wanted, longest // _SPLIT_TOKENS_AT_LEAST))
    tokens = -(-longest // splits)
    return -(-longest // tokens), tokens
