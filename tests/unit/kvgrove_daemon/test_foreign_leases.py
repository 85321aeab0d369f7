"""Leases of other processes as a table: what time may do, what only the holder may, and the bounds (I5, I11)."""

import re

import pytest

from kvgrove_daemon.cache import foreign_leases
from kvgrove_daemon.cache.foreign_leases import (
    TRANSITIONS,
    ForbiddenLeaseStep,
    ForeignLease,
    ForeignLeases,
    Holder,
    LeaseEvent,
    LeaseLimits,
    LeaseState,
    LoanRefusal,
    step,
)
from kvgrove_daemon.cache.leases import LeaseTable

A, B, C = (Holder(pid, 5, "boot") for pid in (1, 2, 3))


class Rig:
    def __init__(self, **limits: int) -> None:
        self.idle: list[int] = []
        self.inner = LeaseTable(self.idle.append)
        self.leases = ForeignLeases(LeaseLimits(**{"slots": 100, "holder_slots": 100} | limits))

    def take(self, name: str, holder: Holder, *slots: int, deadline: float = 10.0) -> None:
        self.leases.take(ForeignLease(name, holder, slots, deadline, self.inner.take(slots[-1])))


def test_the_diagram_of_a_foreign_lease_is_the_table() -> None:
    drawn = {
        (LeaseState[before], LeaseEvent(event)): LeaseState[after]
        for before, event, after in re.findall(
            r"^    ([A-Z]+) --(\w+)--> ([A-Z]+)$", foreign_leases.__doc__ or "", re.MULTILINE
        )
    }
    assert drawn == dict(TRANSITIONS)


@pytest.mark.parametrize("state", LeaseState)
@pytest.mark.parametrize("event", LeaseEvent)
def test_a_lease_takes_no_step_that_is_not_in_the_table(state: LeaseState, event: LeaseEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ForbiddenLeaseStep, match=state):
            step(state, event)


def test_i5_time_alone_never_ends_a_lease() -> None:
    assert {event for (_, event), after in TRANSITIONS.items() if after is LeaseState.ENDED} == {
        LeaseEvent.GIVE_BACK,
        LeaseEvent.HOLDER_GONE,
    }
    assert (LeaseState.REVOKED, LeaseEvent.RENEW) not in TRANSITIONS


def test_i5_past_its_time_a_lease_is_revoked_and_its_slots_stay_held() -> None:
    rig = Rig()
    rig.take("a", A, 1, 2)
    assert rig.leases.expire(9.9) == 0
    assert rig.leases.expire(10.0) == 1
    for hours in range(1, 50):
        assert rig.leases.expire(hours * 3600.0) == 0
    assert rig.idle == []
    assert (rig.leases.lent_slots, rig.leases.quarantined_slots, rig.leases.in_quarantine) == (2, 2, 1)
    assert rig.leases.give_back("a")
    assert rig.idle == [2]
    assert (rig.leases.lent_slots, rig.leases.quarantined_slots, rig.leases.in_quarantine) == (0, 0, 0)
    assert rig.leases.ended == {LeaseEvent.GIVE_BACK: 1}


def test_renewing_in_time_moves_the_deadline_and_past_it_is_refused_even_before_anybody_looked() -> None:
    rig = Rig()
    rig.take("a", A, 1)
    renewed = rig.leases.renew("a", 20.0, now=9.0)
    assert isinstance(renewed, ForeignLease)
    assert renewed.deadline == 20.0
    assert rig.leases.expire(15.0) == 0
    assert rig.leases.renew("a", 30.0, now=20.0) is LoanRefusal.REVOKED
    assert rig.leases.revoked == 1
    assert rig.leases.renew("a", 40.0, now=1.0) is LoanRefusal.REVOKED, "a clock that went back revives nothing"
    assert rig.leases.renew("never", 40.0, now=1.0) is LoanRefusal.NOT_HELD


def test_con_06_giving_a_lease_back_again_is_a_counted_no_op() -> None:
    rig = Rig()
    rig.take("a", A, 1)
    rig.take("late", A, 1)
    assert rig.leases.give_back("a")
    assert not rig.leases.give_back("a")
    rig.leases.expire(10.0)
    assert rig.leases.give_back("late")
    assert not rig.leases.give_back("late")
    assert rig.leases.not_held == 2
    assert rig.inner.double_releases == 0
    assert rig.inner.active == 0
    assert rig.idle == [1], "freed once, with the last of the two"


def test_the_end_of_a_process_ends_its_leases_and_nobody_elses() -> None:
    rig = Rig()
    rig.take("a1", A, 1)
    rig.take("a2", A, 2, deadline=99.0)
    rig.take("b", B, 3)
    rig.leases.expire(10.0)
    assert rig.leases.holder_gone(A) == 2
    assert rig.leases.holder_gone(A) == 0
    assert rig.leases.holders() == [B]
    assert sorted(rig.idle) == [1, 2]
    assert rig.leases.quarantined_slots == 1


def test_slots_that_leases_share_count_once_and_leave_with_the_last() -> None:
    rig = Rig(slots=3, holder_slots=3)
    rig.take("a", A, 1, 2)
    rig.take("b", B, 1, 2)
    assert rig.leases.lent_slots == 2
    assert rig.leases.refusal(C, [1, 2, 3]) is None
    assert rig.leases.refusal(C, [3, 4]) is LoanRefusal.TOO_MANY_SLOTS
    rig.leases.give_back("a")
    assert rig.leases.lent_slots == 2
    rig.leases.give_back("b")
    assert rig.leases.lent_slots == 0


def test_i11_each_bound_refuses_with_its_reason_and_costs_only_who_reached_it() -> None:
    rig = Rig(slots=6, holder_slots=3, holder_leases=2, holders=2)
    rig.take("a1", A, 1, 2)
    assert rig.leases.refusal(A, [3, 4]) is LoanRefusal.HOLDER_SLOTS
    rig.take("a2", A, 3)
    assert rig.leases.refusal(A, [3]) is LoanRefusal.HOLDER_LEASES
    assert rig.leases.refusal(B, [4, 5, 6]) is None
    rig.take("b", B, 4)
    assert rig.leases.refusal(C, [1]) is LoanRefusal.TOO_MANY_HOLDERS
    rig.leases.expire(10.0)
    assert rig.leases.refusal(A, [1]) is LoanRefusal.HOLDER_LEASES, "what is past its time still costs its holder"
    with pytest.raises(ValueError, match="holder_leases"):
        rig.take("a3", A, 1)
    with pytest.raises(ValueError, match="in use"):
        rig.take("b", B, 5)


@pytest.mark.parametrize("name", ["slots", "holder_slots", "holder_leases", "holders"])
def test_a_bound_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Rig(**{name: 0})
