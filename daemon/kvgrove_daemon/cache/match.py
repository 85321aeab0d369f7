"""What one look-up found, held under a lease, and why the rest was not there.

Role: the answer of `BlockStore.match`. Invariants: reused + missed = prompt (I10); the lease was taken in the same call
as the look-up, so what was found cannot go before it is used (CON-05); reasons are those of the moment of the look-up.
Must not know: how blocks are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.leases import Lease
from kvgrove_daemon.cache.resident import ResidentBlocks
from kvgrove_protocol.reasons import MissReason


@dataclass(eq=False)
class Match:
    """The reusable prefix of a chain. Valid until `release`, or until `BlockStore.begin` takes its lease over."""

    chain: Chain
    blocks: int
    """How many leading blocks are reused."""
    missed: dict[MissReason, int]
    """Reason -> prompt tokens, in prompt order, positive counts only."""
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

    @property
    def first_miss_cause(self) -> MissReason | None:
        """Why the first token that is not reused is not; None for an empty prompt."""
        return next(iter(self.missed), None)

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


def explain(
    chain: Chain, blocks: int, reusable: int, history: Callable[[bytes], MissReason | None]
) -> dict[MissReason, int]:
    """Reason -> tokens for what a match of ``blocks`` out of ``reusable`` blocks leaves.

    ``history`` of a key: why it is not there now, None where it never was. What follows the last key with a history is
    new; what lies beyond ``reusable`` can never be reused.
    """
    keys: Sequence[bytes] = chain.keys
    missed: dict[MissReason, int] = {}
    at = blocks
    while at < reusable and (reason := history(keys[at])) is not None:
        missed[reason] = missed.get(reason, 0) + chain.block_size
        at += 1
    if at < reusable:
        missed[MissReason.NEW] = missed.get(MissReason.NEW, 0) + (reusable - at) * chain.block_size
    rest = chain.token_count - reusable * chain.block_size
    if rest:
        missed[MissReason.PARTIAL_BLOCK] = rest
    return missed
