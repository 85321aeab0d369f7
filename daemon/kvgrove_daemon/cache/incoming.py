"""Blocks on their way into the index: what a build hands over when it commits.

Role: keep the columns of such a batch in step when it is cut. Invariant: all columns describe the same blocks. Has no
``repr``: it holds prompt tokens (I12). Must not know: the index, where the blocks come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, repr=False)
class NewBlocks:
    """Whole, computed blocks of one chain, in order, that are to become resident."""

    namespace: str
    root: bytes
    keys: Sequence[bytes]
    tokens: Tokens
    """Of all blocks, flat."""
    slots: Sequence[int]
    folds: Mapping[int, tuple[bytes, tuple[str, ...]]]
    """Offset within `keys` -> (fold, its documents), where there is a fold."""

    def __len__(self) -> int:
        return len(self.keys)

    def tokens_of(self, at: int) -> Tokens:
        size = len(self.tokens) // len(self.keys)
        return self.tokens[at * size : (at + 1) * size]

    def fold_of(self, at: int) -> bytes:
        return self.folds[at][0] if at in self.folds else b""

    def part(self, first: int, stop: int) -> NewBlocks:
        if first == 0 and stop == len(self.keys):
            return self
        size = len(self.tokens) // len(self.keys)
        return NewBlocks(
            self.namespace,
            self.root,
            self.keys[first:stop],
            self.tokens[first * size : stop * size],
            self.slots[first:stop],
            {at - first: fold for at, fold in self.folds.items() if first <= at < stop},
        )
