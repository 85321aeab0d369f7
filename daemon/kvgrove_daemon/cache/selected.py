"""Blocks chosen by what they are: for drops, quotas, expiry, snapshots and checks.

Role: vectorised selections over all columns. Invariant: what is selected with its descendants comes children before
parents, so that it may be taken out in that order (I6). All cost O(capacity) at least: nothing of it is for a match.
Must not know: why something is selected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.columns import BlockColumns, count_in
from kvgrove_daemon.cache.incoming import Tokens
from kvgrove_daemon.cache.leases import NO_BLOCK


class SelectedBlocks(BlockColumns):
    """Read-only."""

    def ready_ids(self) -> npt.NDArray[np.int64]:
        """READY blocks, parents before children. O(capacity): for snapshots and checks."""
        ready = np.flatnonzero(self._state == BlockState.READY)
        return ready[np.argsort(self._depths[ready], kind="stable")]

    def ids_of(self, namespace: str) -> list[int]:
        """All blocks of ``namespace`` that are held. O(capacity)."""
        roots = [known for known, _, labels in self.roots.items() if namespace in labels]
        ids: list[int] = np.flatnonzero(np.isin(self._root_ids, roots) & (self._state != BlockState.ABSENT)).tolist()
        return ids

    def ready_by_namespace(self, marked: npt.NDArray[np.bool_]) -> dict[str, int]:
        """READY blocks among the marked ones, by namespace. O(capacity)."""
        roots, counts = np.unique(self._root_ids[marked & (self._state == BlockState.READY)], return_counts=True)
        by_namespace: dict[str, int] = {}
        for root, count in zip(roots.tolist(), counts.tolist(), strict=True):
            count_in(by_namespace, self.roots.labels(root)[0], count)
        return by_namespace

    def count_ready(self, marked: npt.NDArray[np.bool_]) -> int:
        return int(np.count_nonzero(self._state[marked] == BlockState.READY))

    def subtree_ids(
        self,
        root_ids: Iterable[int],
        fold_ids: Iterable[int] | None,
        tag_ids: Iterable[int] | None = None,
        *,
        state: BlockState = BlockState.READY,
    ) -> npt.NDArray[np.int64]:
        """Blocks in ``state`` under ``root_ids`` (with ``fold_ids`` and ``tag_ids``: that carry one of each, or descend
        from one that does). Children before parents. O(capacity x log depth), vectorised: for drops, which are rare.
        """
        held = self._state != BlockState.ABSENT
        chosen: npt.NDArray[Any] = np.isin(self._root_ids, list(root_ids)) & held
        if fold_ids is not None:
            chosen = self._with_descendants(chosen & np.isin(self._fold_ids, list(fold_ids)), held)
        if tag_ids is not None:
            chosen = self._with_descendants(chosen & np.isin(self._tag_ids, list(tag_ids)), held)
        ids = np.flatnonzero(chosen & (self._state == state))
        return ids[np.argsort(-self._depths[ids], kind="stable")]

    def branch_ids(self, block: int) -> npt.NDArray[np.int64]:
        """``block`` and its descendants, as far as they are READY. Children before parents. Cost: `subtree_ids`."""
        hit = np.zeros(self.capacity, dtype=np.bool_)
        hit[block] = True
        return self.below(hit)

    def below(self, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """The same for all marked blocks, which may be READY or not."""
        held = self._state != BlockState.ABSENT
        ids = np.flatnonzero(self._with_descendants(marked & held, held) & (self._state == BlockState.READY))
        return ids[np.argsort(-self._depths[ids], kind="stable")]

    def _with_descendants(self, hit: npt.NDArray[np.bool_], held: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        ancestor = np.where(held, self._parents, NO_BLOCK)
        while (up := ancestor != NO_BLOCK).any():  # each round doubles how far up a block has looked
            hit[up] |= hit[ancestor[up]]
            ancestor = np.where(up, ancestor[ancestor], NO_BLOCK)
        return hit

    def entries(self) -> Iterator[tuple[int, BlockState, Tokens]]:
        """``(id, state, tokens)`` of every block that is held: for checks."""
        for block in np.flatnonzero(self._state != BlockState.ABSENT).tolist():
            yield block, BlockState(self.state[block]), self._tokens[block]
