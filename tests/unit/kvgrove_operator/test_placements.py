"""Fleets with several placements: each daemon is told of the models of its own, and counts for these alone."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replaced
from planning_rig import INPUTS, Planning, document, model, namespace, only

from kvgrove_operator.coming import ComingWarmth
from kvgrove_operator.member_events import HelloReceived, Issued, Leading, PlanIssued, SendPlan
from kvgrove_operator.members import MemberLedger
from kvgrove_operator.observed import Beside, Observed, observe
from kvgrove_operator.plan_post import MAX_KINDS, PlanPost
from kvgrove_protocol.control import (
    DAEMON,
    GATEWAY,
    NO_REVISION,
    TO_MEMBER,
    GenerationReport,
    Hello,
    ModelReport,
    NodePlan,
    Revision,
    fits,
)
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import generation

OTHER = replaced(INPUTS, weights="sha256:w2")
MODELS = (model("m1", placement="small"), model("m2", placement="large"))
PLACEMENTS = {"node-0": "small", "node-1": "large"}


def seen(*, m2: bool = True, **more: Any) -> Observed:
    """node-0 has m1, node-1 has m2 (or not yet); neither has the other's."""
    m1 = {"node-0": ModelReport(name="m1", state="ready", inputs=INPUTS)}
    m2_reports = {"node-1": ModelReport(name="m2", state="ready", inputs=OTHER)} if m2 else {}
    found = Observed(frozenset(PLACEMENTS), {"m1": m1, "m2": m2_reports}, placements=PLACEMENTS)
    return replace(found, **more)


def names(plan: NodePlan) -> list[str]:
    return [each.name for each in plan.models]


@pytest.mark.parametrize(
    ("daemon", "its_model", "held"), [("a", "a", True), ("a", "b", False), ("", "a", True), ("a", "", True)]
)
def test_an_empty_placement_fits_all(daemon: str, its_model: str, held: bool) -> None:
    assert fits(daemon, its_model) is held


def test_a_daemon_is_told_of_the_models_of_its_placement_and_of_every_namespace() -> None:
    planned = Planning()(namespace("a"), namespace("b", model_name="m2"), models=MODELS, observed=seen())
    told: Any = {"nodes": [], "revision": Revision(1, 1)}
    small, large = (planned.for_member(DAEMON, placement=each, **told) for each in ("small", "large"))
    assert (names(small), names(large)) == (["m1"], ["m2"])
    assert [each.name for each in small.namespaces] == [each.name for each in large.namespaces] == ["team/a", "team/b"]
    assert names(planned.for_member(GATEWAY, **told)) == ["m1", "m2"]
    assert names(planned.for_member(DAEMON, **told)) == ["m1", "m2"]  # started by a release that named none


def test_two_placements_get_two_letters_of_one_revision() -> None:
    planned = Planning()(namespace("a"), models=MODELS, observed=seen())
    post = PlanPost()

    def letter(placement: str) -> NodePlan:
        effect = SendPlan(b"peer", DAEMON, placement, Revision(1, 1), NO_REVISION, ())
        found = TO_MEMBER.decode(post.letter(planned, effect))
        assert isinstance(found, NodePlan)
        return found

    assert [names(letter(each)) for each in ("small", "large", "small")] == [["m1"], ["m2"], ["m1"]]


def test_however_many_placements_daemons_name_each_gets_its_letter() -> None:
    planned, post = Planning()(namespace("a"), models=MODELS, observed=seen()), PlanPost()
    for number in range(3 * MAX_KINDS):
        effect = SendPlan(b"peer", DAEMON, f"p{number}", Revision(1, 1), NO_REVISION, ())
        found = TO_MEMBER.decode(post.letter(planned, effect))
        assert isinstance(found, NodePlan)
        assert names(found) == []


def test_the_ledger_sends_by_the_placement_that_a_daemon_says_and_tells_gateways_of_it() -> None:
    ledger = MemberLedger(1, 0.0)
    ledger.step(Leading(0.0, 100.0))
    ledger.step(HelloReceived(0.0, b"gw", Hello(member="gw", role=GATEWAY, boot="g")))
    ledger.step(PlanIssued(0.0, {"u": Issued(Fence(1, 1, 1), 5.0)}))
    hello = Hello(member="node-1", role=DAEMON, boot="b", address="tcp://x", placement="large")
    sent = [each for each in ledger.step(HelloReceived(1.0, b"n1", hello)) if isinstance(each, SendPlan)]
    assert {(each.role, each.placement) for each in sent} == {(DAEMON, "large"), (GATEWAY, "")}
    assert [node.placement for each in sent if each.role == GATEWAY for node in each.nodes] == ["large"]
    assert observe(ledger.members).placements == {"node-1": "large"}


def test_a_model_is_ready_when_the_daemons_of_its_placement_have_it() -> None:
    planning = Planning()
    assert only(planning(namespace(), models=MODELS, observed=seen(m2=False))).model == "m1"
    waiting = planning(namespace(model_name="m2"), models=MODELS, observed=seen(m2=False))
    assert only(waiting).generations == []
    moving = planning(namespace(model_name="m2"), models=MODELS, observed=seen())
    assert [each.model for each in only(moving).generations] == ["m2"]


def test_the_gate_asks_the_nodes_of_the_generation_that_comes() -> None:
    """node-0 holds nothing of it, and never will."""
    planning = Planning()
    wanted = namespace(model_name="m2", rollout={"steps": [{"weight": 50, "pause": "10s"}]})
    planning(namespace(), models=MODELS, observed=seen())
    planned = planning(wanted, models=MODELS, observed=seen())

    def told(fence: Fence, ratio: int) -> dict[str, dict[str, Beside]]:
        def report(inputs: Any, ready_blocks: int) -> GenerationReport:
            return GenerationReport(
                generation=generation(inputs), warm_ready=ready_blocks, warm_wanted=10, warm_resolved=True
            )

        return {
            "uid-a": {
                "node-0": Beside(DAEMON, "node-0/b", fence, [report(INPUTS, 10)]),
                "node-1": Beside(DAEMON, "node-1/b", fence, [report(OTHER, ratio)]),
            }
        }

    def weight(ratio: int) -> int:
        after = planning(wanted, models=MODELS, observed=seen(beside=told(only(planned).fence, ratio)))
        return only(after).generations[0].weight

    assert (weight(5), weight(10)) == (0, 50)


def test_a_document_that_waits_is_warm_when_the_nodes_that_answer_have_it_warm() -> None:
    planning = Planning()

    def declared(version: str) -> Any:
        return namespace(documents=[document("doc", f"text of {version}", version, update="WarmFirst")])

    planning(declared("v1"), models=MODELS, observed=seen())
    epoch = only(planning(declared("v2"), models=MODELS, observed=seen())).coming[0].epoch
    warm = {"uid-a": {"node-0": ComingWarmth(frozenset([epoch]), 4, 4)}}
    switched = only(planning(declared("v2"), models=MODELS, observed=seen(coming=warm)))
    assert [each.version for each in switched.documents] == ["v2"]
