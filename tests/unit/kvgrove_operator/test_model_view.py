"""What the status of a ModelVersion says."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from planning_rig import INPUTS, Planning, model, namespace, ready

from kvgrove_crds.conditions import MODEL_VERSION_CONDITIONS
from kvgrove_crds.model_version import ModelVersionStatus, ResolvedDigests
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.model_view import ModelFacts, compose, unreadable
from kvgrove_operator.plan_problems import of_model
from kvgrove_protocol.control import ModelReport

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
READY = ModelReport(name="m1", state="ready", inputs=INPUTS, max_model_len=2048)


def facts(**known: Any) -> ModelFacts:
    """Of a model that two nodes have ready, unless ``known`` says otherwise."""
    planned = Planning()(namespace("a"), observed=ready("m1"))
    resource = model().resource
    found = ModelFacts(
        resource=resource.model_copy(update={"metadata": resource.metadata.model_copy(update={"generation": 4})}),
        before=ModelVersionStatus(),
        plan=planned.models[0],
        nodes={"node-0": READY, "node-1": READY},
        connected=frozenset({"node-0", "node-1"}),
        nodes_wanted=2,
        unscheduled="",
        overruled="",
        users=("team/a",),
        problems=(),
        trouble=None,
        deleting=False,
        now=NOON,
    )
    return replace(found, **known)


def verdicts(status: ModelVersionStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, str(condition.reason)) for condition in status.conditions}


def test_it_is_ready_when_every_node_has_what_was_agreed_on() -> None:
    status = compose(facts())
    assert [condition.type for condition in status.conditions] == [each.value for each in MODEL_VERSION_CONDITIONS]
    assert {condition.observed_generation for condition in status.conditions} == {4}
    assert {kind: said[0] for kind, said in verdicts(status).items()} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "DigestsVerified": "True",
        "Supported": "True",
    }
    assert status.digests == ResolvedDigests(), "the rig's digests are none, and are not passed on as such"
    assert (status.phase, status.summary.nodes, status.used_by, status.max_model_len) == ("Ready", "2/2", 1, 2048)


def test_a_node_with_other_files_is_not_ready_whatever_it_says() -> None:
    other = ModelReport(name="m1", state="ready", inputs=type(INPUTS)(**{**_fields(), "weights": "sha256:x"}))
    status = compose(facts(nodes={"node-0": READY, "node-1": other}))
    assert verdicts(status)["Ready"] == ("False", "WaitingForNodes")
    assert (status.nodes.loaded, status.nodes.verified, status.nodes.ready) == (2, 1, 1)


def test_what_a_node_says_of_a_failure_is_passed_on_with_its_reason() -> None:
    failed = ModelReport(name="m1", state="failed", code="missing_model", message="no weights in /models/m1")
    status = compose(facts(nodes={"node-0": failed, "node-1": failed}))
    assert verdicts(status)["Ready"] == ("False", "NodeFailed")
    assert verdicts(status)["Supported"] == ("False", "WeightsMissing")
    assert status.phase == "Failed"
    assert "no weights" in status.conditions[0].message


PIN = f"sha256:{'a' * 64}"


def test_digests_of_adapters_are_those_of_the_nodes_that_agree_and_stay_while_those_are_away() -> None:
    resource = model(adapters=[{"name": "tone", "source": {"hostPath": {"path": "/x"}}}]).resource
    adapted = msgspec.structs.replace(READY, adapters={"tone": PIN})
    status = compose(facts(resource=resource, nodes={"node-0": adapted, "node-1": None}))
    assert status.digests is not None
    assert [(found.name, found.digest) for found in status.digests.adapters] == [("tone", PIN)]
    later = compose(facts(resource=resource, before=status, nodes={"node-0": None}))
    assert later.digests == status.digests


def test_a_node_with_another_adapter_than_the_pinned_one_breaks_the_verdict_on_digests() -> None:
    failed = ModelReport(name="m1", state="failed", code="digest_mismatch", message="correct the source or the pin")
    status = compose(facts(nodes={"node-0": READY, "node-1": failed}))
    assert verdicts(status)["DigestsVerified"] == ("False", "DigestPinMismatch")
    assert verdicts(status)["Ready"] == ("False", "NodeFailed")


def test_one_that_is_used_is_not_deleted_and_says_by_whom() -> None:
    status = compose(facts(deleting=True))
    assert verdicts(status)["Ready"] == ("False", "InUse")
    assert "team/a" in status.conditions[0].message
    assert status.phase == "Deleting"


def test_unreachable_nodes_and_no_nodes_are_told_apart() -> None:
    cut_off = compose(facts(connected=frozenset({"node-0"})))
    assert verdicts(cut_off)["Ready"] == ("False", "NodeUnreachable")
    assert cut_off.nodes.unreachable == 1
    assert verdicts(compose(facts(nodes={}, nodes_wanted=0)))["Ready"] == ("False", "NoNodes")


def test_files_that_disagree_are_no_agreement() -> None:
    problem = of_model("m1", Reason.DIGESTS_DISAGREE, "node-1 found other weights")
    assert verdicts(compose(facts(problems=(problem,))))["DigestsVerified"] == ("False", "DigestsDisagree")


def _fields() -> dict[str, Any]:
    return {name: getattr(INPUTS, name) for name in INPUTS.__struct_fields__}


def test_ops_10_one_that_does_not_read_as_of_this_release_says_so_and_keeps_what_was_known() -> None:
    before = compose(facts())
    problem = of_model("m1", Reason.INVALID_SPEC, "spec.future: unknown field")
    status = unreadable(before, problem, generation=5, now=NOON)
    assert verdicts(status)["Stalled"] == ("True", "InvalidSpec")
    assert {condition.observed_generation for condition in status.conditions} == {5}
    assert (status.observed_generation, status.generation) == (5, before.generation)
