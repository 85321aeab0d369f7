"""What one look-up found, held under a lease.

Role: the answer of `BlockStore.match`. Invariant: the lease was taken in the same call as the look-up, so what was
found cannot go before it is used (CON-05). Must not know: how blocks are stored, why the rest was not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.leases import Lease
from kvgrove_daemon.cache.resident import ResidentBlocks


@dataclass(eq=False)
class Match:
    """The reusable prefix of a chain. Valid until `release`, or until `BlockStore.begin` takes its lease over."""

    chain: Chain
    blocks: int
    """How many leading blocks are reused."""
    _resident: ResidentBlocks = field(repr=False)
    _lease: Lease | None = field(repr=False)

    @property
    def reused_tokens(self) -> int:
        return self.blocks * self.chain.block_size

    @property
    def tail(self) -> int:
        """Block id of the last reused block; raises ValueError when the lease is no longer this match's."""
        if self._lease is None:
            raise ValueError("this match was released or begun: match again")
        return self._lease.tail

    @property
    def lease(self) -> Lease | None:
        """None once it was released or taken over."""
        return self._lease

    @cached_property
    def slots(self) -> list[int]:
        """Slots of the reused blocks, in order. Read-only to whoever computes: writes go to a build's own slots."""
        slots: list[int] = self._resident.slots(self.tail).tolist()
        return slots

    def take_lease(self) -> Lease:
        """The lease, which is the caller's to release from now on; raises ValueError when it was taken before."""
        lease, self._lease = self._lease, None
        if lease is None:
            raise ValueError("this match was released or begun: match again")
        return lease

    def release(self) -> None:
        """End the lease. After that, or after a build has taken it over, this does nothing."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def __enter__(self) -> Match:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
