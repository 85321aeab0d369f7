"""What the pool asks of an eviction policy.

Role: the protocol alone. Invariants and the rules that every policy keeps: see the package.
Must not know: any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.contributors import Group

Parts = Sequence[slice | npt.NDArray[np.int32]]
"""Blocks of a chain in order, as what selects them from a column: ranges of ids, or ids where ranges were many."""


Evictable = Callable[[int], bool]
Wanted = Callable[[Group], bool]
"""Whether this group is to give way. Asked again before each victim: groups may be let off on the way."""


@dataclass(slots=True)
class Ticks:
    """Logical time. Policies that are asked for victims side by side share it, so that their dues compare."""

    now: int = 0


class EvictionPolicy(Protocol):
    """Orders evictable leaves by the tick at which they are due."""

    ticks: Ticks

    def touch(self, tail: int, chain: Parts = ()) -> None:
        """A request reused the resident chain that ends at ``tail``: the blocks of ``chain``, if that is given."""

    def admitted(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """These have become resident, each the parent of the next; their ids may have been others' before."""

    def offer(self, block: int, group: Group) -> None:
        """``block`` has become evictable. Offering it again changes nothing."""

    def removed(self, block: int, parent: int, group: Group, key: bytes | None = None) -> None:
        """``block`` is gone; ``parent`` (negative: none) has one child less.

        ``key`` is given when it gave way to others, and so may come back: what was dropped on purpose leaves no trace.
        """

    def next_due(self, evictable: Evictable, wanted: Wanted | None = None) -> int | None:
        """The tick at which the next victim is due; None: there is none."""

    def victims(self, evictable: Evictable, wanted: Wanted | None = None) -> Iterator[int]:
        """Evictable blocks, the next to give way first, of the wanted groups or of all.

        The caller removes each block that it takes before it asks for the next one, and may stop at any time.
        """

    def forget(self) -> None:
        """Keep no memory of keys that are gone."""

    def knows(self, block: int, group: Group) -> bool:
        """Whether ``block`` can still come up as a victim: for checks, may be slow."""
