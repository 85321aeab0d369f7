"""Continuations of one block, by who built them.

Role: count and choose among the children of branching blocks. Invariants: one contributor's branches are weighed
against their own alone; only a subtree that nobody else contributed to is given up for them; blocks with a single child
cost nothing. Beginnings of chains are no branches: tenants' shares bound them.
Must not know: how a subtree is retired, caps of namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kvgrove_daemon.cache.ages import Ages
from kvgrove_daemon.cache.contributors import Tag, owner
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.interned import NOTHING
from kvgrove_daemon.cache.leases import NO_BLOCK


class Branches:
    """Of one index. Mutable, single-threaded."""

    def __init__(self, index: BlockIndex, ages: Ages) -> None:
        self._index = index
        self._ages = ages
        self._children: dict[int, dict[int, dict[int, None]]] = {}  # block -> owner id -> its children, in order

    def __len__(self) -> int:
        """Blocks with more than one child."""
        return len(self._children)

    def added(self, child: int) -> None:
        """``child`` was just listed."""
        parent = self._index.parent[child]
        if parent == NO_BLOCK or self._index.children[parent] < 2:
            return
        if parent not in self._children:
            self._children[parent] = {}
            self._note(parent, self._index.child_beside(parent, child))
        self._note(parent, child)

    def _note(self, parent: int, child: int) -> None:
        self._children[parent].setdefault(self._index.owner[child], {})[child] = None

    def removing(self, child: int) -> None:
        """``child`` is about to be taken out."""
        parent = self._index.parent[child]
        owners = self._children.get(parent)
        if owners is None:
            return
        if self._index.children[parent] <= 2:
            del self._children[parent]
            return
        siblings = owners[self._index.owner[child]]
        del siblings[child]
        if not siblings:
            del owners[self._index.owner[child]]

    def by_owner(self) -> Iterator[tuple[int, Mapping[int, Iterable[int]]]]:
        """Branching blocks, with their children by owner id: for checks."""
        return iter(self._children.items())

    def built_by(self, parent: int, tag: Tag) -> list[int]:
        """Children of ``parent`` that are charged to whoever a block of this tag would be charged to."""
        index = self._index
        owner_id = index.owners.find(owner(tag)) if tag else NOTHING
        if owner_id is None or parent == NO_BLOCK or not index.children[parent]:
            return []
        if parent in self._children:
            return list(self._children[parent].get(owner_id, ()))
        only = index.child_beside(parent, NO_BLOCK)
        return [only] if index.owner[only] == owner_id else []

    def coldest(self, children: list[int], tag: Tag) -> int | None:
        """The child to give up for another one: used longest ago, and nobody's but of this tag."""
        own = [child for child in children if self._index.tag_of(child) == tag]
        return self._ages.coldest(own) if own else None
