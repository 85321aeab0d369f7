"""What people read of a rollout, in the status of the resource and in `kvgrove status`."""

from datetime import UTC, datetime

from planning_rig import only
from side_by_side_rig import Moving

from kvgrove_cli.status import InvalidationStatus, NamespaceStatus
from kvgrove_cli.view import Nodes, namespace_status
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_operator.holdings import Invalidation
from kvgrove_operator.namespace_facts import NamespaceFacts
from kvgrove_operator.namespace_view import compose
from kvgrove_operator.plan_problems import namespace_object
from kvgrove_operator.rollout.facts import RolloutState
from kvgrove_protocol.control import NamespaceReport, NodeReport, Revision

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def reports(moving: Moving) -> dict[str, NamespaceReport]:
    plan = only(moving.last)
    return {
        node: NamespaceReport(
            uid="uid-a",
            fence=plan.fence,
            purge_counter=1,
            warm_ready=4,
            warm_wanted=4,
            generations=[*moving.beside[node].reports] if node in moving.beside else [],
        )
        for node in ("node-0", "node-1")
    }


def status(moving: Moving) -> PromptCacheNamespaceStatus:
    plan = only(moving.last)
    facts = NamespaceFacts(
        resource=moving.resource,
        before=PromptCacheNamespaceStatus(),
        state=moving.planning.state.namespaces["uid-a"],
        plan=plan,
        models={each.name: each for each in moving.last.models},
        nodes=reports(moving),
        connected=frozenset({"node-0", "node-1"}),
        beside=reports(moving),
        nodes_wanted=2,
        invalidation=Invalidation(plan.fence, confirmed=2, expired=0, gone=0, pending=0),
        proofs={},
        problems=tuple(each for each in moving.last.problems if each.object == namespace_object("team/a")),
        trouble=None,
        now=NOON,
    )
    return compose(facts)


def seen(moving: Moving) -> NamespaceStatus:
    plan = only(moving.last)
    heard = {
        node: NodeReport(report_id=1, applied=Revision(1, 1), namespaces=[report])
        for node, report in reports(moving).items()
    }
    return namespace_status(
        moving.resource,
        "uid-a",
        plan=plan,
        models={each.name: each for each in moving.last.models},
        nodes=Nodes(heard),
        invalidation=InvalidationStatus(confirmed=2, expired=0, gone=0, pending=0),
        erasures=[],
        rollout=moving.planning.state.namespaces["uid-a"].rollout or RolloutState(),
        problem="",
    )


def verdicts(found: PromptCacheNamespaceStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, str(each.reason)) for each in found.conditions}


def test_a_rollout_is_told_from_its_beginning_to_its_end() -> None:
    moving = Moving()
    moving.warm["m2"] = 2
    moving.go()
    moving.follow()
    moving.go()
    found = status(moving)
    assert (found.phase, found.rollout.phase, found.rollout.weight) == ("RollingOut", "Warming", 0)
    assert found.rollout.changed_fields == ("weights",)
    assert found.active_generation != found.desired_generation
    assert (verdicts(found)["Ready"][0], verdicts(found)["Warm"]) == ("True", ("False", "Warming"))
    assert found.summary.warm == "4/20"
    moving.warm["m2"] = 10
    moving.run("Shifting")
    found = status(moving)
    assert (found.rollout.phase, found.rollout.weight, found.rollout.step) == ("Shifting", 10, 0)
    assert (verdicts(found)["Promoted"], verdicts(found)["Warm"]) == (("False", "Shifting"), ("True", "Warm"))
    assert seen(moving).phase == "RollingOut"
    assert (seen(moving).rollout.candidate, seen(moving).rollout.weight) == ("m2", 10)
    moving.run("Promoted")
    found = status(moving)
    assert (found.phase, found.rollout.phase, found.rollout.weight) == ("Ready", "Promoted", 100)
    assert found.active_generation == found.desired_generation
    assert found.previous_generation is not None
    assert (seen(moving).phase, seen(moving).rollout.previous) == ("Ready", "m1")


def test_what_is_stuck_says_why_and_is_not_reconciling() -> None:
    moving = Moving(warmup={"deadline": "10s"})
    moving.warm["m2"] = 0
    moving.go()
    moving.follow()
    moving.go(10)
    found = status(moving)
    assert (found.phase, found.rollout.phase) == ("Degraded", "Stalled")
    assert verdicts(found)["Stalled"] == ("True", "WarmupDeadlineExceeded")
    assert verdicts(found)["Reconciling"] == ("False", "UpToDate")
    assert verdicts(found)["Ready"] == ("True", "AllNodesReady")
    assert seen(moving).phase == "Degraded"
    assert "serves on" in seen(moving).message


def test_approval_is_asked_for_by_the_digits_that_give_it() -> None:
    moving = Moving()
    moving.spec["rollout"] = moving.spec["rollout"] | {"approval": "Manual"}
    moving.run("AwaitingApproval")
    digits = seen(moving).rollout.candidate_generation
    assert digits in seen(moving).message
    moving.spec["rollout"] = moving.spec["rollout"] | {"approvedGeneration": digits}
    moving.go()
    assert moving.phase == "Shifting"


def test_after_a_revert_what_is_declared_is_in_force() -> None:
    moving = Moving()
    moving.run("Shifting")
    moving.wanted = "m1"
    moving.run("RolledBack")
    found = status(moving)
    assert verdicts(found)["Promoted"] == ("True", "RolledBack")
    assert (found.phase, found.rollout.weight) == ("Ready", 100)
