"""Every op as kernel launches: the device side of `ops`, and the same signatures as `reference`.

Role: choose variant, grid and arguments. Invariants: arguments were checked by `ops`; all launches of an op are
ordered on one stream; the order and the types of arguments are the kernels' own (the host test bed compares sizes).
Must not know: CuPy, torch, streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvgrove_kernels.arrays import Operand
from kvgrove_kernels.compile import Variant
from kvgrove_kernels.device import Argument, Device, Launch
from kvgrove_kernels.errors import BadArgument
from kvgrove_kernels.geometry import PoolShape
from kvgrove_kernels.numbers import Codec

KIND: Final = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int8": "INT8",
    "e4m3": "E4M3",
    "int4": "INT4",
}
_MOVE: Final = Variant("move_blocks")
_CHECKSUM: Final = Variant("checksum_blocks")
_WIPE: Final = Variant("wipe_blocks")

# As in the sources: what one block of threads takes.
_MOVE_THREADS, _TILE_BYTES, _MOVERS_PER_MULTIPROCESSOR = 256, 16384, 8
_WARPS = 8
# DMA reaches the bus's bandwidth from about half a megabyte on; shorter pieces the kernel moves over the bus itself.
DMA_BYTES_AT_LEAST: Final = 512 << 10
STAGING_BYTES: Final = 64 << 20
MAX_GRID_Y: Final = 65535


@dataclass(frozen=True, slots=True)
class Place:
    """One side of a move: where fragment (block, plane) starts, and how many blocks there are. Sizes in bytes."""

    base: Operand
    ids: Operand | None
    """None where block i is i itself."""
    slots: int
    block_stride: int
    plane_stride: int

    @classmethod
    def pool(cls, pool: Operand, ids: Operand, shape: PoolShape) -> Place:
        return cls(pool, ids, shape.slots, shape.fragment_bytes, shape.slots * shape.fragment_bytes)

    @classmethod
    def run(cls, run: Operand, blocks: int, shape: PoolShape) -> Place:
        return cls(run, None, blocks, shape.fragment_bytes, blocks * shape.fragment_bytes)

    @classmethod
    def mirror(cls, mirror: Operand, ids: Operand | None, shape: PoolShape) -> Place:
        return cls(mirror, ids, mirror.shape[0], shape.block_bytes, shape.fragment_bytes)

    @property
    def args(self) -> tuple[Argument, ...]:
        return self.base, self.ids, np.int64(self.slots), np.int64(self.block_stride), np.int64(self.plane_stride)


@dataclass(frozen=True, slots=True)
class DeviceOps:
    """The ops on one device."""

    device: Device

    def gather_blocks(self, pool: Operand, ids: Operand, shape: PoolShape, out: Operand) -> None:
        blocks = ids.shape[0]
        self.move(Place.pool(pool, self.ids(ids), shape), Place.run(out, blocks, shape), blocks, shape)

    def scatter_blocks(self, values: Operand, pool: Operand, ids: Operand, shape: PoolShape) -> None:
        blocks = ids.shape[0]
        self.move(Place.run(values, blocks, shape), Place.pool(pool, self.ids(ids), shape), blocks, shape)

    def move(self, source: Place, target: Place, blocks: int, shape: PoolShape) -> None:
        """``blocks`` blocks from one place to another; their ids are on the device."""
        units = shape.planes * blocks * -(-shape.fragment_bytes // _TILE_BYTES)
        if units >= 2**32:
            raise BadArgument("ids", f"{blocks} blocks are more than one launch can count")
        if units == 0:
            return
        grid = min(units, self.device.multiprocessors * _MOVERS_PER_MULTIPROCESSOR)
        sizes = np.uint32(blocks), np.uint32(shape.planes), np.int64(shape.fragment_bytes)
        args = (*source.args, *target.args, *sizes)
        self.device.launch(Launch(_MOVE, "move_blocks", (grid, 1, 1), _MOVE_THREADS, args))

    def copy_blocks(
        self, pool: Operand, ids: Operand, mirror: Operand, mirror_ids: Operand, shape: PoolShape, *, to_mirror: bool
    ) -> None:
        """Between the pool and pinned host memory that the device can address, by DMA of whole runs of mirror slots
        through a staging buffer where the runs are long enough."""
        blocks = ids.shape[0]
        if blocks == 0 or shape.block_bytes == 0:
            return
        if not self.device.is_pinned(mirror):
            raise BadArgument("mirror", "must be pinned host memory")
        ids = self.ids(ids)
        staged = max(1, min(blocks, STAGING_BYTES // shape.block_bytes))
        runs = _runs(mirror_ids.on_host().tolist(), staged)
        if blocks * shape.block_bytes < len(runs) * DMA_BYTES_AT_LEAST:
            here = Place.pool(pool, ids, shape)
            there = Place.mirror(mirror, self.ids(mirror_ids), shape)
            self.move(*((here, there) if to_mirror else (there, here)), blocks, shape)
            return
        staging = self.device.scratch((staged, shape.block_bytes), "uint8")
        for first, slot, count in runs:
            here = Place.pool(pool, ids.part(first, count), shape)
            buffer = Place.mirror(staging, None, shape)
            outside = mirror.address + slot * shape.block_bytes
            if to_mirror:
                self.move(here, buffer, count, shape)
                self.device.copy(outside, staging.address, count * shape.block_bytes)
            else:
                self.device.copy(staging.address, outside, count * shape.block_bytes)
                self.move(buffer, here, count, shape)

    def checksum_blocks(self, pool: Operand, ids: Operand, shape: PoolShape) -> Operand:
        blocks = ids.shape[0]
        digests = self.device.scratch((blocks,), "uint64")
        if blocks == 0:
            return digests
        ids = self.ids(ids)
        partial = self.device.scratch((blocks, shape.planes), "uint64")
        counts = np.uint32(blocks), np.uint32(shape.planes)
        fragment = np.int64(shape.fragment_bytes)
        where = pool, ids, np.int64(shape.slots), np.int64(shape.slots * shape.fragment_bytes)
        grid = (-(-blocks // _WARPS), _planes(shape), 1)
        args: tuple[Argument, ...] = (*where, fragment, *counts, partial)
        self.device.launch(Launch(_CHECKSUM, "checksum_fragments", grid, 32 * _WARPS, args))
        args = (partial, ids, np.int64(shape.slots), fragment, *counts, digests)
        self.device.launch(Launch(_CHECKSUM, "checksum_digests", (grid[0], 1, 1), 32 * _WARPS, args))
        return digests

    def wipe_blocks(self, pool: Operand, ids: Operand, shape: PoolShape) -> Operand:
        ids = self.ids(ids)
        if ids.shape[0] and shape.fragment_bytes:
            args = self._fragments(pool, ids, shape)
            grid = (ids.shape[0], _planes(shape), 1)
            self.device.launch(Launch(_WIPE, "wipe_fragments", grid, 256, args))
        return self.count_residue(pool, ids, shape)

    def count_residue(self, pool: Operand, ids: Operand, shape: PoolShape) -> Operand:
        blocks = ids.shape[0]
        residue = self.device.scratch((blocks,), "uint64")
        if blocks == 0:
            return residue
        partial = self.device.scratch((blocks, shape.planes), "uint64")
        counts = np.uint32(blocks), np.uint32(shape.planes)
        grid = (-(-blocks // _WARPS), _planes(shape), 1)
        args: tuple[Argument, ...] = (*self._fragments(pool, self.ids(ids), shape), *counts, partial)
        self.device.launch(Launch(_WIPE, "count_residue", grid, 32 * _WARPS, args))
        args = (partial, *counts, residue)
        self.device.launch(Launch(_WIPE, "sum_residue", (grid[0], 1, 1), 32 * _WARPS, args))
        return residue

    def quantize_blocks(
        self, pool: Operand, ids: Operand, shape: PoolShape, codes: Operand, scales: Operand, *, codec: Codec
    ) -> None:
        blocks = ids.shape[0]
        if blocks == 0 or shape.heads == 0:
            return
        sides = pool, self.ids(ids), np.int64(shape.slots), codes, scales
        args = (*sides, None, np.int64(blocks), np.uint32(shape.heads))
        grid = (blocks * shape.heads, _planes(shape), 1)
        self.device.launch(Launch(_quantizer(pool, codec, shape), "quantize_blocks", grid, 128, args))

    def dequantize_blocks(
        self, codes: Operand, scales: Operand, pool: Operand, ids: Operand, shape: PoolShape, *, codec: Codec
    ) -> None:
        blocks = ids.shape[0]
        if blocks == 0 or shape.heads == 0:
            return
        sides = codes, scales, None, np.int64(blocks), pool
        args = (*sides, self.ids(ids), np.int64(shape.slots), np.uint32(shape.heads))
        grid = (blocks, _planes(shape), 1)
        self.device.launch(Launch(_quantizer(pool, codec, shape), "dequantize_blocks", grid, 256, args))

    def rope_shift(
        self, pool: Operand, ids: Operand, deltas: Operand, turns: Operand, shape: PoolShape, *, interleaved: bool
    ) -> None:
        blocks, half = ids.shape[0], turns.shape[0]
        if blocks == 0 or half == 0 or shape.fragment == 0:
            return
        variant = Variant(
            "rope_shift",
            (
                ("KVG_POOL", KIND[pool.element]),
                ("KVG_HEAD_DIM", shape.head_dim),
                ("KVG_ROTARY", 2 * half),
                ("KVG_INTERLEAVED", int(interleaved)),
                ("KVG_BLOCK_SIZE", shape.block_size),
            ),
        )
        table = self.device.scratch((blocks, half, 2), "float32")
        turns = turns if turns.on_device else self.device.upload(turns.array)
        args: tuple[Argument, ...] = (self.ids(deltas), turns, np.uint32(blocks), table)
        self.device.launch(Launch(variant, "rope_table", (-(-blocks * half // 256), 1, 1), 256, args))
        args = pool, self.ids(ids), np.int64(shape.slots), table, np.uint32(shape.heads)
        self.device.launch(Launch(variant, "rope_shift", (blocks, shape.layers, 1), 256, args))

    def ids(self, ids: Operand) -> Operand:
        """Where kernels can read them."""
        return ids if ids.on_device else self.device.upload(ids.array)

    def _fragments(self, pool: Operand, ids: Operand, shape: PoolShape) -> tuple[Argument, ...]:
        plane = shape.slots * shape.fragment_bytes
        sizes = np.int64(shape.slots), np.int64(plane), np.int64(shape.fragment_bytes)
        return pool, ids, *sizes


def _planes(shape: PoolShape) -> int:
    if shape.planes > MAX_GRID_Y:
        raise BadArgument("pool", f"has {shape.layers} layers, and one launch reaches {MAX_GRID_Y // 2}")
    return shape.planes


def _quantizer(pool: Operand, codec: Codec, shape: PoolShape) -> Variant:
    return Variant(
        "quantize_blocks",
        (
            ("KVG_POOL", KIND[pool.element]),
            ("KVG_CODE", KIND[codec]),
            ("KVG_HEAD_DIM", shape.head_dim),
            ("KVG_BLOCK_SIZE", shape.block_size),
        ),
    )


def _runs(slots: Sequence[int], longest: int) -> list[tuple[int, int, int]]:
    """(first index, first slot, count) of pieces in which slots follow one another, none longer than ``longest``."""
    runs: list[tuple[int, int, int]] = []
    for index, slot in enumerate(slots):
        if runs:
            first, start, count = runs[-1]
            if slot == start + count and count < longest:
                runs[-1] = (first, start, count + 1)
                continue
        runs.append((index, slot, 1))
    return runs
