"""The waits of the link are bounded and follow the leases."""

from random import Random

from kvgrove_link.pacing import Pacing
from kvgrove_protocol.control import NamespacePlan, NodePlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge


def plan(*lease_seconds: float) -> NodePlan:
    return NodePlan(
        revision=Revision(term=1, n=1),
        namespaces=[
            NamespacePlan(
                uid=str(index),
                name=f"team/{index}",
                model="m",
                purge=Purge(1, b"n"),
                fence=Fence(1, 1, 1),
                lease_seconds=seconds,
            )
            for index, seconds in enumerate(lease_seconds)
        ],
    )


def test_reports_go_at_a_third_of_the_shortest_lease() -> None:
    assert Pacing().report_interval(plan(6.0, 30.0), 0.05) == 2.0


def test_long_leases_do_not_make_a_silent_planner_unnoticed_for_long() -> None:
    assert Pacing().report_interval(plan(86_400.0), 0.05) == Pacing().longest_report_interval


def test_very_short_leases_do_not_make_a_flood() -> None:
    assert Pacing().report_interval(plan(0.001), 0.05) == 0.05


def test_without_a_plan_there_is_a_calm_beat() -> None:
    assert Pacing().report_interval(None, 0.05) == Pacing().idle_report_interval


def test_i11_back_off_grows_to_its_bound_and_is_spread() -> None:
    pacing, random = Pacing(first_backoff=0.1, longest_backoff=5.0), Random(7)
    assert 0.05 <= pacing.backoff(0, random) <= 0.1
    late = [pacing.backoff(attempt, random) for attempt in range(10, 10_000, 97)]
    assert all(2.5 <= wait <= 5.0 for wait in late)
    assert len(set(late)) > 1
