"""What members are told while a namespace moves from one generation to another."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replaced
from planning_rig import INPUTS, document, model, namespace, only
from side_by_side_rig import Moving

from kvgrove_operator.plan_state import Proof, Stage
from kvgrove_protocol.control import GenerationPlan
from kvgrove_protocol.identity import RealmInputs, generation


def test_ops_12_both_generations_are_planned_side_by_side_with_their_weights() -> None:
    moving = Moving()
    assert only(moving.last).generations == []
    plan = only(moving.go())
    assert moving.phase == "Warming"
    assert (plan.model, plan.generations) == ("m1", [GenerationPlan(model="m2", weight=0)])
    moving.follow()
    assert only(moving.go()).generations == [GenerationPlan(model="m2", weight=10)]
    assert only(moving.go(60)).generations == [GenerationPlan(model="m2", weight=50)]
    plan = only(moving.go(60))
    assert (moving.phase, plan.model, plan.generations) == ("Promoted", "m2", [GenerationPlan(model="m1")])
    assert moving.last.due == moving.planning.now + 600


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": "sha256:w2"},
        {"tokenizer": "sha256:t2"},
        {"chat_template": "sha256:c2"},
        {"adapter": "sha256:a"},
        {"kv_dtype": "bfloat16"},
        {"block_size": 16},
    ],
)
def test_every_cause_is_a_rollout_alike(changed: dict[str, Any]) -> None:
    moving = Moving(replaced(INPUTS, **changed))
    moving.go()
    assert moving.phase == "Warming"


def test_warmth_of_an_older_fence_opens_no_gate() -> None:
    moving = Moving()
    moving.go()
    moving.follow()
    moving.spec["documents"] = [document()]
    moving.go()
    assert moving.phase == "Warming"
    moving.follow()
    moving.go()
    assert moving.phase == "Shifting"


def test_time_alone_brings_the_next_step_and_the_plan_says_when() -> None:
    moving = Moving()
    moving.go()
    moving.follow()
    moving.go()
    assert moving.last.due == moving.planning.now + 60


def test_the_old_generation_is_erased_after_its_window_and_the_proof_is_kept() -> None:
    moving = Moving()
    moving.run("Promoted")
    assert only(moving.last).erasures == []
    before = moving.planning.state.namespaces["uid-a"]
    plan = only(moving.go(600))
    assert plan.generations == []
    (erasure,) = plan.erasures
    realm = RealmInputs(
        generation=generation(INPUTS), namespace_uid="uid-a", purge=before.purge, policy_version=before.policy_version
    )
    assert erasure.root == realm.shared_realm()
    assert (erasure.tenant, erasure.user, erasure.document) == (b"", b"", "")
    assert plan.former_secret == before.secret
    assert plan.fence == before.fence, "requests name their generation: nothing has to be refused"
    moving.proofs = {erasure.id: Proof(confirmed=2)}
    plan = only(moving.go())
    assert (plan.erasures, plan.former_secret) == ([], b"")
    (kept,) = moving.planning.state.namespaces["uid-a"].erasures
    assert (kept.stage, kept.proof, kept.name.split()[0]) == (Stage.DONE, Proof(confirmed=2), "generation")


def test_the_same_generation_waits_for_the_erasure_of_its_earlier_blocks() -> None:
    moving = Moving()
    moving.run("Shifting")
    moving.wanted = "m1"
    moving.go()
    assert moving.phase == "RollingBack"
    moving.follow()
    moving.go()
    (erasure,) = only(moving.last).erasures
    assert moving.phase == "RolledBack"
    moving.wanted = "m2"
    moving.go()
    assert moving.phase == "Pending"
    moving.proofs = {erasure.id: Proof(confirmed=2)}
    moving.go()
    moving.go()
    assert moving.phase == "Warming"


def test_cor_01_a_document_withdrawn_in_mid_rollout_is_out_of_the_plan_of_every_generation_and_of_a_rollback() -> None:
    moving = Moving(documents=[document()])
    moving.run("Shifting")
    fence = only(moving.last).fence
    moving.spec["documents"] = []
    plan = only(moving.go())
    assert (plan.documents, plan.fence.documents) == ([], fence.documents + 1)
    assert moving.phase == "Shifting"
    moving.wanted = "m1"
    plan = only(moving.go())
    assert (plan.model, plan.documents, plan.fence.documents) == ("m1", [], fence.documents + 1)


def test_a_purge_in_mid_rollout_is_of_both_generations_at_once() -> None:
    moving = Moving()
    moving.run("Shifting")
    before = only(moving.last).purge
    moving.spec["purge"] = {"epoch": 1}
    plan = only(moving.go())
    assert plan.purge.counter == before.counter + 1
    assert [each.model for each in plan.generations] == ["m2"]


def test_a_model_that_the_spec_names_no_more_is_held_while_something_is_served_by_it() -> None:
    moving = Moving()
    moving.run("Shifting")
    planned = moving.planning(namespace(model_name="m2", **moving.spec), models=(model("m2"),), observed=moving.seen())
    assert [each.name for each in planned.models] == ["m1", "m2"]


def test_what_was_stored_before_rollouts_were_reads_as_promoted() -> None:
    moving = Moving()
    held = moving.planning.state.namespaces["uid-a"]
    moving.planning.state = replaced(moving.planning.state, namespaces={"uid-a": replaced(held, rollout=None)})
    moving.wanted = "m1"
    moving.go()
    assert moving.phase == "Promoted"
    assert only(moving.last).model == "m1"


def test_planning_twice_changes_nothing_in_any_phase() -> None:
    moving = Moving()
    for _ in range(12):
        moving.go(30)
        moving.follow()
        first, nonces = moving.go(), next(moving.planning.mint.nonces)
        again = moving.go()
        assert (again.same_plan(first), next(moving.planning.mint.nonces)) == (True, nonces + 1)
        assert replace(again, bodies={}) == replace(first, bodies={})
    assert moving.phase == "Promoted"
