"""Blocks of a store, lent to other processes that map its memory.

Role: the front that whoever talks to such a process calls (an inference engine's connector, say): `lend` what a match
found, `renew`, `give_back`, and `tick` from time to time. Invariants: a loan keeps the match's in-process lease until
it has ended, so the store protects lent blocks as it protects those that a request reads, and knows nothing of loans;
only `give_back` and an observed end free slots (I5); every bound refuses with a reason that is counted (I11).
Loan ids are capabilities: make them unguessable, and tell them to their holder alone.
Must not know: sockets, how a holder maps memory, fences (the match was made under one). Single-threaded, as the store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.foreign_leases import (
    ForeignLease,
    ForeignLeases,
    Holder,
    LeaseEvent,
    LeaseLimits,
    LoanRefusal,
)
from kvgrove_daemon.cache.match import Match
from kvgrove_daemon.cache.store import BlockStore
from kvgrove_protocol.errors import Malformed

__all__ = ["Lending", "LendingStats", "Loan", "LoanRefusal", "Observer", "share_of"]


class Observer(Protocol):
    """Who tells that a process has ended (`processes.Processes`)."""

    def ended(self, holder: Holder) -> bool:
        """True on evidence only. Must not wait."""


@dataclass(frozen=True, slots=True)
class Loan:
    """What the holder is told. Its slots hold the matched blocks, in order, and are read-only to it."""

    id: str
    slots: tuple[int, ...]
    deadline: float
    """Seconds on the clock of `Lending`'s caller. Past it, no renewal; the bytes stay until it is given back."""


@dataclass(frozen=True, slots=True)
class LendingStats:
    """A copy of gauges and counters. Counters only grow."""

    loans: int
    """Those past their time included."""
    holders: int
    lent_slots: int
    quarantined_loans: int
    quarantined_slots: int
    lent: int
    renewed: int
    revoked: int
    not_held: int
    """Loans given back that had ended before, or never were."""
    ended: Mapping[LeaseEvent, int]
    refused: Mapping[LoanRefusal, int]


def share_of(num_slots: int, *, percent: int = 50, holder_percent: int = 25) -> LeaseLimits:
    """Limits that leave ``100 - percent`` of a pool out of reach of loans, and let nobody have more than
    ``holder_percent``."""
    return LeaseLimits(slots=max(1, num_slots * percent // 100), holder_slots=max(1, num_slots * holder_percent // 100))


class Lending:
    """See the module. One per store; ``now`` is everywhere CLOCK_BOOTTIME in seconds."""

    def __init__(
        self,
        store: BlockStore,
        limits: LeaseLimits,
        observer: Observer,
        *,
        new_id: Callable[[], str],
        max_seconds: float = 60.0,
    ) -> None:
        """``new_id``: at least 128 random bits as text. ``max_seconds``: the longest time given at once."""
        self._index = store._resident.index
        self._leases = ForeignLeases(limits)
        self._observer = observer
        self._new_id = new_id
        self._max_seconds = max_seconds
        self._lent = 0
        self._renewed = 0
        self._refused: Counter[LoanRefusal] = Counter()

    def lend(self, match: Match, holder: Holder | None, seconds: float, now: float) -> Loan | LoanRefusal:
        """Lend what ``match`` found for ``seconds`` (`max_seconds` at most), and take the match's lease over.

        After a refusal the lease is still the match's. ``holder``: None where it cannot be observed. Raises `Malformed`
        for a time that is none.
        """
        deadline = self._deadline(seconds, now)
        if holder is None:
            return self._refuse(LoanRefusal.HOLDER_UNSEEN)
        if (refused := self._refusal(match, holder)) is not None:
            return self._refuse(refused)
        slots = tuple(match.slots)
        lease = ForeignLease(self._new_id(), holder, slots, deadline, match.take_lease())
        self._leases.take(lease)
        self._lent += 1
        return Loan(lease.id, slots, deadline)

    def renew(self, loan_id: str, seconds: float, now: float) -> Loan | LoanRefusal:
        """Give the loan ``seconds`` from now on. Raises `Malformed` for a time that is none."""
        deadline = self._deadline(seconds, now)
        held = self._leases.get(loan_id)
        # Blocks that were erased are not to be kept alive by renewing for ever.
        if held is not None and now < held.deadline and not self._readable(held.hold.tail):
            return self._refuse(LoanRefusal.DROPPED)
        renewed = self._leases.renew(loan_id, deadline, now)
        if isinstance(renewed, LoanRefusal):
            return self._refuse(renewed)
        self._renewed += 1
        return Loan(renewed.id, renewed.slots, renewed.deadline)

    def give_back(self, loan_id: str) -> bool:
        """The holder touches the bytes no more: a release, or the acknowledgement of a revocation.

        False, counted and without effect, for what is not held (any more).
        """
        return self._leases.give_back(loan_id)

    def tick(self, now: float) -> int:
        """Revoke loans past their time, and end those of processes that have ended; how many ended.

        Costs a few system calls for each holder, of which there are ``limits.holders`` at most.
        """
        self._leases.expire(now)
        gone = [holder for holder in self._leases.holders() if self._observer.ended(holder)]
        return sum(self._leases.holder_gone(holder) for holder in gone)

    def holder_gone(self, holder: Holder) -> int:
        """End all loans of ``holder``, whose end the caller saw itself (a closed connection is no such evidence)."""
        return self._leases.holder_gone(holder)

    def stats(self) -> LendingStats:
        leases = self._leases
        return LendingStats(
            loans=len(leases),
            holders=len(leases.holders()),
            lent_slots=leases.lent_slots,
            quarantined_loans=leases.in_quarantine,
            quarantined_slots=leases.quarantined_slots,
            lent=self._lent,
            renewed=self._renewed,
            revoked=leases.revoked,
            not_held=leases.not_held,
            ended=Counter(leases.ended),
            refused=Counter(self._refused),
        )

    def _refusal(self, match: Match, holder: Holder) -> LoanRefusal | None:
        if not match.blocks:
            return LoanRefusal.NOTHING_MATCHED
        if not self._readable(match.tail):
            return LoanRefusal.DROPPED
        return self._leases.refusal(holder, match.slots)

    def _readable(self, tail: int) -> bool:
        """Whether a leased block could still be matched: an id is not given to another block while it is leased."""
        return self._index.state[tail] == BlockState.READY

    def _refuse(self, reason: LoanRefusal) -> LoanRefusal:
        self._refused[reason] += 1
        return reason

    def _deadline(self, seconds: float, now: float) -> float:
        if not (math.isfinite(seconds) and seconds > 0):
            raise Malformed("seconds", f"a loan lasts a positive number of seconds, not {seconds}")
        return now + min(seconds, self._max_seconds)
