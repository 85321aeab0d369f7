"""Leases of other processes: a life with a deadline, and what the deadline may not do (I5).

::

    LIVE --renew--> LIVE
    LIVE --give_back--> ENDED
    LIVE --expire--> REVOKED
    LIVE --holder_gone--> ENDED
    REVOKED --give_back--> ENDED
    REVOKED --holder_gone--> ENDED

Role: the table of who outside this process may still touch which slots. Invariants: a slot of a lease that has not
ended is neither reused nor freed, because the in-process lease that each foreign one keeps is released at its end and
nowhere else; time moves a lease to REVOKED (its slots are in *quarantine*) and never further: only the holder's word or
its observed end frees memory. A stopped process that wakes after an hour finds its bytes untouched. What is not held
any more is forgotten, and giving it back again is a counted no-op (CON-06).
Must not know: clocks, how processes are observed, how blocks are found. Pure but for its own tables, single-threaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from kvgrove_daemon.cache.leases import Lease
from kvgrove_protocol.errors import Terminal


class LeaseState(StrEnum):
    LIVE = "live"
    REVOKED = "revoked"
    """Past its time: cannot be renewed, and its slots are in quarantine."""
    ENDED = "ended"


class LeaseEvent(StrEnum):
    RENEW = "renew"
    GIVE_BACK = "give_back"
    """The holder says that it touches the bytes no more: before its time a release, after it the acknowledgement."""
    EXPIRE = "expire"
    HOLDER_GONE = "holder_gone"
    """Its end was observed."""


TRANSITIONS: Final[Mapping[tuple[LeaseState, LeaseEvent], LeaseState]] = MappingProxyType(
    {
        (LeaseState.LIVE, LeaseEvent.RENEW): LeaseState.LIVE,
        (LeaseState.LIVE, LeaseEvent.GIVE_BACK): LeaseState.ENDED,
        (LeaseState.LIVE, LeaseEvent.EXPIRE): LeaseState.REVOKED,
        (LeaseState.LIVE, LeaseEvent.HOLDER_GONE): LeaseState.ENDED,
        (LeaseState.REVOKED, LeaseEvent.GIVE_BACK): LeaseState.ENDED,
        (LeaseState.REVOKED, LeaseEvent.HOLDER_GONE): LeaseState.ENDED,
    }
)


class ForbiddenLeaseStep(Terminal):
    """A change that the table does not hold: a defect, never an operating condition."""

    code = "forbidden_lease_step"


def step(state: LeaseState, event: LeaseEvent) -> LeaseState:
    """The state after ``event``. Pure; raises `ForbiddenLeaseStep`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ForbiddenLeaseStep(f"a lease cannot {event} while {state}", field="event") from None


@dataclass(frozen=True, slots=True)
class Holder:
    """One process, told apart from every later one with its number. Made by whoever can see it (`processes`)."""

    pid: int
    started: int
    """Clock ticks between the machine's boot and the process's start."""
    machine_boot: str


@dataclass(frozen=True, slots=True)
class ForeignLease:
    """One lease as it stands. ``deadline``: seconds on the clock that the caller counts by (CLOCK_BOOTTIME)."""

    id: str
    holder: Holder
    slots: tuple[int, ...]
    deadline: float
    hold: Lease
    """What keeps the bytes in place meanwhile."""
    state: LeaseState = LeaseState.LIVE


class LoanRefusal(StrEnum):
    """Why a lease was not given, or not renewed."""

    NOTHING_MATCHED = "nothing_matched"
    """There is no block to lend: compute the prompt cold."""
    HOLDER_UNSEEN = "holder_unseen"
    """Its end could not be observed from here: share the pid namespace with the node."""
    HOLDER_LEASES = "holder_leases"
    """The holder has as many leases as one may have: give some back."""
    HOLDER_SLOTS = "holder_slots"
    """The holder has as many slots as one may have: give some back."""
    TOO_MANY_HOLDERS = "too_many_holders"
    """As many processes as may be hold something: end one, or raise the limit."""
    TOO_MANY_SLOTS = "too_many_slots"
    """As large a part of the pool as may be is lent: see who holds revoked leases."""
    REVOKED = "revoked"
    """Past its time: acknowledge, then ask for a new one."""
    DROPPED = "dropped"
    """Its blocks were invalidated or erased meanwhile: give them back when done, match anew."""
    NOT_HELD = "not_held"
    """No such lease, or it has ended: match anew, touch nothing."""


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """Bounds (I11). Leases past their time count until they have ended: they cost whoever holds them."""

    slots: int
    """Most distinct slots lent at a time; the rest of the pool stays for everybody else."""
    holder_slots: int
    holder_leases: int = 1024
    holders: int = 64

    def __post_init__(self) -> None:
        for name in ("slots", "holder_slots", "holder_leases", "holders"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class _Slots:
    """Distinct slots of several leases, which may share some."""

    def __init__(self) -> None:
        self._uses: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._uses)

    def with_more(self, slots: Sequence[int]) -> int:
        """How many distinct slots it would be with these (each named once)."""
        return len(self._uses) + sum(slot not in self._uses for slot in slots)

    def add(self, slots: Sequence[int]) -> None:
        self._uses.update(slots)

    def remove(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._uses[slot] -= 1
            if not self._uses[slot]:
                del self._uses[slot]


class ForeignLeases:
    """All leases of other processes on one pool. Mutable; see the module."""

    def __init__(self, limits: LeaseLimits) -> None:
        self.limits = limits
        self.revoked = 0
        """How many ever passed their time."""
        self.ended: Counter[LeaseEvent] = Counter()
        """Leases by what ended them."""
        self.not_held = 0
        """How often something was given back that was not held (any more)."""
        self._leases: dict[str, ForeignLease] = {}
        self._by_holder: dict[Holder, set[str]] = {}
        self._lent = _Slots()
        self._quarantined = _Slots()
        self._per_holder: dict[Holder, _Slots] = {}

    # -- reading -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def get(self, lease_id: str) -> ForeignLease | None:
        """The lease as it stands, or None where it is not held (any more)."""
        return self._leases.get(lease_id)

    def holders(self) -> list[Holder]:
        """Who holds anything; at most ``limits.holders``."""
        return list(self._by_holder)

    @property
    def in_quarantine(self) -> int:
        """Leases past their time that nobody has ended."""
        return sum(lease.state is LeaseState.REVOKED for lease in self._leases.values())

    @property
    def lent_slots(self) -> int:
        """Distinct slots that another process may touch, those in quarantine included."""
        return len(self._lent)

    @property
    def quarantined_slots(self) -> int:
        """Distinct slots of leases past their time."""
        return len(self._quarantined)

    # -- changes -------------------------------------------------------------------------------------------------------

    def refusal(self, holder: Holder, slots: Sequence[int]) -> LoanRefusal | None:
        """Why `take` would go beyond a bound, or None. Changes nothing."""
        own = self._by_holder.get(holder)
        if own is None and len(self._by_holder) >= self.limits.holders:
            return LoanRefusal.TOO_MANY_HOLDERS
        if own is not None and len(own) >= self.limits.holder_leases:
            return LoanRefusal.HOLDER_LEASES
        if self._per_holder.get(holder, _Slots()).with_more(slots) > self.limits.holder_slots:
            return LoanRefusal.HOLDER_SLOTS
        return LoanRefusal.TOO_MANY_SLOTS if self._lent.with_more(slots) > self.limits.slots else None

    def take(self, lease: ForeignLease) -> None:
        """Enter a new lease, which keeps ``lease.hold`` until its end. Raises ValueError where `refusal` has a reason,
        or the id is in use."""
        if lease.id in self._leases:
            raise ValueError("this lease id is in use: ids must never repeat")
        if (refused := self.refusal(lease.holder, lease.slots)) is not None:
            raise ValueError(f"beyond a bound ({refused}): ask refusal() first")
        self._leases[lease.id] = lease
        self._by_holder.setdefault(lease.holder, set()).add(lease.id)
        self._per_holder.setdefault(lease.holder, _Slots()).add(lease.slots)
        self._lent.add(lease.slots)

    def renew(self, lease_id: str, deadline: float, now: float) -> ForeignLease | LoanRefusal:
        """Move the deadline. Refused past it, also where `expire` has not come by yet."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return LoanRefusal.NOT_HELD
        if lease.state is LeaseState.LIVE and now >= lease.deadline:
            lease = self._revoke(lease)
        if lease.state is LeaseState.REVOKED:
            return LoanRefusal.REVOKED
        renewed = replace(lease, state=step(lease.state, LeaseEvent.RENEW), deadline=deadline)
        self._leases[lease_id] = renewed
        return renewed

    def give_back(self, lease_id: str) -> bool:
        """The holder touches the bytes no more. False, counted and without effect, where nothing is held by that id."""
        lease = self._leases.get(lease_id)
        if lease is None:
            self.not_held += 1
            return False
        self._end(lease, LeaseEvent.GIVE_BACK)
        return True

    def expire(self, now: float) -> int:
        """Revoke what is past its time; how many. Frees nothing. O(leases)."""
        due = [lease for lease in self._leases.values() if lease.state is LeaseState.LIVE and now >= lease.deadline]
        for lease in due:
            self._revoke(lease)
        return len(due)

    def holder_gone(self, holder: Holder) -> int:
        """End all leases of a process whose end was observed; how many."""
        ended = [self._leases[lease_id] for lease_id in self._by_holder.get(holder, ())]
        for lease in ended:
            self._end(lease, LeaseEvent.HOLDER_GONE)
        return len(ended)

    def _revoke(self, lease: ForeignLease) -> ForeignLease:
        revoked = replace(lease, state=step(lease.state, LeaseEvent.EXPIRE))
        self._leases[lease.id] = revoked
        self._quarantined.add(lease.slots)
        self.revoked += 1
        return revoked

    def _end(self, lease: ForeignLease, event: LeaseEvent) -> None:
        step(lease.state, event)
        del self._leases[lease.id]
        self._lent.remove(lease.slots)
        if lease.state is LeaseState.REVOKED:
            self._quarantined.remove(lease.slots)
        own = self._by_holder[lease.holder]
        own.discard(lease.id)
        self._per_holder[lease.holder].remove(lease.slots)
        if not own:
            del self._by_holder[lease.holder], self._per_holder[lease.holder]
        self.ended[event] += 1
        lease.hold.release()  # last: from here on the slots may be anybody's
