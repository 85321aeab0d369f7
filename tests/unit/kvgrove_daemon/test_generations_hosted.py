"""One namespace by several generations on one node: what is served, what is refused, what is dropped."""

from msgspec.structs import replace

from kvgrove_daemon.admission import Verdict, admit
from kvgrove_daemon.erase_orders import erase_orders
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_daemon.plan_effects import reclaims
from kvgrove_protocol.control import ErasurePlan, GenerationPlan, ModelPlan, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.data import Generate, Sampling
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, GenerationInputs, Purge, generation

V1 = GenerationInputs(weights="w1", tokenizer="t", chat_template="c", kv_dtype="float32", block_size=32)
V2 = replace(V1, weights="w2")


def model(name: str, inputs: GenerationInputs) -> ModelPlan:
    return ModelPlan(name=name, path="/", generation=generation(inputs), inputs=inputs)


NAMESPACE = NamespacePlan(
    uid="uid",
    name="team/chat",
    model="v1",
    purge=Purge(1, b"n" * 16),
    fence=Fence(1, 1, 1),
    generations=[GenerationPlan(model="v2", weight=10)],
)
PLAN = NodePlan(revision=Revision(1, 1), models=[model("v1", V1), model("v2", V2)], namespaces=[NAMESPACE])


def applied(plan: NodePlan = PLAN, before: PlanTable | None = None) -> PlanTable:
    return (before or PlanTable()).apply(plan, {})


def verdict(table: PlanTable, inputs: GenerationInputs) -> tuple[Verdict, str, bytes]:
    request = Generate(
        request_id="1",
        namespace_uid="uid",
        generation=generation(inputs),
        fence=NAMESPACE.fence,
        caller=Caller(tenant="acme"),
        tokens=b"",
        spans=[],
        sampling=Sampling(),
        max_new_tokens=1,
    )
    found = admit(request, table, lease_valid=True)
    return found.verdict, found.code, found.namespace.generation if found.namespace is not None else b""


def test_cor_01_each_request_is_served_by_the_generation_that_it_names_under_roots_of_its_own() -> None:
    table = applied()
    assert verdict(table, V1) == (Verdict.WARM, "", generation(V1))
    assert verdict(table, V2) == (Verdict.WARM, "", generation(V2))
    assert len(table.namespaces["uid"].roots()) == 2
    other = replace(V1, tokenizer="t2")
    assert verdict(table, other)[:2] == (Verdict.REFUSE, "stale_fence")


def test_ops_14_what_the_plan_gave_up_serves_nobody_from_that_plan_on() -> None:
    alone = replace(PLAN, revision=Revision(1, 2), namespaces=[replace(NAMESPACE, generations=[])])
    table = applied(alone, applied())
    assert verdict(table, V2)[:2] == (Verdict.REFUSE, "stale_fence")
    assert reclaims(applied(), table) == [], "its blocks are erased when the plan says so, with a receipt"


def test_i3_a_purge_drops_what_all_generations_hold() -> None:
    purged = replace(NAMESPACE, purge=Purge(2, b"m" * 16), fence=Fence(2, 1, 1))
    before = applied()
    drops = reclaims(before, applied(replace(PLAN, revision=Revision(1, 2), namespaces=[purged]), before))
    assert {drop.root for drop in drops} == before.namespaces["uid"].roots()


def test_two_versions_of_one_generation_are_one() -> None:
    twins = replace(PLAN, models=[model("v1", V1), model("v2", V1)])
    assert [each.generation for each in applied(twins).namespaces["uid"].served()] == [generation(V1)]


def test_i8_a_generation_is_erased_by_its_root_and_nothing_else_is() -> None:
    erasure = ErasurePlan(id="e", epoch=1, root=b"r" * 32)
    (order,) = erase_orders(replace(PLAN, namespaces=[replace(NAMESPACE, erasures=[erasure])]), ())
    subject = order.subject
    assert (subject.namespace, subject.root, subject.document, subject.contributor) == ("uid", b"r" * 32, None, None)
