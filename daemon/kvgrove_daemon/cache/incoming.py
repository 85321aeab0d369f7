"""Blocks on their way into the index: what a build hands over when it commits.

Role: keep the columns of such a batch in step when it is cut. Invariant: all columns describe the same blocks. Has no
``repr``: it holds prompt tokens (I12). Must not know: the index, where the blocks come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.contributors import ANYBODY, DECLARED, Tag

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
    tags: Mapping[int, Tag] = field(default_factory=lambda: {0: ANYBODY})
    """Offset within `keys`, ascending and from 0 -> whose text the blocks from there on may hold."""
    computed_at: float | None = None
    """When, on the clock of the pool, for blocks that come from another tier; None: just now."""

    def __len__(self) -> int:
        return len(self.keys)

    def tokens_of(self, at: int) -> Tokens:
        size = len(self.tokens) // len(self.keys)
        return self.tokens[at * size : (at + 1) * size]

    def fold_of(self, at: int) -> bytes:
        return self.folds[at][0] if at in self.folds else b""

    def tag_runs(self) -> Iterator[tuple[int, int, Tag]]:
        """``(first, stop, tag)``: the blocks by tag, as offsets within `keys`."""
        starts = list(self.tags)
        for first, stop in zip(starts, [*starts[1:], len(self.keys)], strict=True):
            yield first, stop, self.tags[first]

    def tag_at(self, at: int) -> Tag:
        """Of the block at ``at``; of none where there is none."""
        return next((tag for first, stop, tag in self.tag_runs() if first <= at < stop), DECLARED)

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
            {max(low - first, 0): tag for low, high, tag in self.tag_runs() if low < stop and high > first},
            self.computed_at,
        )
