"""Planning: each rule of what is in force next."""

import hashlib
from typing import Any

import msgspec
import pytest
from planning_rig import INPUTS, Planning, document, model, namespace, only, ready

from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan import Planned
from kvgrove_protocol.control import (
    DAEMON,
    GATEWAY,
    ModelReport,
    NodeEndpoint,
    Revision,
)
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import generation


@pytest.fixture
def planning() -> Planning:
    return Planning()


def reasons(planned: Planned) -> list[tuple[str, ConditionReason]]:
    return [(problem.object, problem.reason) for problem in planned.problems]


# -- stability ---------------------------------------------------------------------------------------------------------


def test_planning_the_same_twice_changes_nothing_and_mints_nothing(planning: Planning) -> None:
    declared = namespace(documents=[document()], prefixes=[document("p", "be kind", documents=["doc"])])
    first = planning(declared)
    second = planning(declared)
    assert first.same_plan(second)
    assert (first.state, first.bodies, first.problems) == (second.state, second.bodies, second.problems)
    assert (next(planning.mint.nonces), next(planning.mint.secrets)) == (2, 3)  # a secret, a pseudonym key


def test_the_order_of_declarations_is_no_change(planning: Planning) -> None:
    one, two = document("one", scopes=["x", "y"]), document("two")
    first = planning(namespace(documents=[one, two]), namespace("b"))
    second = planning(namespace("b"), namespace(documents=[two, one | {"scopes": ["y", "x"]}]))
    assert first.state == second.state


# -- purge -------------------------------------------------------------------------------------------------------------


def test_i3_any_change_of_the_purge_epoch_mints_a_higher_counter_and_another_nonce(planning: Planning) -> None:
    purges = [only(planning(namespace(purge={"epoch": epoch}))).purge for epoch in (0, 5, 5, 0, 5)]
    assert [purge.counter for purge in purges] == [1, 2, 2, 3, 4]  # 0 again: a Git revert
    assert purges[1] == purges[2]
    assert len({purge.nonce for purge in purges}) == 4


def test_i3_epochs_that_members_have_seen_are_exceeded(planning: Planning) -> None:
    before = only(planning(namespace()))
    seen = Observed(fences_seen={"uid-a": Fence(41, 0, 0)})
    after = only(planning(namespace(), observed=seen))
    assert after.purge.counter == 42
    assert after.purge.nonce != before.purge.nonce
    assert only(planning(namespace(), observed=seen)).purge == after.purge


def test_i3_a_planner_that_lost_its_memory_starts_above_all_that_was_seen(planning: Planning) -> None:
    seen = Observed(fences_seen={"uid-a": Fence(7, 8, 9)})
    first = only(planning(namespace(documents=[document()]), observed=seen))
    assert first.fence == Fence(8, 9, 10)
    assert first.documents[0].epoch == 9


def test_i3_a_restored_state_purges_and_goes_above_what_was_seen(planning: Planning) -> None:
    declared = namespace(documents=[document()])
    backup = (planning(declared), planning.state)[1]
    for text in ("two", "three"):
        newest = only(planning(namespace(documents=[document(text=text)])))
    planning.state = backup
    restored = only(planning(declared, observed=Observed(fences_seen={"uid-a": newest.fence})))
    assert restored.fence.covers(newest.fence)
    assert restored.fence != newest.fence
    assert restored.purge.counter > newest.purge.counter


def test_i3_an_access_policy_that_falls_back_purges(planning: Planning) -> None:
    first = only(planning(namespace(access={"policyVersion": 2})))
    second = only(planning(namespace(access={"policyVersion": 1})))
    assert second.purge.counter > first.purge.counter
    assert second.fence.access > first.fence.access


# -- documents and prefixes --------------------------------------------------------------------------------------------


def test_i3_v1_v2_v1_gives_three_epochs(planning: Planning) -> None:
    texts = ("v1", "v2", "v1")
    entries = [only(planning(namespace(documents=[document(text=text)]))) for text in texts]
    epochs = [entry.documents[0].epoch for entry in entries]
    assert epochs == sorted(set(epochs))
    assert len(epochs) == 3
    assert [entry.fence.documents for entry in entries] == epochs
    assert entries[0].documents[0].body == entries[2].documents[0].body


def test_i3_a_withdrawn_document_returns_under_another_epoch(planning: Planning) -> None:
    first = only(planning(namespace(documents=[document()])))
    gone = only(planning(namespace()))
    back = only(planning(namespace(documents=[document()])))
    assert gone.documents == []
    assert first.fence.documents < gone.fence.documents < back.fence.documents
    assert back.documents[0].epoch == back.fence.documents


@pytest.mark.parametrize("change", [{"text": "other"}, {"version": "v2"}, {"scopes": ["staff"]}])
def test_i3_text_version_and_scopes_make_another_document(planning: Planning, change: dict[str, Any]) -> None:
    first = only(planning(namespace(documents=[document(), document("still")])))
    second = only(planning(namespace(documents=[document(**change), document("still")])))
    assert second.documents[0].epoch == second.fence.documents > first.fence.documents
    assert second.documents[1] == first.documents[1]


def test_i3_a_changed_prefix_raises_the_fence_and_leaves_documents_alone(planning: Planning) -> None:
    first = only(planning(namespace(documents=[document()], prefixes=[document("p", "one", documents=["doc"])])))
    second = only(planning(namespace(documents=[document()], prefixes=[document("p", "two", documents=["doc"])])))
    assert second.fence.documents > first.fence.documents
    assert second.documents == first.documents


def test_bodies_are_there_by_digest_for_all_that_is_planned(planning: Planning) -> None:
    template = model(chatTemplateFrom={"inline": "{{ messages }}"})
    declared = namespace(documents=[document(text="d")], prefixes=[document("p", "p")])
    planned = planning(declared, models=(template,))
    named = {only(planned).documents[0].body, only(planned).prefixes[0].body, planned.models[0].chat_template}
    assert named == set(planned.bodies)
    assert all(hashlib.sha256(body).digest() == digest for digest, body in planned.bodies.items())


def test_a_text_that_cannot_be_had_stays_what_it_was(planning: Planning) -> None:
    good = planning(namespace(documents=[document()], prefixes=[document("p", "p")]))
    lost = planning(namespace(documents=[document(text=None)], prefixes=[document("p", None)]))
    assert lost.same_plan(good)
    assert lost.bodies == good.bodies
    assert reasons(lost) == [("PromptCacheNamespace team/a", ConditionReason.CONTENT_NOT_FOUND)] * 2
    assert "spec.documents[0]" in lost.problems[0].message


def test_a_new_text_that_cannot_be_had_is_left_out(planning: Planning) -> None:
    planned = planning(namespace(documents=[document(text=None)], prefixes=[document("p", "p", documents=["doc"])]))
    assert only(planned).documents == []
    assert only(planned).prefixes[0].documents == []


def test_warm_is_all_prefixes_those_named_or_none(planning: Planning) -> None:
    prefixes = [document("p", "p"), document("q", "q")]
    assert only(planning(namespace(prefixes=prefixes))).warm == ["p", "q"]
    assert only(planning(namespace(prefixes=prefixes, warmup={"prefixes": ["q"]}))).warm == ["q"]
    assert only(planning(namespace(prefixes=prefixes, suspend=True))).warm == []


# -- access ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"access": {"tenants": ["x"]}},
        {"access": {"tenants": []}},
        {"access": {"scopes": ["s"]}},
        {"access": {"policyVersion": 1}},
        {"isolation": "User"},
    ],
)
def test_every_change_of_who_may_share_raises_the_access_revision(planning: Planning, change: dict[str, Any]) -> None:
    revisions = [only(planning(spec)).fence.access for spec in (namespace(), namespace(**change), namespace())]
    assert revisions == [1, 2, 3]


def test_what_does_not_concern_access_does_not(planning: Planning) -> None:
    fences = [only(planning(spec)).fence for spec in (namespace(), namespace(suspend=True, aliases=["x"]))]
    assert fences[0] == fences[1]


# -- models ------------------------------------------------------------------------------------------------------------


def test_a_generation_is_named_when_those_who_report_agree(planning: Planning) -> None:
    loading = Observed(frozenset({"node-0"}), {"m1": {"node-0": ModelReport(name="m1", state="loading")}})
    assert planning(namespace(), observed=loading).models[0].generation == b""
    (named,) = planning(namespace(), observed=ready("m1")).models
    assert named.generation == generation(INPUTS)
    assert named.inputs == INPUTS


def disagreeing() -> Observed:
    other = msgspec.structs.replace(INPUTS, weights="sha256:other")
    return Observed(
        frozenset({"node-0", "node-1"}),
        {
            "m1": {
                "node-0": ModelReport(name="m1", state="ready", inputs=INPUTS),
                "node-1": ModelReport(name="m1", state="ready", inputs=other),
            }
        },
    )


def test_a_generation_is_not_named_while_digests_disagree(planning: Planning) -> None:
    planned = planning(namespace(), observed=disagreeing())
    assert planned.models[0].generation == b""
    assert reasons(planned) == [("ModelVersion m1", ConditionReason.DIGESTS_DISAGREE)]
    assert "weights" in planned.problems[0].message


def test_a_node_with_other_files_takes_no_generation_from_the_rest(planning: Planning) -> None:
    planning(namespace())
    planned = planning(namespace(), observed=disagreeing())
    assert planned.models[0].generation == generation(INPUTS)
    assert "node-1 found other weights" in planned.problems[0].message


def test_a_named_generation_outlasts_restarts_of_the_nodes(planning: Planning) -> None:
    named = planning(namespace())
    assert planning(namespace(), observed=Observed()).models == named.models


def test_files_replaced_on_all_nodes_give_another_generation(planning: Planning) -> None:
    planning(namespace())
    other = msgspec.structs.replace(INPUTS, tokenizer="sha256:other")
    planned = planning(namespace(), observed=ready("m1", inputs=other))
    assert planned.models[0].generation == generation(other)
    assert planned.problems == ()


def test_pinned_digests_must_be_those_found(planning: Planning) -> None:
    pin = "sha256:" + "0" * 64
    planned = planning(namespace(), models=(model(digests={"weights": pin}),))
    assert planned.models[0].generation == b""
    assert reasons(planned) == [("ModelVersion m1", ConditionReason.DIGEST_PIN_MISMATCH)]
    found = msgspec.structs.replace(INPUTS, weights=pin)
    right = planning(namespace(), models=(model(digests={"weights": pin}),), observed=ready("m1", inputs=found))
    assert right.models[0].generation == generation(found)


def test_the_last_active_model_serves_until_the_desired_one_is_ready_on_every_daemon(planning: Planning) -> None:
    both = (model(), model("m2"))
    planning(namespace(), models=both)
    half = ready("m1")
    half = Observed(half.daemons, {**half.models, "m2": {"node-0": half.models["m1"]["node-0"]}})
    assert only(planning(namespace(model_name="m2"), models=both, observed=half)).model == "m1"
    assert only(planning(namespace(model_name="m2"), models=both, observed=ready("m1", "m2"))).model == "m2"
    assert only(planning(namespace(model_name="m2"), models=both, observed=Observed())).model == "m2"


def test_a_deleted_model_is_held_while_it_still_serves(planning: Planning) -> None:
    first = planning(namespace(), models=(model(chatTemplateFrom={"inline": "{{ messages }}"}),))
    held = planning(namespace(model_name="m2"), models=(model("m2"),), observed=ready("m1"))
    assert [planned.name for planned in held.models] == ["m1", "m2"]
    assert held.models[0] == first.models[0]
    assert held.models[0].chat_template in held.bodies
    shifted = planning(namespace(model_name="m2"), models=(model("m2"),), observed=ready("m2"))
    assert [planned.name for planned in shifted.models] == ["m2"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"engine": {"type": "vllm"}}, "spec.engine.type"),
        ({"rope": {"type": "linear", "factor": 2.0}}, "spec.rope"),
    ],
)
def test_what_nodes_are_not_told_is_refused_not_ignored(planning: Planning, spec: dict[str, Any], field: str) -> None:
    planned = planning(namespace(), models=(model(**spec),))
    assert planned.models == ()
    assert planned.problems[0].reason is ConditionReason.UNSUPPORTED_FORMAT
    assert field in planned.problems[0].message


def test_adapters_are_told_to_nodes_with_their_pins_and_places(planning: Planning) -> None:
    pin = f"sha256:{'a' * 64}"
    spec = [{"name": name, "source": {"hostPath": {"path": f"/x/{name}"}}, "digest": pin} for name in ("one", "two")]
    told = planning(namespace(), models=(model(adapters=spec),)).models[0].adapters
    assert [(adapter.name, adapter.path, adapter.digest) for adapter in told] == [
        ("one", "/adapters/one", pin),
        ("two", "/adapters/two", pin),
    ]


LOSSY = {"kvFormat": {"codec": "int8"}}
ALLOWED = {"privacy": {"lossyCodecs": "Allowed"}}


def test_i1_a_namespace_that_allows_no_lossy_codec_is_not_planned_on_one(planning: Planning) -> None:
    planned = planning(namespace(), models=(model(**LOSSY),))
    assert planned.namespaces == ()
    assert reasons(planned) == [("PromptCacheNamespace team/a", ConditionReason.LOSSY_CODEC_FORBIDDEN)]
    for part in ("spec.privacy.lossyCodecs", "Allowed", "int8", "spec.kvFormat.codec none"):
        assert part in planned.problems[0].message
    allowed = planning(namespace(**ALLOWED), models=(model(**LOSSY),))
    assert allowed.problems == ()
    assert (only(allowed).model, only(allowed).suspended) == ("m1", False)


def test_i1_a_lossy_version_leaves_an_exact_namespace_on_its_last_good_model(planning: Planning) -> None:
    both = (model("m1"), model("m2", **LOSSY))
    good = planning(namespace(), models=both, observed=ready("m1", "m2"))
    refused = planning(namespace(model_name="m2"), models=both, observed=ready("m1", "m2"))
    assert refused.same_plan(good)
    assert reasons(refused) == [("PromptCacheNamespace team/a", ConditionReason.LOSSY_CODEC_FORBIDDEN)]
    assert refused.problems[0].message.endswith("until then m1 serves on")
    moved = planning(namespace(model_name="m2", **ALLOWED), models=both, observed=ready("m1", "m2"))
    assert only(moved).model == "m2"


def test_i1_forbidding_what_serves_already_ends_reuse_at_once_and_no_service(planning: Planning) -> None:
    prefixes = [document("p", "p")]
    lossy = (model("m1", **LOSSY), model("m2"))
    assert only(planning(namespace(prefixes=prefixes, **ALLOWED), models=lossy, observed=ready("m1"))).warm == ["p"]
    cold = planning(namespace(prefixes=prefixes), models=lossy, observed=ready("m1"))
    assert (only(cold).model, only(cold).suspended, only(cold).warm) == ("m1", True, [])
    assert cold.problems[0].message.endswith("until then m1 serves on, without its cache")
    leaving = planning(namespace(prefixes=prefixes, model_name="m2"), models=lossy, observed=ready("m1"))
    assert (only(leaving).model, only(leaving).suspended, leaving.problems) == ("m1", True, ())
    left = planning(namespace(prefixes=prefixes, model_name="m2"), models=lossy, observed=ready("m1", "m2"))
    assert (only(left).model, only(left).suspended, only(left).warm) == ("m2", False, ["p"])


def test_the_fields_of_a_model_reach_its_plan(planning: Planning) -> None:
    spec = {
        "kvFormat": {"dtype": "bfloat16", "blockSize": 64, "codec": "fp8-e4m3"},
        "engine": {"maxBatchSize": 4, "prefillChunkTokens": 128, "maxModelLen": 2048},
        "pool": {"device": "1Gi", "host": "2Mi", "disk": "0"},
    }
    (planned,) = planning(namespace(), models=(model(**spec),)).models
    assert (planned.path, planned.kv_dtype, planned.block_size) == ("/models/m1", "bfloat16", 64)
    assert planned.kv_codec == "fp8-e4m3"
    assert (planned.max_batch, planned.prefill_chunk, planned.max_model_len) == (4, 128, 2048)
    assert planned.pool_bytes == {"device": 1 << 30, "host": 2 << 20}


# -- problems of one namespace -----------------------------------------------------------------------------------------


def test_one_namespaces_problem_leaves_the_others_planned_and_itself_on_its_last_good_plan(planning: Planning) -> None:
    good = planning(namespace("a", documents=[document()]), namespace("b"))
    broken = planning(namespace("a", model_name="nowhere", documents=[document()]), namespace("b", suspend=True))
    assert reasons(broken) == [("PromptCacheNamespace team/a", ConditionReason.MODEL_VERSION_NOT_FOUND)]
    assert broken.namespaces[0] == good.namespaces[0]
    assert broken.namespaces[1].suspended


def test_i3_purges_access_and_withdrawals_apply_whatever_else_is_wrong(planning: Planning) -> None:
    good = only(planning(namespace(documents=[document()])))
    changes = {"purge": {"epoch": 1}, "access": {"tenants": ["x"]}}
    broken = only(planning(namespace(model_name="nowhere", **changes)))
    assert broken.model == good.model
    assert broken.documents == []
    assert broken.fence == Fence(good.fence.purge + 1, good.fence.documents + 1, good.fence.access + 1)


def test_a_namespace_that_never_had_a_model_is_not_planned(planning: Planning) -> None:
    planned = planning(namespace("a", model_name="nowhere"), namespace("b"))
    assert [found.name for found in planned.namespaces] == ["team/b"]
    assert [found.name for found in planning(namespace("a"), namespace("b")).namespaces] == ["team/a", "team/b"]


def test_an_alias_belongs_to_who_claimed_it_first(planning: Planning) -> None:
    planning(namespace("z", aliases=["gpt", "mine"]))
    planned = planning(namespace("a", aliases=["gpt", "other"]), namespace("z", aliases=["gpt", "mine"]))
    assert {found.name: found.aliases for found in planned.namespaces} == {
        "team/a": ["other"],
        "team/z": ["gpt", "mine"],
    }
    assert reasons(planned) == [("PromptCacheNamespace team/a", ConditionReason.ALIAS_CONFLICT)]
    assert "gpt" in planned.problems[0].message
    freed = planning(namespace("a", aliases=["gpt", "other"]), namespace("z"))
    assert freed.namespaces[0].aliases == ["gpt", "other"]


def test_a_namespace_without_a_uid_is_a_mistake_of_the_caller(planning: Planning) -> None:
    nameless = namespace().model_copy(update={"metadata": namespace().metadata.model_copy(update={"uid": None})})
    with pytest.raises(ValueError, match="uid"):
        planning(nameless)


# -- removal -----------------------------------------------------------------------------------------------------------


def test_a_removed_namespace_is_erased_until_there_is_evidence(planning: Planning) -> None:
    planning(namespace())
    removed = planning()
    assert removed.namespaces == ()
    assert removed.erase_uids == ("uid-a",)
    assert removed.state.removed["uid-a"].secret == b""
    assert planning().erase_uids == ("uid-a",)
    assert planning(observed=Observed(erased={"uid-a"})).erase_uids == ()
    assert planning.state.removed == {}


def test_i3_a_namespace_that_returns_goes_on_above_its_counters_under_another_secret(planning: Planning) -> None:
    before = only(planning(namespace(documents=[document()])))
    planning()
    back = only(planning(namespace(documents=[document()])))
    assert back.purge.counter > before.purge.counter
    assert back.fence.covers(before.fence)
    assert back.secret not in (b"", before.secret)
    assert planning.state.removed == {}


# -- what members get --------------------------------------------------------------------------------------------------


def test_gateways_get_the_nodes_and_no_secrets(planning: Planning) -> None:
    planned = planning(namespace())
    nodes = [NodeEndpoint(member="node-0", boot="b", address="tcp://x")]
    revision = Revision(term=3, n=4)
    daemon = planned.for_member(DAEMON, nodes=nodes, revision=revision)
    gateway = planned.for_member(GATEWAY, nodes=nodes, revision=revision)
    assert (daemon.revision, gateway.revision) == (revision, revision)
    assert (daemon.nodes, gateway.nodes) == ([], nodes)
    assert daemon.namespaces[0].secret != b""
    assert gateway.namespaces[0].secret == b""


def test_the_fields_of_a_namespace_reach_its_plan(planning: Planning) -> None:
    spec = {
        "isolation": "Session",
        "access": {"tenants": ["t"], "scopes": ["s"], "policyVersion": 3},
        "quota": {"host": {"floor": "1Mi", "ceiling": "2Mi"}, "disk": {"ceiling": "1Gi"}},
        "freshness": {"lease": "1m30s", "onControlPlaneLoss": "FailClosed"},
        "suspend": True,
    }
    planned = only(planning(namespace(**spec)))
    assert (planned.uid, planned.name, planned.isolation) == ("uid-a", "team/a", "Session")
    assert (planned.tenants, planned.scopes, planned.policy_version) == (["t"], ["s"], 3)
    assert {tier: (quota.floor, quota.ceiling) for tier, quota in planned.quota.items()} == {
        "host": (1 << 20, 2 << 20),
        "disk": (0, 1 << 30),
    }
    assert (planned.lease_seconds, planned.fail_closed, planned.suspended) == (90.0, True, True)
    assert planning.last is not None
    assert planning.last.issued()["uid-a"].lease_seconds == 90.0


def test_i12_texts_do_not_show_when_a_plan_is_printed(planning: Planning) -> None:
    assert "very private" not in repr(planning(namespace(documents=[document(text="very private")])))
