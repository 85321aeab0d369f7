"""What the status of a namespace says, and that it says it about one generation."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from planning_rig import INPUTS, Planning, document, model, namespace, only, ready

from kvgrove_crds.conditions import NAMESPACE_CONDITIONS
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.deletion import Debt, judge
from kvgrove_operator.holdings import Invalidation
from kvgrove_operator.namespace_facts import NamespaceFacts
from kvgrove_operator.namespace_view import compose, deleting
from kvgrove_operator.plan import Planned
from kvgrove_operator.plan_problems import namespace_object
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.work_queue import Trouble
from kvgrove_protocol.control import NamespaceReport
from kvgrove_protocol.fence import Fence

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PREFIX = {"name": "p", "version": "1", "text": "You help."}


def resource(generation: int = 1, **spec: Any) -> PromptCacheNamespace:
    made = namespace("a", **({"prefixes": [PREFIX]} | spec))
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"generation": generation})})


def facts_of(planned: Planned, item: PromptCacheNamespace, **known: Any) -> NamespaceFacts:
    """With two nodes that hold everything, unless ``known`` says otherwise."""
    plan = next(iter(planned.namespaces), None)
    fence = plan.fence if plan is not None else Fence(purge=1, documents=1, access=1)
    report = NamespaceReport(uid="uid-a", fence=fence, purge_counter=1, warm_ready=4, warm_wanted=4)
    found = NamespaceFacts(
        resource=item,
        before=PromptCacheNamespaceStatus(),
        state=planned.state.namespaces.get("uid-a"),
        plan=plan,
        models={each.name: each for each in planned.models},
        nodes={"node-0": report, "node-1": report},
        connected=frozenset({"node-0", "node-1"}),
        beside={},
        nodes_wanted=2,
        invalidation=Invalidation(fence, confirmed=2, expired=0, gone=0, pending=0),
        proofs={},
        problems=tuple(each for each in planned.problems if each.object == namespace_object("team/a")),
        trouble=None,
        now=NOON,
    )
    return replace(found, **known)


def planned_of(item: PromptCacheNamespace, **options: Any) -> Planned:
    return Planning()(item, **options)


def verdicts(status: PromptCacheNamespaceStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, str(condition.reason)) for condition in status.conditions}


def test_every_condition_is_there_from_the_first_write_and_about_the_planned_generation() -> None:
    item = resource(generation=7)
    status = compose(facts_of(planned_of(item), item))
    assert [condition.type for condition in status.conditions] == [each.value for each in NAMESPACE_CONDITIONS]
    assert {condition.observed_generation for condition in status.conditions} == {7}
    assert status.observed_generation == 7
    assert all(condition.reason in set(Reason) for condition in status.conditions)


def test_it_is_ready_when_every_node_enforces_the_fence_and_is_warm() -> None:
    item = resource()
    status = compose(facts_of(planned_of(item), item))
    assert status.phase == "Ready"
    assert verdicts(status)["Ready"] == ("True", "AllNodesReady")
    assert verdicts(status)["Reconciling"] == ("False", "UpToDate")
    assert (status.summary.warm, status.warmth.ready) == ("8/8", 8)


def test_composing_twice_gives_the_same_so_that_nothing_is_written() -> None:
    item = resource()
    planned = planned_of(item)
    first = compose(facts_of(planned, item))
    again = compose(facts_of(planned, item, before=first, now=NOON + timedelta(hours=1)))
    assert again == first


def test_ages_are_kept_until_a_verdict_turns() -> None:
    item = resource()
    planned = planned_of(item)
    first = compose(facts_of(planned, item))
    later = NOON + timedelta(hours=1)
    gone = compose(facts_of(planned, item, before=first, now=later, connected=frozenset({"node-0"})))
    turned = {each.type: each.last_transition_time for each in gone.conditions}
    assert turned["Ready"] == later
    assert turned["Warm"] == NOON
    assert verdicts(gone)["Ready"] == ("False", "NodeUnreachable")
    assert [each.node for each in gone.worst_nodes] == ["node-1"]


def test_a_node_that_does_not_enforce_the_fence_keeps_it_from_being_ready() -> None:
    item = resource()
    planned = planned_of(item)
    old = NamespaceReport(uid="uid-a", fence=Fence(purge=0, documents=0, access=0), purge_counter=0)
    for behind in (old, None):
        found = facts_of(planned, item)
        status = compose(replace(found, nodes={**found.nodes, "node-1": behind}))
        assert verdicts(status)["Ready"][0] == "False"
        assert status.phase == "Warming"


def test_nodes_without_a_pod_are_waited_for_and_no_node_at_all_is_said() -> None:
    item = resource()
    planned = planned_of(item)
    assert verdicts(compose(facts_of(planned, item, nodes_wanted=3)))["Ready"] == ("False", "WaitingForNodes")
    assert verdicts(compose(facts_of(planned, item, nodes={})))["Ready"] == ("False", "NoNodes")


def test_a_warm_up_past_its_deadline_is_stalled() -> None:
    item = resource(warmup={"deadline": "10s"})
    planned = planned_of(item)
    cold = NamespaceReport(uid="uid-a", fence=only(planned).fence, purge_counter=1, warm_ready=1, warm_wanted=4)
    first = compose(facts_of(planned, item, nodes={"node-0": cold, "node-1": cold}))
    assert verdicts(first)["Warm"] == ("False", "Warming")
    assert first.warmth.started_at == NOON
    late = facts_of(
        planned, item, before=first, nodes={"node-0": cold, "node-1": cold}, now=NOON + timedelta(seconds=11)
    )
    assert verdicts(compose(late))["Stalled"] == ("True", "WarmupDeadlineExceeded")


def test_a_missing_model_and_a_missing_text_are_named() -> None:
    item = resource(modelVersionRef={"name": "nowhere"})
    status = compose(facts_of(planned_of(item), item))
    assert verdicts(status)["Ready"] == ("False", "ModelVersionNotFound")
    assert verdicts(status)["Stalled"][0] == "True"
    assert status.phase == "Stalled"
    textless = resource(documents=[document(text=None)])
    status = compose(facts_of(planned_of(textless), textless))
    assert verdicts(status)["Stalled"] == ("True", "ContentNotFound")


def test_while_another_model_serves_it_is_ready_and_not_promoted() -> None:
    planning = Planning()
    planning(resource(), models=(model("m1"), model("m2")), observed=ready("m1"))
    item = resource(modelVersionRef={"name": "m2"})
    planned = planning(item, models=(model("m1"), model("m2")), observed=ready("m1"))
    assert only(planned).model == "m1"
    status = compose(facts_of(planned, item))
    assert verdicts(status)["Ready"][0] == "True"
    assert verdicts(status)["Promoted"] == ("False", "Loading")
    assert verdicts(status)["Reconciling"][0] == "True"
    assert status.phase == "RollingOut"
    assert planned.models[0].inputs == INPUTS


def test_ops_06_exhausted_retries_are_said_and_heal() -> None:
    item = resource()
    planned = planned_of(item)
    troubled = compose(facts_of(planned, item, trouble=Trouble("403 secrets", 8, exhausted=True)))
    assert verdicts(troubled)["Stalled"] == ("True", "RetriesExhausted")
    retried = compose(facts_of(planned, item, trouble=Trouble("503", 1, exhausted=False), before=troubled))
    assert verdicts(retried)["Stalled"] == ("False", "NotStalled")


def test_i8_an_invalidation_is_complete_only_with_nobody_pending() -> None:
    item = resource()
    planned = planned_of(item)
    fence = Fence(purge=2, documents=1, access=1)
    pending = facts_of(planned, item, invalidation=Invalidation(fence, confirmed=1, expired=0, gone=0, pending=1))
    status = compose(pending)
    assert verdicts(status)["InvalidationComplete"] == ("False", "InvalidationPending")
    assert status.invalidation.completed_at is None
    done = replace(
        pending,
        before=status,
        invalidation=Invalidation(fence, confirmed=1, expired=1, gone=0, pending=0),
        now=NOON + timedelta(seconds=5),
    )
    complete = compose(done)
    assert verdicts(complete)["InvalidationComplete"] == ("True", "InvalidationConfirmed")
    assert complete.invalidation.requested_at == NOON
    assert complete.invalidation.completed_at == NOON + timedelta(seconds=5)


def test_suspended_is_no_fault() -> None:
    item = resource(suspend=True)
    status = compose(facts_of(planned_of(item), item))
    assert status.phase == "Suspended"
    assert verdicts(status)["Reconciling"] == ("False", "UpToDate")


def test_a_deletion_keeps_counters_and_says_who_is_missing() -> None:
    item = resource()
    before = compose(facts_of(planned_of(item), item))
    proof = Proof(confirmed=1, pending=1)
    verdict = judge(item.spec.privacy, proof, Debt(unreachable=("node-1",)), erased=False)
    status = deleting(before, verdict, proof, generation=3, requested_at=NOON, now=NOON)
    assert status.phase == "Deleting"
    assert status.purge == before.purge
    assert verdicts(status)["ErasureVerified"] == ("False", "NodeUnreachable")
    assert verdicts(status)["Ready"] == ("False", "Deleting")
    assert (status.erasure.receipts, status.erasure.unreachable, status.erasure.completed_at) == (1, 1, None)
    assert {condition.observed_generation for condition in status.conditions} == {3}
    again = deleting(status, verdict, proof, generation=3, requested_at=NOON, now=NOON + timedelta(hours=1))
    assert again == status
