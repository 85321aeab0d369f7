"""What the pool asks of an eviction policy.

Role: the protocol alone. Invariants and the rules that every policy keeps: see the package.
Must not know: any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

Stretches = Sequence[tuple[int, int]]
"""Blocks as ranges of ids ``[low, high)``."""


class EvictionPolicy(Protocol):
    """``group`` is who is charged for a block: its namespace."""

    def touch(self, tail: int, chain: Stretches = ()) -> None:
        """A request reused the resident chain that ends at ``tail``: the blocks of ``chain``, if that is given."""

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """These have become resident, each the parent of the next; their ids may have been others' before."""

    def offer(self, block: int, group: str) -> None:
        """``block`` has become evictable. Offering it again changes nothing."""

    def removed(self, block: int, parent: int, group: str, key: bytes | None = None) -> None:
        """``block`` is gone; ``parent`` (negative: none) has one child less.

        ``key`` is given when it gave way to others, and so may come back: what was dropped on purpose leaves no trace.
        """

    def victims(self, evictable: Callable[[int], bool], group: str | None = None) -> Iterator[int]:
        """Evictable blocks, the next to give way first, of one group or of all.

        The caller removes each block that it takes before it asks for the next one, and may stop at any time.
        """

    def forget(self) -> None:
        """Keep no memory of keys that are gone."""

    def knows(self, block: int, group: str) -> bool:
        """Whether ``block`` can still come up as a victim: for checks, may be slow."""
