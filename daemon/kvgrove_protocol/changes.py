"""Plans and reports are levels; what goes over the link is what changed since one that both sides hold. Pure.

A fleet of a hundred members with a thousand namespaces would otherwise move, and read, all of them a hundred times for
each change of one. Nothing else depends on it: `plan_since` then `plan_with` is the plan, `report_since` then
`report_with` is the report, and whoever lacks what a change is based on asks for the whole.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from kvgrove_protocol.control import NodePlan, NodeReport, PlanChanges
from kvgrove_protocol.errors import Malformed

KEPT_PLANS: Final = 16
"""Newest plans that either side keeps to base changes on: as many as may be made while one is applied."""


class _Named(Protocol):
    @property
    def uid(self) -> str: ...


N = TypeVar("N", bound=_Named)


def plan_since(base: NodePlan, plan: NodePlan) -> PlanChanges:
    """What makes ``plan`` of ``base``."""
    changed, gone = _since(base.namespaces, plan.namespaces)
    return PlanChanges(
        revision=plan.revision,
        base=base.revision,
        models=None if plan.models == base.models else plan.models,
        namespaces=changed,
        gone=gone,
        erase_uids=None if plan.erase_uids == base.erase_uids else plan.erase_uids,
        nodes=None if plan.nodes == base.nodes else plan.nodes,
    )


def plan_with(base: NodePlan, changes: PlanChanges) -> NodePlan:
    """The plan that ``changes`` were made from. Its namespaces are in the order of their names, as planners have them.

    Raises Malformed where ``base`` is another plan than the one they are based on.
    """
    if base.revision != changes.base:
        raise Malformed("base", "is not the plan that is held")
    namespaces = _with(base.namespaces, changes.namespaces, changes.gone)
    namespaces.sort(key=lambda each: (each.name, each.uid))
    return NodePlan(
        revision=changes.revision,
        models=base.models if changes.models is None else changes.models,
        namespaces=namespaces,
        erase_uids=base.erase_uids if changes.erase_uids is None else changes.erase_uids,
        nodes=base.nodes if changes.nodes is None else changes.nodes,
    )


def report_since(base: NodeReport, report: NodeReport) -> NodeReport:
    """``report`` without the namespaces that stand as ``base`` says, which is a whole one."""
    changed, gone = _since(base.namespaces, report.namespaces)
    return replace(report, namespaces=changed, base=base.report_id, gone=gone)


def report_with(base: NodeReport | None, report: NodeReport) -> NodeReport:
    """The whole of ``report``. Its namespaces may be in another order; parts that did not change are those of ``base``.

    Raises Malformed where ``base`` is another report than the one it is based on.
    """
    if not report.base:
        return report
    if base is None or base.report_id != report.base:
        raise Malformed("base", "is not the report that was heard last")
    if not report.namespaces and not report.gone:
        namespaces = base.namespaces
    else:
        namespaces = _with(base.namespaces, report.namespaces, report.gone)
    models = base.models if report.models == base.models else report.models
    receipts = base.receipts if report.receipts == base.receipts else report.receipts
    return replace(report, models=models, namespaces=namespaces, receipts=receipts, base=0, gone=[])


def _since(base: Sequence[N], now: Sequence[N]) -> tuple[list[N], list[str]]:
    known = {each.uid: each for each in base}
    changed = [each for each in now if known.pop(each.uid, None) != each]
    return changed, [*known]


def _with(base: Sequence[N], changed: Sequence[N], gone: Sequence[str]) -> list[N]:
    found = {each.uid: each for each in base}
    for uid in gone:
        found.pop(uid, None)
    for each in changed:
        found[each.uid] = each
    return [*found.values()]
