"""Admission: the fence, the lease and the current permission before every hit (I2, I3)."""

import msgspec
import pytest

from kvgrove_daemon.admission import Verdict, admit
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.data import Generate, Sampling
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, GenerationInputs, Purge, generation
from kvgrove_protocol.reasons import MissReason

INPUTS = GenerationInputs(weights="w", tokenizer="t", chat_template="c", kv_dtype="float32", block_size=4)
MODEL = ModelPlan(name="m", path="/models/m", generation=generation(INPUTS), inputs=INPUTS)
NAMESPACE = NamespacePlan(
    uid="u",
    name="team/a",
    model="m",
    tenants=["acme"],
    purge=Purge(2, b"n"),
    fence=Fence(2, 5, 1),
    documents=[
        DocumentPlan(name="open", version="v2", body=b"o" * 32, epoch=5),
        DocumentPlan(name="hr", version="v1", body=b"h" * 32, epoch=3, scopes=["hr"]),
    ],
)
REQUEST = Generate(
    request_id="r",
    namespace_uid="u",
    generation=MODEL.generation,
    fence=NAMESPACE.fence,
    caller=Caller(tenant="acme", user="alice"),
    tokens=b"\0" * 32,
    spans=[Span(SpanKind.PRIVATE, 0, 8)],
    sampling=Sampling(),
    max_new_tokens=1,
)


def table(namespace: NamespacePlan = NAMESPACE, model: ModelPlan = MODEL) -> PlanTable:
    return PlanTable().apply(NodePlan(revision=Revision(1, 1), models=[model], namespaces=[namespace]), {})


def replaced(**changes: object) -> Generate:
    return msgspec.structs.replace(REQUEST, **changes)


def document(name: str, digest: bytes, epoch: int) -> list[Span]:
    return [Span(SpanKind.DOCUMENT, 0, 4, document=DocumentRef(name, digest, epoch)), Span(SpanKind.PRIVATE, 4, 8)]


def test_a_request_in_step_with_the_node_is_warm() -> None:
    assert admit(REQUEST, table(), lease_valid=True).verdict is Verdict.WARM


@pytest.mark.parametrize("fence", [Fence(1, 5, 1), Fence(2, 4, 1), Fence(2, 5, 0), Fence(3, 4, 1)])
def test_i3_fresh_a_request_resolved_before_the_fence_moved_is_refused_retryably(fence: Fence) -> None:
    admission = admit(replaced(fence=fence), table(), lease_valid=True)
    assert (admission.verdict, admission.code, admission.retryable) == (Verdict.REFUSE, "stale_fence", True)


def test_i3_fresh_a_request_that_knows_more_than_the_node_is_served_cold() -> None:
    admission = admit(replaced(fence=Fence(2, 6, 1)), table(), lease_valid=True)
    assert (admission.verdict, admission.reason) == (Verdict.COLD, MissReason.FENCE_NEWER)


@pytest.mark.parametrize(("fence", "lease_valid"), [(NAMESPACE.fence, False), (None, True), (None, False)])
def test_i3_fresh_without_a_lease_on_either_side_nothing_is_reused(fence: Fence | None, lease_valid: bool) -> None:
    admission = admit(replaced(fence=fence), table(), lease_valid=lease_valid)
    assert (admission.verdict, admission.reason) == (Verdict.COLD, MissReason.CONTROL_PLANE_LOST)
    closed = table(msgspec.structs.replace(NAMESPACE, fail_closed=True))
    refused = admit(replaced(fence=fence), closed, lease_valid=lease_valid)
    assert (refused.verdict, refused.code) == (Verdict.REFUSE, "freshness_lease_expired")


def test_i3_fresh_a_gateway_without_a_lease_cannot_bring_documents() -> None:
    admission = admit(replaced(fence=None, spans=document("open", b"o" * 32, 5)), table(), lease_valid=True)
    assert (admission.verdict, admission.code) == (Verdict.REFUSE, "freshness_lease_expired")


@pytest.mark.parametrize(("digest", "epoch"), [(b"x" * 32, 5), (b"o" * 32, 4)])
def test_i3_fresh_another_version_of_a_document_is_refused(digest: bytes, epoch: int) -> None:
    admission = admit(replaced(spans=document("open", digest, epoch)), table(), lease_valid=True)
    assert (admission.verdict, admission.code) == (Verdict.REFUSE, "stale_fence")


def test_i2_isolated_forbidden_and_unknown_documents_answer_alike() -> None:
    unknown = admit(replaced(spans=document("no-such", b"h" * 32, 3)), table(), lease_valid=True)
    forbidden = admit(replaced(spans=document("hr", b"h" * 32, 3)), table(), lease_valid=True)
    assert unknown.verdict is Verdict.REFUSE
    assert (unknown.code, unknown.message) == (forbidden.code, forbidden.message)
    allowed = replaced(spans=document("hr", b"h" * 32, 3), caller=Caller(tenant="acme", scopes=("hr",)))
    assert admit(allowed, table(), lease_valid=True).verdict is Verdict.WARM


@pytest.mark.parametrize("caller", [Caller(tenant="other"), Caller()])
def test_i2_isolated_a_caller_outside_the_current_rule_is_refused(caller: Caller) -> None:
    assert admit(replaced(caller=caller), table(), lease_valid=True).code == "forbidden"


def test_i2_isolated_every_scope_of_the_rule_is_needed() -> None:
    ruled = table(msgspec.structs.replace(NAMESPACE, scopes=["hr", "legal"]))
    for held, admitted in ((("hr",), False), (("legal", "hr", "x"), True), ((), False)):
        caller = Caller(tenant="acme", scopes=held)
        admission = admit(replaced(caller=caller), ruled, lease_valid=True)
        expected = (Verdict.WARM, None) if admitted else (Verdict.COLD, MissReason.SCOPE_DENIED)
        assert (admission.verdict, admission.reason) == expected, held


def test_i2_isolated_a_revoked_scope_takes_the_documents_along() -> None:
    """Also one that asks for no scope of its own; and the answer is that of one that is unknown."""
    ruled = table(msgspec.structs.replace(NAMESPACE, scopes=["staff"]))
    asked = replaced(spans=document("open", b"o" * 32, 5))
    denied = admit(asked, ruled, lease_valid=True)
    unknown = admit(replaced(spans=document("no-such", b"h" * 32, 3)), table(), lease_valid=True)
    assert (denied.verdict, denied.code, denied.message) == (Verdict.REFUSE, unknown.code, unknown.message)
    held = msgspec.structs.replace(asked, caller=Caller(tenant="acme", scopes=("staff",)))
    assert admit(held, ruled, lease_valid=True).verdict is Verdict.WARM


def test_i3_fresh_a_denial_by_an_older_rule_is_resolved_anew_and_by_an_unproven_one_is_cold() -> None:
    ruled = table(msgspec.structs.replace(NAMESPACE, scopes=["staff"]))
    older = admit(replaced(fence=Fence(2, 5, 0)), ruled, lease_valid=True)
    assert (older.verdict, older.code) == (Verdict.REFUSE, "stale_fence")
    newer = admit(replaced(fence=Fence(2, 5, 2)), ruled, lease_valid=True)
    assert (newer.verdict, newer.reason) == (Verdict.COLD, MissReason.FENCE_NEWER)


def test_i2_isolated_no_tenants_means_nobody_and_a_missing_list_means_every_verified_one() -> None:
    nobody = table(msgspec.structs.replace(NAMESPACE, tenants=[]))
    assert admit(REQUEST, nobody, lease_valid=True).code == "forbidden"
    everyone = table(msgspec.structs.replace(NAMESPACE, tenants=None))
    assert admit(replaced(caller=Caller(tenant="new")), everyone, lease_valid=True).verdict is Verdict.WARM


def test_an_unnamed_or_other_generation_is_not_served() -> None:
    unnamed = table(model=msgspec.structs.replace(MODEL, generation=b"", inputs=None))
    assert admit(REQUEST, unnamed, lease_valid=True).code == "not_ready"
    assert admit(replaced(generation=b"x" * 32), table(), lease_valid=True).code == "stale_fence"
    assert admit(replaced(namespace_uid="nobody"), table(), lease_valid=True).code == "not_ready"


def test_a_suspended_namespace_is_served_cold() -> None:
    suspended = table(msgspec.structs.replace(NAMESPACE, suspended=True))
    assert admit(REQUEST, suspended, lease_valid=True).reason is MissReason.SUSPENDED


def test_a_lower_revision_changes_nothing_and_the_same_one_twice_neither() -> None:
    first = table()
    older = NodePlan(revision=Revision(1, 0))
    assert first.apply(older, {}) is first
    again = first.apply(NodePlan(revision=Revision(1, 1), models=[MODEL], namespaces=[NAMESPACE]), {})
    assert again == first


def test_i3_fresh_a_plan_below_the_highest_purge_counter_seen_is_not_applied_to_that_namespace_alone() -> None:
    held = table()
    other = msgspec.structs.replace(NAMESPACE, uid="v", name="team/b")
    fallen = msgspec.structs.replace(NAMESPACE, purge=Purge(1, b"o"), fence=Fence(1, 5, 1))
    plan = NodePlan(revision=Revision(2, 1), models=[MODEL], namespaces=[fallen, other])
    after = held.apply(plan, {"u": 2})
    assert after.namespaces["u"].plan == NAMESPACE
    assert after.namespaces["v"].plan == other
    assert after.problems["u"].code == "PurgeCounterFell"


def test_a_generation_that_is_not_that_of_its_inputs_is_not_served() -> None:
    wrong = msgspec.structs.replace(MODEL, generation=b"x" * 32)
    assert table(model=wrong).model_problems["m"].code == "GenerationMismatch"
    assert admit(REQUEST, table(model=wrong), lease_valid=True).code == "not_ready"
