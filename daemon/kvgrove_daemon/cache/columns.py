"""Columns of facts by block id, and how chains lie in them.

Role: what is known of each block that is held, and the way from a tail to its ancestors. Invariants: ``head`` of a
block is the first id of the stretch of consecutive ancestors that ends in it, so that a chain is read back as a few
ranges; scattered chains are remembered as arrays of ids (`Paths`).
Must not know: keys, who may be listed, when a block gives way.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.contributors import DECLARED, Group, Tag, joined
from kvgrove_daemon.cache.eviction.policy import Parts
from kvgrove_daemon.cache.incoming import Tokens
from kvgrove_daemon.cache.interned import NOTHING, Interned
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.paths import Paths
from kvgrove_protocol.identity import NOBODY, Contributor

Key = TypeVar("Key", bound=Hashable)
Ints = npt.NDArray[np.int32]
Stretch = tuple[int, int]
"""Block ids ``[low, high)``, each the parent of the next."""

_MANY_STRETCHES = 8  # from here on, one gather is quicker than a comparison per stretch


def column_of(capacity: int) -> tuple[array[int], Ints]:
    """One int32 per block: single values are quick through the array, ranges through the view of the same memory."""
    values = array("i", bytes(4 * capacity))
    return values, np.frombuffer(values, dtype=np.int32)


def joined_ids(stretches: Sequence[Stretch]) -> Ints:
    """Stretches as one array of block ids."""
    if len(stretches) == 1:
        return np.arange(*stretches[0], dtype=np.int32)
    bounds = np.array(stretches, dtype=np.int32).reshape(-1, 2)
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths, dtype=np.int32)
    shifts = bounds[:, 0] - (ends - lengths)
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int32) + np.repeat(shifts, lengths)


def values_of(column: Ints, parts: Parts) -> Ints:
    return column[parts[0]] if len(parts) == 1 else np.concatenate([column[part] for part in parts])


def count_in(counts: dict[Key, int], key: Key, count: int) -> None:
    """Only what is there has an entry."""
    counts[key] = counts.get(key, 0) + count
    if not counts[key]:
        del counts[key]


class BlockColumns:
    """Of at most ``capacity`` blocks. Mutable by `BlockIndex` alone, but for tags."""

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
        self.parent, self._parents = column_of(capacity)
        self.depth, self._depths = column_of(capacity)
        self.children, self._children = column_of(capacity)
        self.slot, self._slots = column_of(capacity)
        self.root, self._root_ids = column_of(capacity)
        self.fold, self._fold_ids = column_of(capacity)
        self.tag, self._tag_ids = column_of(capacity)
        self.owner, self._owner_ids = column_of(capacity)
        self._head, self._heads = column_of(capacity)
        self.state = bytearray(capacity)
        self._state: npt.NDArray[np.uint8] = np.frombuffer(self.state, dtype=np.uint8)
        self._tokens: Tokens = np.zeros((capacity, block_size), dtype="<u4")  # as in keys and on the wire
        self._paths = Paths(capacity)

    # -- facts ---------------------------------------------------------------------------------------------------------

    def namespace(self, block: int) -> str:
        return self.roots.labels(self.root[block])[0]

    def group(self, block: int) -> Group:
        """Who is charged for ``block``."""
        return Group(self.namespace(block), self.owner_of(block).tenant)

    def tag_of(self, block: int) -> Tag:
        """Whose text ``block`` may hold."""
        return self.tags.value(self.tag[block]) if self.tag[block] != NOTHING else DECLARED

    def owner_of(self, block: int) -> Contributor:
        """Who is charged for ``block``; `NOBODY` for declared text."""
        return self.owners.value(self.owner[block]) if self.owner[block] != NOTHING else NOBODY

    def tokens(self, block: int) -> bytes:
        """Little-endian uint32, one block. A copy."""
        return bytes(self._tokens[block].data)

    @property
    def root_column(self) -> Ints:
        """Root ids by block, also of blocks that are not held. Read-only."""
        return self._root_ids

    # -- chains --------------------------------------------------------------------------------------------------------

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
        path = joined_ids(found)
        self._paths.put(tail, path)
        return [path]

    def chain_ids(self, tail: int) -> Ints:
        """The same chain as an array of block ids. Read-only to the caller."""
        known = self._paths.get(tail)
        return joined_ids(self.stretches(tail)) if known is None else known

    def last_ids(self, tail: int, count: int) -> Ints:
        """The last ``count`` blocks of the chain that ends at ``tail``, in order."""
        found: list[Stretch] = []
        while count:
            low = max(self._head[tail], tail + 1 - count)
            found.append((low, tail + 1))
            count -= tail + 1 - low
            tail = self.parent[low]
        found.reverse()
        return joined_ids(found)

    def slots(self, tail: int) -> Ints:
        """Slots of the chain that ends at ``tail``, in order. A copy."""
        return self._slots[self.chain_ids(tail)]

    def child_beside(self, parent: int, other: int) -> int:
        """A child of ``parent`` that is not ``other``; there must be one. O(1) where ids are consecutive."""
        next_id = parent + 1
        if next_id not in (other, self.capacity) and self.parent[next_id] == parent and self.state[next_id]:
            return next_id
        children = np.flatnonzero((self._parents == parent) & (self._state != BlockState.ABSENT))
        return int(next(child for child in children if child != other))

    # -- contributors --------------------------------------------------------------------------------------------------

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
