"""Random pools at chosen addresses, and the ops on them: once by the kernels on the host, once by the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from shim_device import ShimDevice

from kvgrove_kernels import numbers
from kvgrove_kernels.arrays import Operand, block_ids
from kvgrove_kernels.geometry import PoolShape
from kvgrove_kernels.on_device import DeviceOps

STORAGE = {"float32": "float32", "float16": "float16", "bfloat16": "int16", "uint8": "uint8"}
# Relative rounding step of each type, half of which a correctly rounded result may be off by.
STEP = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Dims:
    """A pool small enough to run on fibers."""

    layers: int = 2
    slots: int = 5
    block: int = 4
    heads: int = 2
    dim: int = 16

    @property
    def pool(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.slots * self.block, self.heads, self.dim)


def at_offset(array: np.ndarray[Any, Any], offset: int) -> np.ndarray[Any, Any]:
    """A copy whose first byte lies ``offset`` bytes past a multiple of 64, alone in its allocation's end."""
    room = np.empty(array.nbytes + 64 + offset, dtype=np.uint8)
    start = -room.ctypes.data % 64 + offset
    room = room[: start + array.nbytes]
    copy = np.ndarray(array.shape, array.dtype, buffer=room, offset=start)
    copy[...] = array
    return copy


def random_pool(dims: Dims, element: str, seed: int = 0, offset: int = 0) -> Operand:
    """Normal values of ``element``, or random bytes for uint8."""
    rng = np.random.default_rng(seed)
    if element == "uint8":
        values = rng.integers(0, 256, dims.pool, dtype=np.uint8)
    else:
        values = numbers.from_float32(rng.standard_normal(dims.pool, dtype=np.float32) * 3, element)
    return Operand("pool", at_offset(values, offset), element)


def shape_of(pool: Operand, dims: Dims) -> PoolShape:
    return PoolShape.of(pool, dims.block)


def ids_of(ids: list[int], *, checked: bool = True) -> Operand:
    if checked:
        return block_ids("ids", ids, 1 << 30, distinct=False)
    return Operand("ids", np.array(ids, dtype=np.int32), "int32")


def on_shim(order: int = 0, **device: Any) -> DeviceOps:
    return DeviceOps(ShimDevice(order=order, **device))


def floats(pool: Operand) -> np.ndarray[Any, np.dtype[np.float32]]:
    return numbers.to_float32(pool.array, pool.element)
