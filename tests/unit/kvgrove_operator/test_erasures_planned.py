"""Erasures of parts of a namespace: what members are told, under which secret, and until when (I8)."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from planning_rig import Planning, document, namespace, only, ready

from kvgrove_operator.observed import Observed
from kvgrove_operator.plan import Planned
from kvgrove_operator.plan_state import ErasureState, Proof, Stage
from kvgrove_protocol.control import GATEWAY, NamespacePlan, Revision
from kvgrove_protocol.identity import contributor
from kvgrove_protocol.receipts import seal_of

JANE = {"name": "request-1", "tenant": "acme", "user": "jane"}
GLOBEX = {"name": "ended", "tenant": "globex"}
MANUAL = {"name": "recalled", "document": "manual"}


@pytest.fixture
def planning() -> Planning:
    planning = Planning()
    planning(erasing())
    return planning


def erasing(*erasures: dict[str, str], **spec: Any) -> Any:
    return namespace(privacy={"erasures": [*erasures]}, **spec)


def proven(*plans: NamespacePlan, **counts: int) -> Observed:
    proofs = {each.id: Proof(**counts) for plan in plans for each in plan.erasures}
    return replace(ready("m1"), proofs=proofs)


def entries(planned: Planned) -> tuple[ErasureState, ...]:
    return planned.state.namespaces["uid-a"].erasures


def test_i8_members_are_told_pseudonyms_and_never_names(planning: Planning) -> None:
    plan = only(planning(erasing(JANE, GLOBEX, MANUAL)))
    jane, globex, manual = plan.erasures
    who = contributor(plan.pseudonym_key, "acme", "jane")
    assert (jane.tenant, jane.user, jane.document) == (who.tenant, who.user, "")
    assert (globex.tenant, globex.user) == (contributor(plan.pseudonym_key, "globex", None).tenant, b"")
    assert (manual.tenant, manual.user, manual.document) == (b"", b"", "manual")
    assert len({each.id for each in plan.erasures}) == 3
    for name in ("jane", "acme", "globex", "request-1"):
        assert name not in repr(plan)


def test_i8_a_new_erasure_raises_the_fence_and_no_documents_epoch(planning: Planning) -> None:
    before = only(planning(erasing(documents=[document()])))
    after = only(planning(erasing(JANE, documents=[document()])))
    assert after.fence.documents == before.fence.documents + 1
    assert (after.fence.purge, after.fence.access) == (before.fence.purge, before.fence.access)
    assert after.documents == before.documents
    assert after.purge == before.purge


def test_i8_an_entry_is_carried_out_once(planning: Planning) -> None:
    first = only(planning(erasing(JANE)))
    same = planning(erasing(JANE))
    assert only(same) == first
    done = planning(erasing(JANE), observed=proven(first, confirmed=2))
    assert only(done).erasures == []
    assert only(done).fence == first.fence
    assert [each.stage for each in entries(done)] == [Stage.DONE]
    again = planning(erasing(JANE))
    assert only(again).erasures == []


def test_i8_the_same_under_another_name_is_carried_out_again(planning: Planning) -> None:
    first = only(planning(erasing(JANE)))
    planning(erasing(JANE), observed=proven(first))
    planning(erasing())
    (again,) = only(planning(erasing(JANE | {"name": "request-2"}))).erasures
    (before,) = first.erasures
    assert again.user == before.user
    assert again.epoch > before.epoch
    assert again.id != before.id


def test_i8_another_subject_under_the_same_name_is_another_erasure(planning: Planning) -> None:
    planning(erasing(JANE))
    plan = only(planning(erasing(JANE | {"user": "joe"})))
    assert [each.user for each in plan.erasures] == [
        contributor(plan.pseudonym_key, "acme", user).user for user in ("jane", "joe")
    ]


def test_i8_an_entry_that_is_removed_under_way_is_carried_out_all_the_same(planning: Planning) -> None:
    first = only(planning(erasing(JANE)))
    assert only(planning(erasing())).erasures == first.erasures
    done = planning(erasing(), observed=proven(first))
    assert only(done).erasures == []
    assert entries(done) == ()


def test_i8_survivors_get_another_secret_and_the_old_one_is_destroyed_on_evidence(planning: Planning) -> None:
    before = only(planning(erasing()))
    under_way = only(planning(erasing(JANE)))
    assert under_way.former_secret == before.secret
    assert under_way.secret not in (b"", before.secret)
    assert under_way.pseudonym_key == before.pseudonym_key
    after = only(planning(erasing(JANE), observed=proven(under_way, confirmed=1, gone=1)))
    assert (after.secret, after.former_secret) == (under_way.secret, b"")
    assert b64encode(before.secret) not in msgspec.json.encode(planning.state)


def test_i8_the_evidence_stays_on_record(planning: Planning) -> None:
    under_way = only(planning(erasing(JANE)))
    (entry,) = entries(planning(erasing(JANE), observed=proven(under_way, confirmed=3, gone=1)))
    assert entry.proof == Proof(confirmed=3, gone=1)


def test_i8_one_erasure_without_evidence_keeps_the_old_secret_for_all(planning: Planning) -> None:
    both = only(planning(erasing(JANE, GLOBEX)))
    one = replace(ready("m1"), proofs={both.erasures[0].id: Proof(confirmed=1)})
    still = only(planning(erasing(JANE, GLOBEX), observed=one))
    assert (still.erasures, still.former_secret) == (both.erasures, both.former_secret)
    pending = only(planning(erasing(JANE, GLOBEX), observed=proven(both, pending=1)))
    assert pending.former_secret == both.former_secret


def test_i8_erasures_declared_together_share_one_rewrap(planning: Planning) -> None:
    before = only(planning(erasing()))
    both = only(planning(erasing(JANE, GLOBEX)))
    assert (len(both.erasures), both.former_secret) == (2, before.secret)
    assert both.fence.documents == before.fence.documents + 1
    assert only(planning(erasing(JANE, GLOBEX), observed=proven(both))).secret == both.secret


def test_i8_what_comes_during_a_rewrap_is_told_at_once_and_sealed_by_the_next(planning: Planning) -> None:
    first = only(planning(erasing(JANE)))
    second = planning(erasing(JANE, GLOBEX, MANUAL))
    assert [each.epoch for each in only(second).erasures] == [1, 2, 3]
    assert only(second).fence.documents == first.fence.documents + 1
    assert (only(second).secret, only(second).former_secret) == (first.secret, first.former_secret)
    assert [each.stage for each in entries(second)] == [Stage.CURRENT, Stage.WAITING, Stage.WAITING]
    # Receipts under the secret of the first rewrap prove nothing of the others: they are asked for anew.
    third = planning(erasing(JANE, GLOBEX, MANUAL), observed=proven(only(second), confirmed=2))
    assert [each.stage for each in entries(third)] == [Stage.DONE, Stage.CURRENT, Stage.CURRENT]
    assert only(third).former_secret == first.secret
    assert only(third).secret != first.secret
    assert [each.epoch for each in only(third).erasures] == [2, 3]
    assert only(third).fence == only(second).fence


def test_i8_a_deleted_namespace_loses_its_secrets_and_its_erasures_with_it(planning: Planning) -> None:
    planning(erasing(JANE))
    removed = planning().state.removed["uid-a"]
    assert (removed.secret, removed.former_secret, removed.pseudonym_key) == (b"", b"", b"")
    assert removed.erasures == ()
    back = only(planning(erasing(JANE)))
    assert [each.epoch for each in back.erasures] == [2]


def test_i12_gateways_get_no_secret_of_any_age(planning: Planning) -> None:
    planned = planning(erasing(JANE))
    (told,) = planned.for_member(GATEWAY, nodes=(), revision=Revision(1, 1)).namespaces
    assert (told.secret, told.former_secret, told.pseudonym_key) == (b"", b"", b"")
    assert told.erasures == only(planned).erasures


def test_the_ledger_learns_what_to_wait_for(planning: Planning) -> None:
    planned = planning(erasing(JANE, GLOBEX))
    issued = planned.issued()["uid-a"]
    assert issued.erasures == tuple(each.id for each in only(planned).erasures)
    assert issued.seal == seal_of(only(planned).secret)
