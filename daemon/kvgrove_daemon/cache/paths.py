"""Block ids of scattered chains, kept from when they were stored.

Role: spare a match the walk over a chain that eviction has left in many pieces, so that pressure does not make matches
slow. Invariants: the ids of a chain stay the same for as long as its tail is held, since its ancestors are too (I6);
an entry goes with its tail; at most as many ids are kept as there are blocks, least recently used chain first (I11).
Must not know: chains that lie in few ranges: those are read quicker than remembered.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


class Paths:
    """Tail -> ids from the root on. Mutable, single-threaded."""

    def __init__(self, most_ids: int) -> None:
        self._most = most_ids
        self._ids = 0
        self._paths: OrderedDict[int, Ints] = OrderedDict()

    def get(self, tail: int) -> Ints | None:
        """Read-only to the caller."""
        path = self._paths.get(tail)
        if path is not None:
            self._paths.move_to_end(tail)
        return path

    def put(self, tail: int, path: Ints) -> None:
        self.forget(tail)
        self._paths[tail] = path
        self._ids += len(path)
        while self._ids > self._most:
            self._ids -= len(self._paths.popitem(last=False)[1])

    def forget(self, tail: int) -> None:
        path = self._paths.pop(tail, None)
        if path is not None:
            self._ids -= len(path)
