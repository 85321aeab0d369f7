"""What a request may name, and when: access, scopes, leases, canonical order."""

import msgspec
import pytest

from kvgrove_gateway.errors import Forbidden, NotFound, Unavailable
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.namespaces import Directory
from kvgrove_protocol.control import DocumentPlan, ModelPlan, NamespacePlan, NodePlan, PrefixPlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, Purge


def document(name: str, *scopes: str, epoch: int = 1) -> DocumentPlan:
    return DocumentPlan(name=name, version="1", body=name.encode() * 8, epoch=epoch, scopes=list(scopes))


SPACE = NamespacePlan(
    uid="u1",
    name="team/bot",
    aliases=["bot", "team/other"],
    model="m",
    tenants=["acme"],
    purge=Purge(1, b"n"),
    fence=Fence(1, 2, 3),
    documents=[document("a"), document("b", "legal"), document("c"), document("d")],
    prefixes=[
        PrefixPlan(name="rules", version="1", body=b"r", documents=["d", "a"]),
        PrefixPlan(name="secret", version="1", body=b"s", documents=["b"]),
    ],
)
OTHER = NamespacePlan(uid="u2", name="team/other", model="m", purge=Purge(1, b"n"), fence=Fence(1, 1, 1), tenants=[])
MODEL = ModelPlan(name="m", path="/m", generation=b"g" * 32)


def directory(*namespaces: NamespacePlan, model: ModelPlan = MODEL) -> Directory:
    return Directory.of(NodePlan(revision=Revision(1, 1), models=[model], namespaces=list(namespaces)))


def identity(tenant: str = "acme", *scopes: str, namespaces: frozenset[str] | None = None) -> Identity:
    return Identity(key_id="k", caller=Caller(tenant=tenant, user="ann", scopes=scopes), namespaces=namespaces)


TABLE = directory(SPACE, OTHER)


def test_a_name_or_alias_leads_to_the_namespace() -> None:
    assert TABLE.admit(identity(), "team/bot") is SPACE
    assert TABLE.admit(identity(), "bot") is SPACE


def test_an_alias_never_takes_another_namespaces_name() -> None:
    with pytest.raises(Forbidden):  # team/other itself, which admits nobody
        TABLE.admit(identity(), "team/other")


def test_access_is_the_plans_and_the_keys() -> None:
    with pytest.raises(Forbidden):
        TABLE.admit(identity("stranger"), "bot")
    with pytest.raises(Forbidden):
        TABLE.admit(identity(namespaces=frozenset({"team/other"})), "bot")
    with pytest.raises(NotFound):
        TABLE.admit(identity(), "team/nowhere")
    anyone = directory(msgspec.structs.replace(SPACE, tenants=None))
    assert anyone.admit(identity("stranger"), "bot").uid == "u1"


def test_i2_isolated_a_caller_without_the_scopes_is_served_without_cache_and_texts() -> None:
    scoped = directory(msgspec.structs.replace(SPACE, scopes=["hr", "it"]))
    assert not scoped.resolve(identity("acme", "it", "hr"), "bot", prefix="rules", lease_valid=True).scope_denied
    assert scoped.resolve(identity("acme", "it"), "bot", lease_valid=True).scope_denied
    for reference in ({"prefix": "rules"}, {"documents": ["a"]}):
        answers = []
        for table in (scoped, directory(msgspec.structs.replace(SPACE, prefixes=[], documents=[]))):
            with pytest.raises(NotFound) as caught:
                table.resolve(identity("acme", "it"), "bot", lease_valid=True, **reference)  # type: ignore[arg-type]
            answers.append(caught.value.body())
        assert answers[0] == answers[1]  # as one that is not declared


def test_only_what_may_be_used_is_listed() -> None:
    assert TABLE.visible(identity()) == ["bot", "team/bot"]
    assert TABLE.visible(identity("stranger")) == []


def test_documents_come_in_canonical_order_each_once() -> None:
    for names in (["c", "a"], ["a", "c"], ["c", "c", "d", "a"]):
        found = TABLE.resolve(identity(), "bot", prefix="rules", documents=names, lease_valid=True)
        assert [each.name for each in found.documents] == ["d", "a", "c"]
        assert found.fence == SPACE.fence
        assert found.body_digests() == [b"r", *(name.encode() * 8 for name in "dac")]


def test_the_order_of_a_request_does_not_matter() -> None:
    for names in (["d", "c", "a"], ["a", "d", "c"]):
        found = TABLE.resolve(identity(), "bot", documents=names, lease_valid=True)
        assert [each.name for each in found.documents] == ["a", "c", "d"]


def test_forbidden_and_unknown_documents_are_not_told_apart() -> None:
    answers = []
    for name in ("b", "nowhere"):
        with pytest.raises(NotFound) as caught:
            TABLE.resolve(identity(), "bot", documents=["a", name], lease_valid=True)
        answers.append(caught.value.body())
    assert answers[0] == answers[1]
    assert answers[0]["error"]["param"] == "kvgrove.documents[1]"
    assert len(TABLE.resolve(identity("acme", "legal"), "bot", documents=["b"], lease_valid=True).documents) == 1


def test_a_prefix_whose_documents_are_forbidden_is_as_unknown() -> None:
    answers = []
    for name in ("secret", "nowhere"):
        with pytest.raises(NotFound) as caught:
            TABLE.resolve(identity(), "bot", prefix=name, lease_valid=True)
        answers.append(caught.value.body())
    assert answers[0] == answers[1]


def test_without_a_lease_references_are_refused_and_the_rest_is_cold() -> None:
    assert TABLE.resolve(identity(), "bot", lease_valid=False).fence is None
    for reference in ({"prefix": "rules"}, {"documents": ["a"]}):
        with pytest.raises(Unavailable) as caught:
            TABLE.resolve(identity(), "bot", lease_valid=False, **reference)  # type: ignore[arg-type]
        assert caught.value.code == "freshness_lease_expired"
        assert caught.value.headers()["Retry-After"] == "1"


def test_fail_closed_refuses_without_a_lease() -> None:
    closed = directory(msgspec.structs.replace(SPACE, fail_closed=True))
    with pytest.raises(Unavailable, match="verified"):
        closed.resolve(identity(), "bot", lease_valid=False)
    assert closed.resolve(identity(), "bot", lease_valid=True).fence == SPACE.fence


def test_a_model_without_a_generation_is_not_served() -> None:
    table = directory(SPACE, model=ModelPlan(name="m", path="/m"))
    with pytest.raises(Unavailable) as caught:
        table.resolve(identity(), "bot", lease_valid=True)
    assert caught.value.code == "model_not_ready"


def test_a_session_narrows_within_the_verified_caller() -> None:
    found = TABLE.resolve(identity(), "bot", session="s", lease_valid=True)
    assert found.caller == Caller(tenant="acme", user="ann", session="s")
