"""In-process leases: who reads a chain right now (I5).

Role: count readers per *tail* block. Only the tail is counted: an ancestor cannot go while it has a child, so a lease
on block n covers blocks 0 to n (CON-02). Invariants: counts never fall below zero, because a lease gives back at most
once and a second release is a counted no-op (CON-06); a lease ends with its scope.
Must not know: what a block holds, how it is freed. Leases of *other processes*, with deadlines and quarantine
(`foreign_leases`), each keep one of these until they have ended: whoever frees blocks asks here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

NO_BLOCK = -1
"""In place of a block id: the lease covers nothing, a chain's root."""


class Lease:
    """A hold on one chain, ended by `release` or by leaving its ``with`` block."""

    __slots__ = ("_released", "_table", "_tail")

    def __init__(self, table: LeaseTable, tail: int) -> None:
        self._table = table
        self._tail = tail
        self._released = False

    @property
    def tail(self) -> int:
        """The last block covered, or `NO_BLOCK`."""
        return self._tail

    @property
    def active(self) -> bool:
        return not self._released

    def move(self, tail: int) -> None:
        """Cover the chain that ends at ``tail`` instead. The new hold is taken before the old one is given back.

        Raises ValueError after `release`: the bytes may be somebody else's by then.
        """
        if self._released:
            raise ValueError("this lease was released: take a new one by a new match")
        if tail == self._tail:
            return
        old, self._tail = self._tail, tail
        self._table._take(tail)
        self._table._give(old)

    def release(self) -> bool:
        """Give the hold back; False, counted and without effect when that was done before."""
        if self._released:
            self._table.double_releases += 1
            return False
        self._released = True
        self._table._end(self._tail)
        return True

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._released:
            self.release()


class LeaseTable:
    """Readers by tail block. ``on_idle(block)`` is called when a block's last reader has gone. Single-threaded."""

    def __init__(self, on_idle: Callable[[int], None]) -> None:
        self._counts: dict[int, int] = {}
        self._on_idle = on_idle
        self.active = 0
        """Leases not yet released, those of empty chains included."""
        self.double_releases = 0

    def take(self, tail: int) -> Lease:
        """A lease on the chain that ends at ``tail`` (`NO_BLOCK`: on nothing)."""
        lease = Lease(self, tail)
        self._take(tail)
        self.active += 1
        return lease

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __iter__(self) -> Iterator[int]:
        """The tail blocks that have readers."""
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, block: int) -> int:
        return self._counts.get(block, 0)

    def _take(self, block: int) -> None:
        if block != NO_BLOCK:
            self._counts[block] = self._counts.get(block, 0) + 1

    def _give(self, block: int) -> None:
        if block == NO_BLOCK:
            return
        left = self._counts[block] - 1
        if left:
            self._counts[block] = left
            return
        del self._counts[block]
        self._on_idle(block)

    def _end(self, tail: int) -> None:
        self.active -= 1
        self._give(tail)
