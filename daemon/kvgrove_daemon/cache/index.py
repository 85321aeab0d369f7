"""Which blocks are resident: key -> block id, and columns of facts by block id.

Role: find the longest resident prefix of a chain and prove that it is the asker's. Invariants: every listed block is
READY and so are all its ancestors (I6), so that a chain's resident prefix is found by bisection; a match is proven by
comparing root, folds and every token, never by keys alone (I1, ISO-01); ids of removed blocks are reused with all
columns written anew (COR-14). Memory: about 55 bytes of columns, the tokens, and one dict entry with its key per block.
Must not know: who reads a block, when it gives way, where requests come from.

Ids are handed out so that a chain has consecutive ones wherever possible. ``head`` of a block is the first id of the
stretch of consecutive ancestors that ends in it: a chain is read back as a few ranges, and compared range by range.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.blocks import BlockEvent, BlockState, step
from kvgrove_daemon.cache.contributors import DECLARED, Group, Tag, joined, owner
from kvgrove_daemon.cache.eviction.policy import Parts
from kvgrove_daemon.cache.incoming import NewBlocks, Tokens
from kvgrove_daemon.cache.interned import NOTHING, Interned
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.paths import Paths
from kvgrove_daemon.cache.runs import Run, RunAllocator
from kvgrove_protocol.identity import NOBODY, Contributor

Key = TypeVar("Key", bound=Hashable)
Ints = npt.NDArray[np.int32]
Stretch = tuple[int, int]
"""Block ids ``[low, high)``, each the parent of the next."""

_READY_AFTER_COMMIT = step(step(BlockState.ABSENT, BlockEvent.CLAIM), BlockEvent.COMMIT)
_RETIRED = step(BlockState.READY, BlockEvent.RETIRE)
_FREED = step(_RETIRED, BlockEvent.FREE)
_MANY_STRETCHES = 8  # from here on, one gather is quicker than a comparison per stretch


def _column(capacity: int) -> tuple[array[int], Ints]:
    """One int32 per block: single values are quick through the array, ranges through the view of the same memory."""
    values = array("i", bytes(4 * capacity))
    return values, np.frombuffer(values, dtype=np.int32)


def _joined(stretches: Sequence[Stretch]) -> Ints:
    """Stretches as one array of block ids."""
    if len(stretches) == 1:
        return np.arange(*stretches[0], dtype=np.int32)
    bounds = np.array(stretches, dtype=np.int32).reshape(-1, 2)
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths, dtype=np.int32)
    shifts = bounds[:, 0] - (ends - lengths)
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int32) + np.repeat(shifts, lengths)


def _values(column: Ints, parts: Parts) -> Ints:
    return column[parts[0]] if len(parts) == 1 else np.concatenate([column[part] for part in parts])


def _add(counts: dict[Key, int], key: Key, count: int) -> None:
    """Only what is there has an entry."""
    counts[key] = counts.get(key, 0) + count
    if not counts[key]:
        del counts[key]


class BlockIndex:
    """The resident blocks of one pool, at most ``capacity``. Mutable, single-threaded."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity = capacity
        self.block_size = block_size
        self.roots: Interned[bytes] = Interned()
        """Root key -> id, labelled with its namespace."""
        self.folds: Interned[bytes] = Interned()
        """Fold -> id, labelled with the documents that it stands for."""
        self.tags: Interned[Tag] = Interned()
        self.owners: Interned[Contributor] = Interned()
        self.per_namespace: dict[str, int] = {}
        """Blocks held, retired ones included; only namespaces that hold any."""
        self.per_group: dict[Group, int] = {}
        """The same by who is charged for them."""
        self.parent, self._parents = _column(capacity)
        self.depth, self._depths = _column(capacity)
        self.children, self._children = _column(capacity)
        self.slot, self._slots = _column(capacity)
        self.root, self._root_ids = _column(capacity)
        self.fold, self._fold_ids = _column(capacity)
        self.tag, self._tag_ids = _column(capacity)
        self.owner, self._owner_ids = _column(capacity)
        self._head, self._heads = _column(capacity)
        self.state = bytearray(capacity)
        self._state: npt.NDArray[np.uint8] = np.frombuffer(self.state, dtype=np.uint8)
        self._tokens: Tokens = np.zeros((capacity, block_size), dtype="<u4")  # as in keys and on the wire
        self._keys: list[bytes] = [b""] * capacity
        self._by_key: dict[bytes, int] = {}
        self._ids = RunAllocator(capacity)
        self._paths = Paths(capacity)
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

    def namespace(self, block: int) -> str:
        return self.roots.labels(self.root[block])[0]

    def group(self, block: int) -> Group:
        """Who is charged for ``block``."""
        return Group(self.namespace(block), self.owner_of(block).tenant)

    def child_beside(self, parent: int, other: int) -> int:
        """A child of ``parent`` that is not ``other``; there must be one. O(1) where ids are consecutive."""
        next_id = parent + 1
        if next_id not in (other, self.capacity) and self.parent[next_id] == parent and self.state[next_id]:
            return next_id
        children = np.flatnonzero((self._parents == parent) & (self._state != BlockState.ABSENT))
        return int(next(child for child in children if child != other))

    def tag_of(self, block: int) -> Tag:
        """Whose text ``block`` may hold."""
        return self.tags.value(self.tag[block]) if self.tag[block] != NOTHING else DECLARED

    def owner_of(self, block: int) -> Contributor:
        """Who is charged for ``block``; `NOBODY` for declared text."""
        return self.owners.value(self.owner[block]) if self.owner[block] != NOTHING else NOBODY

    def tokens(self, block: int) -> bytes:
        """Little-endian uint32, one block. A copy."""
        return bytes(self._tokens[block].data)

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

    def stretches(self, tail: int) -> list[Stretch]:
        """The chain that ends at ``tail``, from its root on."""
        found: list[Stretch] = []
        while tail != NO_BLOCK:
            low = self._head[tail]
            found.append((low, tail + 1))
            tail = self.parent[low]
        found.reverse()
        return found

    def parts(self, tail: int) -> Parts:
        """The same as what selects it from a column: at most so many parts that a loop over them is quick."""
        if (known := self._paths.get(tail)) is not None:
            return [known]
        found = self.stretches(tail)
        if len(found) <= _MANY_STRETCHES:
            return [slice(low, high) for low, high in found]
        path = _joined(found)
        self._paths.put(tail, path)
        return [path]

    def chain_ids(self, tail: int) -> Ints:
        """The same chain as an array of block ids. Read-only to the caller."""
        known = self._paths.get(tail)
        return _joined(self.stretches(tail)) if known is None else known

    def last_ids(self, tail: int, count: int) -> Ints:
        """The last ``count`` blocks of the chain that ends at ``tail``, in order."""
        found: list[Stretch] = []
        while count:
            low = max(self._head[tail], tail + 1 - count)
            found.append((low, tail + 1))
            count -= tail + 1 - low
            tail = self.parent[low]
        found.reverse()
        return _joined(found)

    def slots(self, tail: int) -> Ints:
        """Slots of the chain that ends at ``tail``, in order. A copy."""
        return self._slots[self.chain_ids(tail)]

    def proves(self, tail: int, count: int, root: bytes, tokens: bytes, folds: Mapping[int, bytes]) -> bool:
        """Whether the chain that ends at ``tail`` is exactly the first ``count`` blocks of ``tokens`` under ``root``
        and ``folds``. ``tokens``: little-endian uint32."""
        if self.depth[tail] != count - 1 or self.roots.find(root) != self.root[tail]:
            return False
        parts = self.parts(tail)
        if not self._same_folds(_values(self._fold_ids, parts), folds):
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
        _add(self.per_namespace, namespace, count)
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
        _add(self.per_namespace, group.namespace, -1)
        _add(self.per_group, group, -1)
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

    def contribute(self, tail: int, first: int, tag: Tag) -> None:
        """Add ``tag`` to blocks ``first`` to the tail of the chain that ends at ``tail``.

        Vectorised: a chain has few different tags, in long runs.
        """
        missing = self.depth[tail] + 1 - first if tag and tail != NO_BLOCK else 0
        while missing > 0:
            low = max(self._head[tail], tail + 1 - missing)
            column = self._tag_ids[low : tail + 1]
            borders = np.flatnonzero(column[1:] != column[:-1]) + 1
            for at, until in zip([0, *borders.tolist()], [*borders.tolist(), len(column)], strict=True):
                held = int(column[at])
                now = joined(self.tags.value(held) if held != NOTHING else DECLARED, tag)
                grown = self.tags.hold(now, until - at)  # before the old one goes: they may be the same
                if held != NOTHING:
                    self.tags.release(held, until - at)
                column[at:until] = grown
            missing -= tail + 1 - low
            tail = self.parent[low]

    def contribute_above(self, tail: int, tag: Tag) -> None:
        """Add ``tag`` to the private part of the chain that ends at ``tail``, if it is not covered there."""
        held = self.tag_of(tail)
        if held and joined(held, tag) != held:
            tagged = self._tag_ids[self.chain_ids(tail)] != NOTHING
            self.contribute(tail, int(tagged.argmax()), tag)

    def _mark(self, ids: Ints, new: NewBlocks) -> None:
        """Write tags and owners of blocks that were just listed."""
        for first, stop, tag in new.tag_runs():
            _add(self.per_group, Group(new.namespace, owner(tag).tenant), stop - first)
            if tag:
                self._tag_ids[ids[first:stop]] = self.tags.hold(tag, stop - first)
                self._owner_ids[ids[first:stop]] = self.owners.hold(owner(tag), stop - first)

    # -- selecting -----------------------------------------------------------------------------------------------------

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
            _add(by_namespace, self.roots.labels(root)[0], count)
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

    @property
    def root_column(self) -> Ints:
        """Root ids by block, also of blocks that are not held. Read-only."""
        return self._root_ids

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
