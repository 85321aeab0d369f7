"""CacheNode objects: the ledger's durable records of one member, with what people want to see of it. Pure.

The records are what counts (I3): which boots may hold a lease on which namespaces, and the highest counters that the
member ever acknowledged. They are written before the first grant; the rest goes along, and by itself only where it
tells people something new.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvgrove_crds.base import API_VERSION
from kvgrove_crds.cache_node import (
    CacheNode,
    CacheNodeStatus,
    CacheNodeSummary,
    HeldBoot,
    HeldGeneration,
    HeldNamespace,
    PlanRevision,
)
from kvgrove_crds.conditions import CACHE_NODE_CONDITIONS, Condition
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.conditions import Judgement, conditions
from kvgrove_operator.member_events import MemberRecord
from kvgrove_operator.members import MemberView
from kvgrove_protocol.control import DAEMON, GATEWAY, ModelPlan, NamespaceReport, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import short

_KINDS = {DAEMON: "Daemon", GATEWAY: "Gateway"}
_MESSAGE = 512
MAX_BOOTS = 16
"""Recorded one by one of each namespace."""
EARLIER_BOOTS = "earlier"
"""In place of a boot's id: all boots that are over, as one."""


@dataclass(frozen=True)
class Fleetwide:
    """What the statuses of all members are composed from."""

    names: Mapping[str, str]
    """Namespace UID -> ``<k8s namespace>/<name>``."""
    models: Mapping[str, ModelPlan]
    revision: Revision
    now: datetime


def spec_of(member: str, role: str) -> dict[str, Any]:
    """The object without its status."""
    return {
        "apiVersion": API_VERSION,
        "kind": "CacheNode",
        "metadata": {"name": member},
        "spec": {"member": _KINDS[role], "nodeName": member},
    }


def compose(
    view: MemberView | None,
    records: Sequence[MemberRecord],
    before: CacheNodeStatus | None,
    around: Fleetwide,
) -> CacheNodeStatus:
    """The whole status. ``view``: None while the member is not connected; what it said last then stays."""
    before = before or CacheNodeStatus()
    ready, phase = _judge(view, around)
    reports: dict[str, NamespaceReport] = {}
    if view is not None and view.report is not None:
        reports = {report.uid: report for report in view.report.namespaces}
    generations = _generations(view, around) if view is not None else before.generations
    namespaces = _namespaces(records, reports, before, around, view.hello.boot if view is not None else "")
    loaded = sum(each.state == "Ready" for each in generations)
    warm = sum(each.ready for each in namespaces), sum(each.wanted for each in namespaces)
    heard = around.now.replace(second=0, microsecond=0) if view is not None else before.last_report_time
    return CacheNodeStatus(
        observed_generation=1,
        phase=phase,
        conditions=conditions(CACHE_NODE_CONDITIONS, {"Ready": ready}, before.conditions, 1, around.now),
        pod_uid=(view.hello.pod_uid or None) if view is not None else before.pod_uid,
        boot_id=view.hello.boot if view is not None else before.boot_id,
        capabilities=tuple(sorted(set(view.hello.capabilities))) if view is not None else before.capabilities,
        applied=PlanRevision(term=view.applied.term, n=view.applied.n) if view is not None else before.applied,
        last_report_time=heard,
        generations=generations,
        namespaces=namespaces,
        summary=CacheNodeSummary(generations=f"{loaded}/{len(generations)}", warm=f"{warm[0]}/{warm[1]}"),
    )


def tells_more(new: CacheNodeStatus, old: CacheNodeStatus | None) -> bool:
    """Whether ``new`` is worth a write of its own: idle members cause none, but for a sign of life now and then."""
    if old is None:
        return True
    return _plain(new) != _plain(old)


def records_of(node: CacheNode) -> list[MemberRecord]:
    """What the object says for the ledger."""
    role = DAEMON if node.spec.member == "Daemon" else GATEWAY
    held = node.status.namespaces if node.status is not None else ()
    return [
        MemberRecord(uid=each.uid, member=node.name, boot=boot.boot_id, role=role, seconds=boot.lease_seconds)
        for each in held
        for boot in each.boots
    ]


def fences_of(nodes: Iterable[CacheNode]) -> dict[str, Fence]:
    """Namespace UID -> the highest counters that any member is on record to have acknowledged."""
    found: dict[str, Fence] = {}
    for node in nodes:
        for each in node.status.namespaces if node.status is not None else ():
            before = found.get(each.uid, Fence(purge=0, documents=0, access=0))
            found[each.uid] = Fence(
                purge=max(before.purge, each.purge_counter),
                documents=max(before.documents, each.document_revision),
                access=max(before.access, each.access_revision),
            )
    return found


def _judge(view: MemberView | None, around: Fleetwide) -> tuple[Judgement, Any]:
    if view is None:
        message = "it is not connected; look at its Pod and at the network"
        return Judgement(False, ConditionReason.NODE_UNREACHABLE, message), "Unreachable"
    if view.report is None or view.applied.term < around.revision.term:
        return Judgement(False, ConditionReason.WAITING_FOR_NODES, "it has not applied a plan of this leader yet"), (
            "Pending"
        )
    return Judgement(True, ConditionReason.ALL_NODES_READY), "Ready"


def _generations(view: MemberView, around: Fleetwide) -> tuple[HeldGeneration, ...]:
    states: Mapping[str, Any] = {"ready": "Ready", "failed": "Failed"}
    found: dict[str, HeldGeneration] = {}
    for report in view.report.models if view.report is not None else ():
        plan = around.models.get(report.name)
        if plan is None or not plan.generation:
            continue
        found[plan.generation.hex()] = HeldGeneration(
            generation=plan.generation.hex(),
            model_version=report.name,
            layout=short(report.layout) if report.layout else "",
            state=states.get(report.state, "Loading"),
            message=report.message[:_MESSAGE],
        )
    return tuple(found[key] for key in sorted(found))


def _namespaces(
    records: Sequence[MemberRecord],
    reports: Mapping[str, NamespaceReport],
    before: CacheNodeStatus,
    around: Fleetwide,
    living: str,
) -> tuple[HeldNamespace, ...]:
    boots: dict[str, list[MemberRecord]] = {}
    for record in records:
        boots.setdefault(record.uid, []).append(record)
    known = {each.uid: each for each in before.namespaces}
    held: list[HeldNamespace] = []
    for uid in sorted(boots):
        old, report = known.get(uid), reports.get(uid)
        name = around.names.get(uid) or (f"{old.namespace}/{old.name}" if old is not None else "unknown/unknown")
        kube_namespace, _, own_name = name.partition("/")
        fence = report.fence if report is not None else Fence(purge=0, documents=0, access=0)
        held.append(  # a thousand of these for each of a hundred members: of facts that were checked where they came in
            HeldNamespace.model_construct(
                uid=uid,
                namespace=kube_namespace,
                name=own_name,
                boots=_boots(boots[uid], living),
                purge_counter=max(fence.purge, old.purge_counter if old is not None else 0),
                document_revision=max(fence.documents, old.document_revision if old is not None else 0),
                access_revision=max(fence.access, old.access_revision if old is not None else 0),
                bytes=report.bytes if report is not None else 0,
                ready=report.warm_ready if report is not None else 0,
                wanted=report.warm_wanted if report is not None else 0,
            )
        )
    return tuple(held)


def _boots(records: Sequence[MemberRecord], living: str) -> tuple[HeldBoot, ...]:
    """Of a member that restarts again and again only the longest lease of its earlier boots is kept: who waits for that
    waits long enough for each of them.
    """
    if len(records) > MAX_BOOTS:
        longest = max(record.seconds for record in records if record.boot != living)
        now_living = [record for record in records if record.boot == living]
        kept = [(record.boot, record.seconds) for record in now_living] + [(EARLIER_BOOTS, longest)]
    else:
        kept = [(record.boot, record.seconds) for record in records]
    return tuple(HeldBoot.model_construct(boot_id=boot, lease_seconds=seconds) for boot, seconds in kept)


def dumped(status: CacheNodeStatus | None) -> bytes:
    """In JSON, for `loaded`; empty for none."""
    return status.model_dump_json(by_alias=True, exclude_none=True).encode() if status is not None else b""


def loaded(content: bytes) -> CacheNodeStatus:
    """What `dumped` made."""
    return CacheNodeStatus.model_validate_json(content, by_alias=True, by_name=False)


def _plain(status: CacheNodeStatus) -> dict[str, Any]:
    """Without what changes all the time and surprises nobody."""
    said = status.model_dump(exclude={"last_report_time", "applied", "namespaces"})
    said["term"] = status.applied.term if status.applied is not None else 0
    said["namespaces"] = [
        tuple(getattr(each, name) for name in HeldNamespace.model_fields if name != "bytes")
        for each in status.namespaces
    ]
    said["conditions"] = [_verdict(condition) for condition in status.conditions]
    return said


def _verdict(condition: Condition) -> tuple[str, str, str]:
    return condition.type, condition.status, str(condition.reason)
