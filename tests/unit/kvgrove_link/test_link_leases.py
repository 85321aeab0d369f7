"""The member's lease table: deadlines count from the sending of the answered report."""

import pytest

from kvgrove_link.leases import REMEMBERED_REPORTS, LeaseTable
from kvgrove_protocol.control import LeaseGrant, Revision


def grant(report_id: int, **seconds: float) -> LeaseGrant:
    return LeaseGrant(report_id=report_id, revision=Revision(term=1, n=1), seconds=seconds)


@pytest.fixture
def leases() -> LeaseTable:
    return LeaseTable()


def test_a_new_table_holds_nothing(leases: LeaseTable) -> None:
    assert not leases.valid("a", 0.0)
    assert leases.remaining("a", 0.0) == 0.0


def test_i3_the_deadline_counts_from_the_sending_not_from_the_grants_arrival(leases: LeaseTable) -> None:
    leases.sent(1, 100.0)
    leases.granted(grant(1, a=30.0))  # however late it came
    assert leases.valid("a", 129.9)
    assert not leases.valid("a", 130.0)
    assert leases.remaining("a", 120.0) == 10.0
    assert leases.remaining("a", 140.0) == 0.0


def test_a_late_grant_does_not_shorten_a_newer_one(leases: LeaseTable) -> None:
    leases.sent(1, 100.0)
    leases.sent(2, 110.0)
    leases.granted(grant(2, a=30.0))
    leases.granted(grant(1, a=30.0))
    assert leases.valid("a", 139.0)


def test_namespaces_have_leases_of_their_own(leases: LeaseTable) -> None:
    leases.sent(1, 0.0)
    leases.granted(grant(1, a=10.0, b=60.0))
    assert (leases.valid("a", 20.0), leases.valid("b", 20.0), leases.valid("c", 20.0)) == (False, True, False)


def test_a_grant_for_a_report_nobody_sent_is_dropped_and_counted(leases: LeaseTable) -> None:
    leases.granted(grant(7, a=30.0))
    assert not leases.valid("a", 0.0)
    assert leases.unknown_grants == 1


def test_i11_memory_of_sent_reports_is_bounded(leases: LeaseTable) -> None:
    for report_id in range(REMEMBERED_REPORTS + 1):
        leases.sent(report_id, float(report_id))
    leases.granted(grant(0, a=1e6))
    assert not leases.valid("a", 1.0)
    leases.granted(grant(1, a=1e6))
    assert leases.valid("a", 1.0)


def test_what_was_given_up_does_not_come_back_with_a_late_grant(leases: LeaseTable) -> None:
    leases.sent(1, 0.0)
    leases.sent(2, 1.0)
    leases.granted(grant(1, a=30.0))
    leases.drop_all()
    leases.granted(grant(2, a=30.0))
    assert not leases.valid("a", 2.0)


def test_forgetting_the_expired_keeps_the_valid(leases: LeaseTable) -> None:
    leases.sent(1, 0.0)
    leases.granted(grant(1, a=10.0, b=60.0))
    leases.forget_expired(10.0)
    assert not leases.valid("a", 5.0)  # gone for good, whatever the clock says
    assert leases.valid("b", 59.0)
