"""When a rollout goes on, when it waits, and when it goes back (cases OPS-12, OPS-14)."""

from dataclasses import replace
from typing import Any

import pytest
from rollout_rig import COLD, NODES, WARM, Rollout, digest_of

from kvgrove_operator.rollout.due import next_due
from kvgrove_operator.rollout.gate import Warmth

STEPS: dict[str, Any] = {
    "steps": [{"weight": 10, "pause": "60s"}, {"weight": 50, "pause": "60s"}, {"weight": 100}],
    "window": "10m",
}
ANALYSIS = {"interval": "20s", "minimumRequests": 10, "maximumErrorRatio": 0.1, "inconclusiveLimit": 2}


def shifting(**rollout: Any) -> Rollout:
    found = Rollout(rollout=STEPS | rollout)
    found.declare("v2")
    found.load("v2")
    found.warm("v2")
    assert found.go() == "Shifting"
    return found


def test_the_first_generation_is_promoted_at_once() -> None:
    assert Rollout("v1").state.phase == "Promoted"


def test_a_rollout_waits_for_loading_then_for_warmth_then_shifts_by_steps() -> None:
    rollout = Rollout(rollout=STEPS)
    rollout.declare("v2")
    assert rollout.go() == "Pending"
    rollout.seen = replace(rollout.seen, generations={**rollout.seen.generations, "v2": digest_of("v2")})
    assert rollout.go() == "Loading"
    rollout.load("v2")
    assert (rollout.go(), rollout.weight) == ("Warming", 0)
    rollout.warm("v2", WARM, COLD)
    assert rollout.go() == "Warming"
    rollout.warm("v2")
    assert (rollout.go(), rollout.weight, rollout.active) == ("Shifting", 10, "v1")
    assert rollout.go(59) == "Shifting"
    assert (rollout.go(1), rollout.weight) == ("Shifting", 50)
    assert (rollout.go(60), rollout.active) == ("Promoted", "v2")
    assert rollout.state.previous is not None
    assert rollout.retired == []
    rollout.go(599)
    assert rollout.retired == []
    rollout.go(1)
    assert (rollout.retired, rollout.state.previous) == ([digest_of("v1")], None)


def test_equal_generations_are_moved_between_without_a_rollout() -> None:
    rollout = Rollout(rollout=STEPS)
    rollout.declare("renamed")
    rollout.seen = replace(
        rollout.seen, generations={**rollout.seen.generations, "renamed": digest_of("v1")}, ready=("v1", "renamed")
    )
    assert (rollout.go(), rollout.active, rollout.retired) == ("Promoted", "renamed", [])


def test_files_replaced_in_place_leave_nothing_to_go_back_to() -> None:
    rollout = Rollout()
    rollout.seen = replace(rollout.seen, generations={"v1": digest_of("other")})
    assert (rollout.go(), rollout.retired) == ("Promoted", [digest_of("v1")])
    assert rollout.state.active is not None
    assert rollout.state.active.generation == digest_of("other")


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ((WARM, COLD), "WarmupDeadlineExceeded"),
        ((WARM, Warmth(10, 10, resolved=False)), "WarmupDeadlineExceeded"),
        (None, "WarmupNotMeasured"),
    ],
)
def test_a_warm_up_that_does_not_get_there_stalls_and_the_old_one_serves_on(
    reports: tuple[Warmth, Warmth] | None, reason: str
) -> None:
    rollout = Rollout(rollout=STEPS, deadline="5m")
    rollout.declare("v2")
    rollout.load("v2")
    if reports is not None:
        rollout.warm("v2", *reports)
    rollout.go()
    assert rollout.go(299) == "Warming"
    assert (rollout.go(1), rollout.state.reason) == ("Stalled", reason)
    assert (rollout.active, rollout.weight) == ("v1", 0)


def test_a_stalled_warm_up_goes_on_when_it_is_warm_after_all_or_gets_more_time() -> None:
    rollout = Rollout(rollout=STEPS, deadline="5m")
    rollout.declare("v2")
    rollout.load("v2")
    rollout.warm("v2", COLD, COLD)
    rollout.go()
    assert rollout.go(300) == "Stalled"
    rollout.declare(warmup={"deadline": "10m"})
    assert rollout.go() == "Warming"
    assert rollout.go(300) == "Stalled"
    rollout.warm("v2")
    assert rollout.go() == "Shifting"


def test_nothing_shifts_before_it_is_approved_by_its_own_name() -> None:
    rollout = Rollout(rollout=STEPS | {"approval": "Manual"})
    rollout.declare("v2")
    rollout.load("v2")
    rollout.warm("v2")
    assert rollout.go() == "AwaitingApproval"
    rollout.declare(rollout=STEPS | {"approval": "Manual", "approvedGeneration": digest_of("v1").hex()})
    assert rollout.go(1000) == "AwaitingApproval"
    rollout.declare(rollout=STEPS | {"approval": "Manual", "approvedGeneration": digest_of("v2").hex()[:12]})
    assert rollout.go() == "Shifting"


def test_a_failing_analysis_goes_back_and_is_not_tried_again_under_the_same_limits() -> None:
    rollout = shifting(analysis=ANALYSIS)
    rollout.count("v2", requests=20, failed=10)
    rollout.seen = replace(rollout.seen, serving={digest_of("v2")})
    assert (rollout.go(20), rollout.weight) == ("RollingBack", 0)
    rollout.seen = replace(rollout.seen, serving=())
    assert (rollout.go(), rollout.state.reason, rollout.retired) == ("RolledBack", "AnalysisFailed", [digest_of("v2")])
    assert rollout.go(10_000) == "RolledBack"
    rollout.declare(rollout=STEPS | {"analysis": ANALYSIS | {"maximumErrorRatio": 0.6}})
    assert rollout.go() == "Shifting"


def test_blocks_of_before_are_erased_before_the_same_generation_is_begun_again() -> None:
    rollout = shifting()
    rollout.declare("v1")
    assert rollout.go() == "RolledBack"
    rollout.seen = replace(rollout.seen, erasing={digest_of("v2")})
    rollout.declare("v2")
    assert rollout.go() == "Pending"
    rollout.seen = replace(rollout.seen, erasing=())
    assert rollout.go() == "Shifting"


def test_failures_that_the_spec_bears_do_not_go_back() -> None:
    rollout = shifting(analysis=ANALYSIS | {"failureLimit": 1})
    rollout.count("v2", requests=20, failed=10)
    assert rollout.go(20) == "Shifting"
    rollout.count("v2", requests=40, failed=20)
    assert rollout.go(20) == "RolledBack"


def test_without_auto_rollback_a_failing_analysis_stalls_and_waits() -> None:
    rollout = shifting(analysis=ANALYSIS, autoRollback=False)
    rollout.count("v2", requests=20, failed=10)
    assert (rollout.go(20), rollout.state.reason, rollout.weight) == ("Stalled", "AnalysisFailed", 10)
    rollout.declare("v1")
    assert (rollout.go(), rollout.active) == ("RolledBack", "v1")


def test_a_step_is_left_only_after_a_measurement_that_passed() -> None:
    rollout = shifting(analysis=ANALYSIS)
    rollout.count("v2", requests=5)
    assert (rollout.go(20), rollout.go(20)) == ("Shifting", "Shifting")
    rollout.count("v2", requests=50)
    assert (rollout.go(20), rollout.weight) == ("Shifting", 50)


@pytest.mark.parametrize(("counted", "reason"), [(True, "AnalysisInconclusive"), (False, "AnalysisNotMeasured")])
def test_measurements_that_tell_nothing_stall_and_heal(counted: bool, reason: str) -> None:
    rollout = shifting(analysis=ANALYSIS | {"notMeasuredLimit": 2})
    if counted:
        rollout.count("v2", requests=1)
    assert [rollout.go(20) for _ in range(3)] == ["Shifting", "Shifting", "Stalled"]
    assert (rollout.state.reason, rollout.weight) == (reason, 10)
    rollout.count("v2", requests=100)
    assert rollout.go(20) == "Shifting"


def test_a_gateway_that_began_anew_counts_from_nothing() -> None:
    rollout = shifting(analysis=ANALYSIS)
    rollout.count("v2", requests=1000, failed=0)
    rollout.go(20)
    rollout.count("v2", requests=20, failed=20)
    assert rollout.go(20) == "RolledBack"


def test_time_to_first_token_is_judged_against_the_old_generation() -> None:
    rollout = shifting(analysis=ANALYSIS | {"maximumTtftFactor": 1.5})
    rollout.count("v1", requests=20, ttft=(0, 20))
    rollout.count("v2", requests=20, ttft=(0, 20))
    assert rollout.go(20) == "Shifting"
    rollout.count("v1", requests=40, ttft=(0, 40))
    rollout.count("v2", requests=40, ttft=(0, 20, 0, 0, 20))
    assert rollout.go(20) == "RolledBack"


def test_the_share_of_reused_tokens_is_judged_by_tokens() -> None:
    rollout = shifting(analysis=ANALYSIS | {"minimumHitRatio": 0.5})
    rollout.count("v2", requests=20, prompt_tokens=1000, reused_tokens=499)
    assert rollout.go(20) == "RolledBack"


def test_a_revert_in_mid_shift_goes_back_and_the_end_is_what_is_declared() -> None:
    rollout = shifting()
    rollout.seen = replace(rollout.seen, serving={digest_of("v2")})
    rollout.declare("v1")
    assert (rollout.go(), rollout.weight, rollout.active) == ("RollingBack", 0, "v1")
    rollout.declare("v2")
    assert rollout.go() == "RollingBack"
    rollout.seen = replace(rollout.seen, serving=())
    assert (rollout.go(), rollout.active) == ("Shifting", "v1")


def test_ops_12_within_the_window_a_revert_finds_the_old_generation_as_it_was() -> None:
    rollout = shifting()
    rollout.go(60)
    assert rollout.go(60) == "Promoted"
    rollout.seen = replace(rollout.seen, serving={digest_of("v2")})
    rollout.declare("v1")
    assert (rollout.go(10), rollout.active, rollout.retired) == ("RollingBack", "v1", [])
    rollout.seen = replace(rollout.seen, serving=())
    assert (rollout.go(), rollout.retired) == ("RolledBack", [digest_of("v2")])


def test_another_target_in_mid_rollout_is_begun_from_the_promoted_one() -> None:
    rollout = shifting()
    rollout.load("v3")
    rollout.declare("v3")
    assert (rollout.go(), rollout.active, rollout.retired) == ("Warming", "v1", [digest_of("v2")])


def test_what_may_not_serve_any_more_is_withdrawn_at_once() -> None:
    rollout = shifting()
    rollout.rules = replace(rollout.rules, wanted=None)
    assert (rollout.go(), rollout.active) == ("RolledBack", "v1")


def test_a_rollout_that_begins_suspended_is_on_no_clock_from_its_first_moment() -> None:
    rollout = Rollout()
    rollout.declare(suspended=True)
    rollout.go()
    rollout.declare("v2")
    rollout.go()  # the rig plans twice at each moment, and the second time must change nothing
    assert rollout.state.suspended_at == rollout.seen.now


def test_time_stands_still_while_suspended_and_a_revert_does_not() -> None:
    rollout = shifting()
    rollout.go(30)
    rollout.declare(suspended=True)
    rollout.go()
    assert (rollout.go(10_000), rollout.weight) == ("Shifting", 10)
    rollout.declare(suspended=False)
    assert (rollout.go(), rollout.weight) == ("Shifting", 10)
    assert (rollout.go(30), rollout.weight) == ("Shifting", 50)
    rollout.declare("v1", suspended=True)
    assert rollout.go() == "RolledBack"


def test_a_node_that_joins_while_warming_is_waited_for() -> None:
    rollout = Rollout(rollout=STEPS)
    rollout.declare("v2")
    rollout.load("v2")
    rollout.warm("v2")
    rollout.seen = replace(rollout.seen, nodes={"v1": NODES, "v2": (*NODES, "node-2")})
    assert rollout.go() == "Warming"


def test_what_time_alone_brings_is_known() -> None:
    rollout = shifting(analysis=ANALYSIS)
    assert next_due(rollout.state, rollout.rules, rollout.seen.now) == 1020.0
    rollout.rules = replace(rollout.rules, suspended=True)
    assert next_due(rollout.state, rollout.rules, rollout.seen.now) is None
