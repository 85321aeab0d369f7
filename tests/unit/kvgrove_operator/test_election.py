"""Who leads: the Lease's protocol, decision by decision."""

from datetime import UTC, datetime
from typing import Any

from kvgrove_operator.election import Election, Verdict, term_of

AT = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)


def lease(**fields: Any) -> dict[str, Any]:
    return {"holderIdentity": "other", "leaseDurationSeconds": 10, "leaseTransitions": 4, "renewTime": "t0"} | fields


def test_a_missing_or_released_lease_is_taken_at_once() -> None:
    mine = Election("me", 10)
    assert mine.judge(None, 0.0) is Verdict.TAKE
    assert mine.judge(lease(holderIdentity=""), 0.0) is Verdict.TAKE


def test_another_leader_is_given_its_whole_duration_from_the_first_look() -> None:
    mine = Election("me", 10)
    assert mine.judge(lease(), 100.0) is Verdict.WAIT  # whatever its renewTime says: clocks are not compared
    assert mine.judge(lease(), 109.9) is Verdict.WAIT
    assert mine.judge(lease(), 110.0) is Verdict.TAKE


def test_a_renewal_begins_the_wait_anew() -> None:
    mine = Election("me", 10)
    mine.judge(lease(), 100.0)
    assert mine.judge(lease(renewTime="t1"), 109.0) is Verdict.WAIT
    assert mine.judge(lease(renewTime="t1"), 118.0) is Verdict.WAIT
    assert mine.judge(lease(renewTime="t1"), 119.0) is Verdict.TAKE


def test_a_longer_duration_of_the_other_one_is_respected() -> None:
    mine = Election("me", 10)
    mine.judge(lease(leaseDurationSeconds=60), 0.0)
    assert mine.judge(lease(leaseDurationSeconds=60), 59.0) is Verdict.WAIT


def test_terms_only_rise_and_a_renewal_keeps_one() -> None:
    mine = Election("me", 10)
    taken = mine.taken(lease(), AT)
    assert term_of(taken) == 5
    assert taken["renewTime"] == "2026-01-02T03:04:05.600000Z"
    assert mine.judge(taken, 0.0) is Verdict.RENEW
    assert term_of(mine.renewed(taken, AT)) == 5
    released = mine.released(taken)
    assert released["holderIdentity"] == ""
    assert term_of(Election("next", 10).taken(released, AT)) == 6


def test_a_lease_that_was_restored_is_taken_above_what_members_saw() -> None:
    assert term_of(Election("me", 10).taken(lease(leaseTransitions=2), AT, above=9)) == 10
    assert term_of(Election("me", 10).taken(None, AT)) == 1
