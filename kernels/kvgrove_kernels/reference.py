"""Every op in NumPy: the oracle that kernels are compared with, and what runs on machines without a GPU.

Role: say in the fewest lines what each op computes. Invariants: arguments were checked by `ops`; arithmetic follows
the kernels' definition of a result, not their order of summation. Must not know: devices, launches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvgrove_kernels.arrays import Ids
from kvgrove_kernels.geometry import PoolShape

Floats = npt.NDArray[Any]


def _fragments(array: Floats, shape: PoolShape) -> Floats:
    """``[plane][block][element]``, a view."""
    return array.reshape(shape.planes, -1, shape.fragment)


def gather_blocks(pool: Floats, ids: Ids, shape: PoolShape, out: Floats) -> None:
    # mode="clip" (the ids are checked) lets NumPy write into `out` directly: each fragment is one memcpy.
    np.take(_fragments(pool, shape), ids, axis=1, out=_fragments(out, shape), mode="clip")


def scatter_blocks(values: Floats, pool: Floats, ids: Ids, shape: PoolShape) -> None:
    _fragments(pool, shape)[:, ids] = _fragments(values, shape)
