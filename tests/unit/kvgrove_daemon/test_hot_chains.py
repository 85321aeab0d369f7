"""What a generation that comes inherits of what callers asked the last one."""

from typing import Any, cast

from msgspec.structs import replace as replaced

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import Writer
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.hot_chains import HotChains
from kvgrove_daemon.judging import Task
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_protocol.chain import DocumentRef, Span, SpanKind
from kvgrove_protocol.control import DocumentPlan, GenerationPlan, ModelPlan, NamespacePlan
from kvgrove_protocol.data import Sampling
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, GenerationInputs, Purge, contributor, generation

BLOCK = 32
V1 = GenerationInputs(weights="w1", tokenizer="t", chat_template="c", kv_dtype="float32", block_size=BLOCK)
V2 = replaced(V1, weights="w2")
ANN, BOB = Caller(tenant="acme", user="ann"), Caller(tenant="globex", user="bob")
DOCUMENT = DocumentPlan(name="policy", version="1", body=b"d" * 32, epoch=3)


def model(name: str, inputs: GenerationInputs) -> ModelPlan:
    return ModelPlan(name=name, path="/", generation=generation(inputs), inputs=inputs)


def table(*, to: GenerationInputs = V2, moving: bool = True, **fields: Any) -> PlanTable:
    plan = NamespacePlan(
        uid="uid",
        name="team/chat",
        model="v1",
        purge=Purge(1, b"n" * 16),
        fence=Fence(1, 1, 1),
        documents=[DOCUMENT],
        pseudonym_key=b"k" * 32,
        generations=[GenerationPlan(model="v2")] if moving else [],
        warm_chains=2 if moving else 0,
    )
    plan = replaced(plan, **fields)
    old, new = model("v1", V1), model("v2", to)
    documents = {each.name: each for each in plan.documents}
    hosted = HostedNamespace(plan, old, documents, (new,) if moving else ())
    return PlanTable(models={"v1": old, "v2": new}, namespaces={"uid": hosted})


def note(
    hot: HotChains, first_key: int, blocks: int, caller: Caller = ANN, document: DocumentRef | None = None
) -> None:
    hosted = table().namespaces["uid"]
    realm = hosted.realm
    assert realm is not None
    tokens = bytes(blocks * BLOCK * 4 + 8)
    kind = SpanKind.PRIVATE if document is None else SpanKind.DOCUMENT
    spans = [Span(kind, 0, blocks * BLOCK + 2, document=document)]
    documents = {0: (document.label,)} if document is not None else {}
    task = Task(
        namespace=hosted,
        model=cast(Any, None),
        cold=None,
        caller=caller,
        party=None,
        fence=hosted.plan.fence,
        tokens=tokens,
        spans=spans,
        prompt_tokens=blocks * BLOCK + 2,
        sampling=Sampling(),
        max_new_tokens=1,
    )
    keys = [bytes([first_key, number]) * 16 for number in range(blocks)]
    writer = Writer(contributor(b"k" * 32, caller.tenant, caller.user), 0)
    chain = Chain("uid", realm.shared_realm(), tokens, keys, BLOCK, documents=documents, writer=writer)
    hot.note(task, chain, task.prompt_tokens)


def inherited(hot: HotChains, plan: PlanTable) -> list[tuple[int, str | None]]:
    return [(target.blocks, target.caller.tenant) for target in hot.targets(plan)]


def test_the_hottest_prompts_come_first_and_one_that_goes_on_takes_the_place_of_what_it_continues() -> None:
    hot = HotChains()
    note(hot, 1, 2)
    note(hot, 1, 4)
    note(hot, 1, 4)
    note(hot, 2, 3)
    note(hot, 2, 3, BOB)
    note(hot, 3, 1)
    assert len(hot) == 3
    assert inherited(hot, table()) == [(4, "acme"), (3, "globex")]
    (first, _) = hot.targets(table())
    assert (first.generation, first.spans[-1].end) == (generation(V2), 4 * BLOCK)


def test_other_tokens_inherit_nothing() -> None:
    hot = HotChains()
    note(hot, 1, 2)
    assert inherited(hot, table(to=replaced(V2, tokenizer="t2"))) == []
    assert inherited(hot, table(to=replaced(V2, chat_template="c2"))) == []
    assert inherited(hot, table(moving=False)) == []
    assert inherited(hot, table()) == [(2, "acme")]


def test_what_is_inherited_does_not_move_with_traffic_and_is_given_up_with_the_rollout() -> None:
    hot = HotChains()
    note(hot, 1, 2)
    assert inherited(hot, table()) == [(2, "acme")]
    note(hot, 2, 3)
    note(hot, 2, 3)
    assert inherited(hot, table()) == [(2, "acme")]
    assert inherited(hot, table(moving=False)) == []
    assert inherited(hot, table()) == [(3, "acme"), (2, "acme")]


def test_i2_nobody_inherits_what_may_not_be_asked_any_more() -> None:
    hot = HotChains()
    note(hot, 1, 2)
    note(hot, 2, 3, BOB, DOCUMENT.reference)
    assert sorted(inherited(hot, table())) == [(2, "acme"), (3, "globex")]
    assert inherited(hot, table(tenants=["globex"])) == [(3, "globex")]
    assert inherited(hot, table(documents=[])) == [(2, "acme")]
    assert inherited(hot, table(documents=[replaced(DOCUMENT, epoch=4)])) == [(2, "acme")]
    assert inherited(hot, table(scopes=["hr"])) == []
    assert inherited(hot, table(suspended=True)) == []


def test_i8_what_is_erased_is_forgotten_inherited_or_not() -> None:
    hot = HotChains()
    note(hot, 1, 2)
    note(hot, 2, 3, BOB)
    hot.targets(table())
    assert hot.forget(Subject("uid", contributor=contributor(b"k" * 32, "acme", "ann"))) == 1
    assert inherited(hot, table()) == [(3, "globex")]
    assert hot.forget(Subject("other")) == 0
    assert hot.forget(Subject("uid")) == 1
    assert inherited(hot, table()) == []


def test_a_caller_without_a_realm_to_come_back_to_is_not_remembered() -> None:
    hot = HotChains()
    note(hot, 1, 2, Caller())
    assert len(hot) == 0, "isolation Tenant, and no tenant"


def test_i11_they_are_bounded_in_number_and_bytes() -> None:
    few = HotChains(max_chains=3)
    for number in range(10):
        note(few, number, 1)
    assert len(few) == 3
    small = HotChains(max_bytes=1000)
    for number in range(10):
        note(small, number, 2)
    assert len(small) == 3
