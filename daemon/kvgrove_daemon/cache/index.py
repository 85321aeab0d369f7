"""Which blocks are resident: key -> block id, and columns of facts by block id.

Role: find the longest resident prefix of a chain and prove that it is the asker's. Invariants: every listed block is
READY and so are all its ancestors (I6), so that a chain's resident prefix is found by bisection; a match is proven by
comparing root, folds and every token, never by keys alone (I1, ISO-01); ids of removed blocks are reused with all
columns written anew (COR-14). Memory: about 55 bytes of columns, the tokens, and one dict entry with its key per block.
Must not know: who reads a block, when it gives way, where requests come from.

Ids are handed out so that a chain has consecutive ones wherever possible: it is read back as a few ranges, and compared
range by range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kvgrove_daemon.cache.blocks import BlockEvent, BlockState, step
from kvgrove_daemon.cache.columns import Ints, Stretch, count_in, values_of
from kvgrove_daemon.cache.contributors import Group, owner
from kvgrove_daemon.cache.incoming import NewBlocks, Tokens
from kvgrove_daemon.cache.interned import NOTHING
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.runs import Run, RunAllocator
from kvgrove_daemon.cache.selected import SelectedBlocks

__all__ = ["BlockIndex", "Ints", "Stretch"]

_READY_AFTER_COMMIT = step(step(BlockState.ABSENT, BlockEvent.CLAIM), BlockEvent.COMMIT)
_RETIRED = step(BlockState.READY, BlockEvent.RETIRE)
_FREED = step(_RETIRED, BlockEvent.FREE)


class BlockIndex(SelectedBlocks):
    """The resident blocks of one pool, at most ``capacity``. Mutable, single-threaded."""

    def __init__(self, capacity: int, block_size: int) -> None:
        super().__init__(capacity, block_size)
        self._keys: list[bytes] = [b""] * capacity
        self._by_key: dict[bytes, int] = {}
        self._ids = RunAllocator(capacity)
        self._vacant: list[int] = []

    # -- reading -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """READY blocks."""
        return len(self._by_key)

    @property
    def held(self) -> int:
        """Blocks with a slot: READY ones and retired ones that are still read."""
        return self._ids.used_count - len(self._vacant)

    def __contains__(self, key: bytes) -> bool:
        return key in self._by_key

    def find(self, key: bytes) -> int | None:
        return self._by_key.get(key)

    def key(self, block: int) -> bytes:
        return self._keys[block]

    def none_listed(self, keys: Sequence[bytes]) -> bool:
        """Whether no key is listed, and none is named twice."""
        return self._by_key.keys().isdisjoint(keys) and (len(keys) == 1 or len(set(keys)) == len(keys))

    def listed_prefix(self, keys: Sequence[bytes], stop: int) -> int:
        """How many of the first ``stop`` keys are listed: O(log stop) look-ups, by I6."""
        listed = self._by_key
        if stop == 0 or keys[0] not in listed:
            return 0
        if keys[stop - 1] in listed:
            return stop
        low, high = 1, stop - 1
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in listed:
                low = middle
            else:
                high = middle - 1
        return low

    def proves(self, tail: int, count: int, root: bytes, tokens: bytes, folds: Mapping[int, bytes]) -> bool:
        """Whether the chain that ends at ``tail`` is exactly the first ``count`` blocks of ``tokens`` under ``root``
        and ``folds``. ``tokens``: little-endian uint32."""
        if self.depth[tail] != count - 1 or self.roots.find(root) != self.root[tail]:
            return False
        parts = self.parts(tail)
        if not self._same_folds(values_of(self._fold_ids, parts), folds):
            return False
        start = 0
        for part in parts:  # ranges without a copy of the stored tokens; `startswith` is one memcmp
            stored = self._tokens[part]
            if not tokens.startswith(stored.data, start):
                return False
            start += stored.nbytes
        return True

    def _same_folds(self, held: Ints, folds: Mapping[int, bytes]) -> bool:
        wanted = {block: fold for block, fold in folds.items() if fold and block < len(held)}
        if np.count_nonzero(held) != len(wanted):
            return False
        return all(self.folds.find(fold) == held[block] for block, fold in wanted.items())

    def is_block(self, block: int, parent: int, root: bytes, tokens: Tokens, fold: bytes) -> bool:
        """Whether ``block`` is the child of ``parent`` with these tokens and this fold."""
        return (
            self.parent[block] == parent
            and self.roots.find(root) == self.root[block]
            and (self.folds.find(fold) if fold else NOTHING) == self.fold[block]
            and bool(np.array_equal(self._tokens[block], tokens))
        )

    # -- writing -------------------------------------------------------------------------------------------------------

    def insert(self, parent: int, new: NewBlocks) -> int:
        """List blocks that follow ``parent`` (`NO_BLOCK`: the root) as READY; answers the last one's id.

        The caller has made sure that `none_listed` holds. Raises ValueError when there are too few ids.
        """
        count, namespace = len(new), new.namespace
        runs = self._allocate(parent, count)
        wanted = new.tokens.reshape(count, self.block_size)
        slot_values = np.asarray(new.slots, dtype=np.int32)
        root_id = self.roots.hold(new.root, count, (namespace,))
        count_in(self.per_namespace, namespace, count)
        depth = 0 if parent == NO_BLOCK else self.depth[parent] + 1
        done = 0
        for run in runs:
            low, high, until = run.start, run.stop, done + run.length
            self._heads[low:high] = self._head[parent] if parent == low - 1 and parent != NO_BLOCK else low
            self._parents[low:high] = np.arange(low - 1, high - 1)
            self.parent[low] = parent
            self._depths[low:high] = np.arange(depth + done, depth + until)
            self._children[low:high] = 1
            self.children[high - 1] = 0
            self._slots[low:high] = slot_values[done:until]
            self._root_ids[low:high] = root_id
            self._fold_ids[low:high] = NOTHING
            self._tag_ids[low:high] = self._owner_ids[low:high] = NOTHING
            self._state[low:high] = _READY_AFTER_COMMIT
            self._tokens[low:high] = wanted[done:until]
            self._keys[low:high] = new.keys[done:until]
            self._by_key.update(zip(new.keys[done:until], range(low, high), strict=True))
            for offset, (fold, documents) in new.folds.items():
                if done <= offset < until:
                    self.fold[low + offset - done] = self.folds.hold(fold, 1, documents)
            if parent != NO_BLOCK:
                self.children[parent] += 1
            parent, done = high - 1, until
        self._mark(self.last_ids(parent, count), new)
        self.parts(parent)  # now, so that the next match need not walk
        return parent

    def unlist(self, block: int) -> bytes:
        """READY -> EVICTING: its key finds nothing any more. Answers the key."""
        self._require(block, BlockState.READY)
        key = self._keys[block]
        del self._by_key[key]
        self.state[block] = _RETIRED
        return key

    def remove(self, block: int) -> int:
        """EVICTING -> ABSENT: the id may be reused. Answers the parent, which has one child less."""
        self._require(block, BlockState.EVICTING)
        parent = self.parent[block]
        if parent != NO_BLOCK:
            self.children[parent] -= 1
        group = self.group(block)
        count_in(self.per_namespace, group.namespace, -1)
        count_in(self.per_group, group, -1)
        self.roots.release(self.root[block])
        if self.fold[block] != NOTHING:
            self.folds.release(self.fold[block])
        if self.tag[block] != NOTHING:
            self.tags.release(self.tag[block])
        if self.owner[block] != NOTHING:
            self.owners.release(self.owner[block])
        self._paths.forget(block)
        self._keys[block] = b""
        self.state[block] = _FREED
        self._vacant.append(block)
        return parent

    def scrub(self) -> None:
        """Overwrite the tokens of all blocks that are not held; their keys went with them. O(capacity)."""
        self._tokens[self._state == BlockState.ABSENT] = 0

    def scrub_row(self, block: int) -> None:
        """The same for one block that was just removed."""
        self._require(block, BlockState.ABSENT)
        self._tokens[block] = 0

    def _require(self, block: int, state: BlockState) -> None:
        if self.state[block] != state:
            raise ValueError(f"block {block} is {BlockState(self.state[block]).name}, not {state.name}")

    def _allocate(self, parent: int, count: int) -> Iterable[Run]:
        if self._vacant:  # in one go, so that neighbours merge once
            self._ids.free(self._vacant)
            self._vacant = []
        if parent != NO_BLOCK and (run := self._ids.extend(Run(parent, 1), count)) is not None:
            return [run]
        # Room to double behind a chain, so that its next turns have consecutive ids too.
        runs = self._ids.allocate(count, spare=count + (0 if parent == NO_BLOCK else self.depth[parent]))
        if runs is None:
            raise ValueError(f"{count} blocks do not fit: {self._ids.free_count} ids of {self.capacity} are free")
        return runs

    def _mark(self, ids: Ints, new: NewBlocks) -> None:
        """Write tags and owners of blocks that were just listed."""
        for first, stop, tag in new.tag_runs():
            count_in(self.per_group, Group(new.namespace, owner(tag).tenant), stop - first)
            if tag:
                self._tag_ids[ids[first:stop]] = self.tags.hold(tag, stop - first)
                self._owner_ids[ids[first:stop]] = self.owners.hold(owner(tag), stop - first)
