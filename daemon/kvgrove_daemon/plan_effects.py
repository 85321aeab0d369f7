"""What has to be done after a plan table was swapped. Pure: two tables in, commands out.

None of it is needed for freshness (the old keys can no longer be formed): it gives bytes back, and says what is gone.
"""

from collections.abc import Mapping

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.commands import Drop
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.quotas import RoomPlan


def reclaims(old: PlanTable, new: PlanTable) -> list[Drop]:
    """Blocks that no request can reach any more: of moved roots, changed or withdrawn documents.

    A generation that is not served any more keeps its blocks until the plan has them erased, which gives a receipt, as
    for a namespace that is gone (`erase_orders`).
    """
    drops: list[Drop] = []
    for uid, before in old.namespaces.items():
        after = new.namespaces.get(uid)
        if after is None:
            continue
        if _root_epoch(before) != _root_epoch(after):
            drops += [Drop(RemovalCause.VERSION, uid, root=root) for root in sorted(before.roots())]
            continue
        readable = readable_versions(after)
        drops += [
            Drop(RemovalCause.VERSION, uid, document=label) for label in sorted(readable_versions(before) - readable)
        ]
    return drops


def readable_versions(namespace: HostedNamespace) -> set[str]:
    """Versions of documents that may be read now or soon."""
    return {document.reference.label for document in (*namespace.plan.documents, *namespace.plan.coming)}


def _root_epoch(namespace: HostedNamespace) -> tuple[int, bytes, int]:
    plan = namespace.plan
    return (plan.purge.counter, plan.purge.nonce, plan.policy_version)


def rooms(table: PlanTable) -> Mapping[str, RoomPlan]:
    """Namespace UID -> what the plan says of its room."""
    return {
        uid: RoomPlan(
            generation=namespace.model.generation if namespace.model is not None else b"",
            quota=namespace.plan.quota,
            tenant_share=namespace.plan.tenant_share,
            ttl=namespace.plan.ttl,
            eviction=namespace.plan.eviction,
        )
        for uid, namespace in table.namespaces.items()
    }
