"""What a swapped plan table gives back."""

from collections.abc import Sequence

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.commands import Drop
from kvgrove_daemon.erase_orders import WHOLE, erase_orders
from kvgrove_daemon.namespaces import PlanTable
from kvgrove_daemon.plan_effects import reclaims
from kvgrove_protocol.control import DocumentPlan, ErasurePlan, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Contributor, Purge


def version(epoch: int, name: str = "handbook") -> DocumentPlan:
    return DocumentPlan(name=name, version=f"v{epoch}", body=bytes([epoch]) * 32, epoch=epoch)


def table(
    n: int, documents: Sequence[DocumentPlan], coming: Sequence[DocumentPlan] = (), *, purge: int = 1
) -> PlanTable:
    namespace = NamespacePlan(
        uid="uid-a",
        name="team/a",
        model="m",
        purge=Purge(purge, bytes([purge]) * 16),
        fence=Fence(purge, n, 1),
        documents=[*documents],
        coming=[*coming],
    )
    return PlanTable().apply(NodePlan(revision=Revision(1, n), namespaces=[namespace]), {})


def dropped_labels(old: PlanTable, new: PlanTable) -> list[str | None]:
    drops = reclaims(old, new)
    assert all(drop == Drop(RemovalCause.VERSION, "uid-a", document=drop.document) for drop in drops)
    return [drop.document for drop in drops]


def test_a_changed_document_gives_its_older_version_back() -> None:
    assert dropped_labels(table(1, [version(1)]), table(2, [version(2)])) == ["handbook@1"]


def test_a_version_that_was_warmed_ahead_survives_the_switch_to_it() -> None:
    waiting = table(1, [version(1)], [version(2)])
    assert dropped_labels(table(1, [version(1)]), waiting) == []
    assert dropped_labels(waiting, table(2, [version(2)])) == ["handbook@1"]


def test_a_version_that_was_given_up_is_given_back() -> None:
    assert dropped_labels(table(1, [version(1)], [version(2)]), table(2, [version(1)])) == ["handbook@2"]


def test_a_withdrawn_document_gives_all_its_versions_back() -> None:
    waiting = table(1, [version(1), version(1, "other")], [version(2)])
    assert dropped_labels(waiting, table(2, [version(1, "other")])) == ["handbook@1", "handbook@2"]


def test_i8_a_gone_namespace_is_erased_and_not_only_dropped() -> None:
    gone = NodePlan(revision=Revision(1, 2))
    assert reclaims(table(1, [version(1)]), PlanTable().apply(gone, {})) == []
    (order,) = erase_orders(gone, ["uid-a"])
    assert (order.which, order.subject, order.asked) == (("uid-a", WHOLE), Subject("uid-a"), False)
    asked = NodePlan(revision=Revision(1, 2), erase_uids=["uid-a"])
    assert [order.asked for order in erase_orders(asked, ["uid-a"])] == [True]


def test_i8_parts_are_ordered_with_the_secrets_that_survivors_go_between() -> None:
    namespace = NamespacePlan(
        uid="uid-a",
        name="team/a",
        model="m",
        purge=Purge(1, b"n"),
        fence=Fence(1, 1, 1),
        secret=b"new" * 11,
        former_secret=b"old" * 11,
        erasures=[
            ErasurePlan(id="e1", epoch=1, tenant=b"acme", user=b"jane"),
            ErasurePlan(id="e2", epoch=2, tenant=b"acme"),
            ErasurePlan(id="e3", epoch=3, document="manual"),
        ],
    )
    orders = erase_orders(NodePlan(revision=Revision(1, 1), namespaces=[namespace]), ["uid-a"])
    assert [order.subject for order in orders] == [
        Subject("uid-a", contributor=Contributor(b"acme", b"jane")),
        Subject("uid-a", contributor=Contributor(b"acme")),
        Subject("uid-a", document="manual"),
    ]
    assert {(order.secret, order.former_secret) for order in orders} == {(b"new" * 11, b"old" * 11)}
