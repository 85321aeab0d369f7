"""The fence: how new a view of a namespace is (I3).

Three counters that never fall. A request carries its gateway's fence; a node compares it with its own before a hit is
served and again before a block is committed.
"""

from enum import Enum

import msgspec


class Freshness(Enum):
    """How a request's fence stands to the node's."""

    EQUAL = "equal"
    OLDER = "older"
    """Refused, retryable: the gateway resolves anew."""
    NEWER = "newer"
    """Served cold and not stored: the node has not heard yet."""


class Fence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    purge: int
    documents: int
    access: int

    def against(self, node: "Fence") -> Freshness:
        """Mixed orders (one counter older, another newer) count as older: neither side has the whole truth."""
        mine, theirs = (self.purge, self.documents, self.access), (node.purge, node.documents, node.access)
        if mine == theirs:
            return Freshness.EQUAL
        if any(a < b for a, b in zip(mine, theirs, strict=True)):
            return Freshness.OLDER
        return Freshness.NEWER

    def covers(self, other: "Fence") -> bool:
        """Whether a member that applied ``self`` has applied ``other`` too."""
        return other.purge <= self.purge and other.documents <= self.documents and other.access <= self.access


def highest(one: Fence | None, other: Fence) -> Fence:
    """The highest of each counter."""
    if one is None or other.covers(one):
        return other
    return Fence(
        purge=max(one.purge, other.purge),
        documents=max(one.documents, other.documents),
        access=max(one.access, other.access),
    )
