"""CacheNode objects: the ledger's durable records of one member, with what people want to see of it. Pure.

The records are what counts (I3): which boots may hold a lease on which namespaces, and the highest counters that the
member ever acknowledged. They are written before the first grant; the rest goes along, and by itself only where it
tells people something new.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Any

from kvgrove_crds.base import API_VERSION
from kvgrove_crds.cache_node import (
    SHOWN_NAMESPACES,
    CacheNode,
    CacheNodeStatus,
    CacheNodeSummary,
    HeldGeneration,
    HeldNamespace,
    PlanRevision,
)
from kvgrove_crds.conditions import CACHE_NODE_CONDITIONS, Condition
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator import member_records
from kvgrove_operator.conditions import Judgement, conditions
from kvgrove_operator.member_events import MemberRecord
from kvgrove_operator.member_records import MemberRecords
from kvgrove_operator.members import MemberView
from kvgrove_protocol.control import DAEMON, GATEWAY, ModelPlan, NamespaceReport, Revision
from kvgrove_protocol.fence import Fence, highest
from kvgrove_protocol.identity import short

_KINDS = {DAEMON: "Daemon", GATEWAY: "Gateway"}
_MESSAGE = 512


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
    leases: Sequence[MemberRecord],
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
    earlier = member_records.loaded(before.records)
    fences = {uid: highest(earlier.fence(uid), report.fence) for uid, report in reports.items()}
    fences = {uid: holding.fence for uid, holding in earlier.held.items()} | fences
    kept = member_records.records_of(leases, fences, view.hello.boot if view is not None else "")
    loaded = sum(each.state == "Ready" for each in generations)
    heard = [reports[uid] for uid in kept.held if uid in reports]
    warm = sum(each.warm_ready for each in heard), sum(each.warm_wanted for each in heard)
    moment = around.now.replace(second=0, microsecond=0) if view is not None else before.last_report_time
    return CacheNodeStatus(
        observed_generation=1,
        phase=phase,
        conditions=conditions(CACHE_NODE_CONDITIONS, {"Ready": ready}, before.conditions, 1, around.now),
        pod_uid=(view.hello.pod_uid or None) if view is not None else before.pod_uid,
        boot_id=view.hello.boot if view is not None else before.boot_id,
        capabilities=tuple(sorted(set(view.hello.capabilities))) if view is not None else before.capabilities,
        applied=PlanRevision(term=view.applied.term, n=view.applied.n) if view is not None else before.applied,
        last_report_time=moment,
        generations=generations,
        held=len(kept.held),
        namespaces=_shown(kept, reports, around.names),
        records=member_records.dumped(kept),
        summary=CacheNodeSummary(generations=f"{loaded}/{len(generations)}", warm=f"{warm[0]}/{warm[1]}"),
    )


def tells_more(new: CacheNodeStatus, old: CacheNodeStatus | None) -> bool:
    """Whether ``new`` is worth a write of its own: idle members cause none, but for a sign of life now and then."""
    if old is None:
        return True
    return _plain(new) != _plain(old)


def leases_of(node: CacheNode) -> list[MemberRecord]:
    """What the object says for the ledger. Raises ValueError where its records are not the operator's."""
    return _records(node).leases(node.name, DAEMON if node.spec.member == "Daemon" else GATEWAY)


def fences_of(nodes: Iterable[CacheNode]) -> dict[str, Fence]:
    """Namespace UID -> the highest counters that any member is on record to have acknowledged."""
    found: dict[str, Fence] = {}
    for node in nodes:
        for uid, holding in _records(node).held.items():
            found[uid] = highest(found.get(uid), holding.fence)
    return found


def _records(node: CacheNode) -> MemberRecords:
    return member_records.loaded(node.status.records if node.status is not None else "")


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


def _shown(
    records: MemberRecords, reports: Mapping[str, NamespaceReport], names: Mapping[str, str]
) -> tuple[HeldNamespace, ...]:
    """Those that are not warm come first."""
    known = [(uid, names[uid], reports.get(uid)) for uid in records.held if uid in names]
    ranked = nsmallest(SHOWN_NAMESPACES, known, key=lambda each: (_warm(each[2]), each[1]))
    return tuple(
        HeldNamespace(
            uid=uid,
            namespace=name.partition("/")[0],
            name=name.partition("/")[2],
            bytes=report.bytes if report is not None else 0,
            ready=report.warm_ready if report is not None else 0,
            wanted=report.warm_wanted if report is not None else 0,
        )
        for uid, name, report in ranked
    )


def _warm(report: NamespaceReport | None) -> bool:
    return report is not None and report.warm_ready >= report.warm_wanted


def dumped(status: CacheNodeStatus | None) -> bytes:
    """In JSON, for `loaded`; empty for none."""
    return status.model_dump_json(by_alias=True, exclude_none=True).encode() if status is not None else b""


def loaded(content: bytes) -> CacheNodeStatus:
    """What `dumped` made."""
    return CacheNodeStatus.model_validate_json(content, by_alias=True, by_name=False)


def _plain(status: CacheNodeStatus) -> dict[str, Any]:
    """Without what changes all the time and surprises nobody."""
    volatile = dict.fromkeys(("last_report_time", "applied", "conditions"), True)
    said = status.model_dump(exclude={**volatile, "namespaces": {"__all__": {"bytes"}}})
    said["term"] = status.applied.term if status.applied is not None else 0
    said["conditions"] = [_verdict(condition) for condition in status.conditions]
    return said


def _verdict(condition: Condition) -> tuple[str, str, str]:
    return condition.type, condition.status, str(condition.reason)
