"""What a node tells the planner: what it enforces, holds and has done. Pure: copies of state in, a report's parts out.

A report is an acknowledgement (I3, I8): a fence is named only when the table that enforces it is in force, and warmth
only for the warm set of that very fence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgrove_daemon.commands import WarmFence
from kvgrove_daemon.core import Published
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.warm_set import Warmth
from kvgrove_protocol.control import GenerationReport, NamespaceReport
from kvgrove_protocol.errors import KvgroveError
from kvgrove_protocol.fence import Fence

_NOTHING_ENFORCED = Fence(0, 0, 0)


@dataclass(frozen=True)
class NodeState:
    """Copies of what several threads own, taken together."""

    table: PlanTable
    published: Published
    warm_problems: Mapping[str, KvgroveError]
    """Namespace UID -> why its warm set cannot be assembled."""
    epochs: Mapping[str, int]
    """Namespace UID -> highest purge counter that this node ever applied."""


def warm_fence(namespace: HostedNamespace) -> WarmFence:
    """What a warm set of this namespace is resolved under."""
    return WarmFence(namespace.plan.fence, tuple(each.epoch for each in namespace.plan.coming))


def namespace_reports(state: NodeState) -> list[NamespaceReport]:
    """One for each namespace that is in force here, or was refused."""
    table = state.table
    reports = [_in_force(uid, namespace, state) for uid, namespace in table.namespaces.items()]
    for uid in table.problems.keys() - table.namespaces.keys():
        # Nothing of it is enforced here, and the planner must learn how high its counter has been.
        seen, problem = state.epochs.get(uid, 0), table.problems[uid]
        reports.append(
            NamespaceReport(
                uid=uid, fence=_NOTHING_ENFORCED, purge_counter=seen, code=problem.code, message=problem.message
            )
        )
    return reports


def _in_force(uid: str, namespace: HostedNamespace, state: NodeState) -> NamespaceReport:
    published = state.published
    served = uid, namespace.generation
    warmth, usage = published.warmth.get(served, Warmth()), published.usage.get(uid)
    quota_problem = published.quota_problems.get(uid)
    problem = state.table.problems.get(uid) or state.warm_problems.get(uid) or quota_problem
    resolved = namespace.realm is not None and published.warm_fences.get(served) == warm_fence(namespace)
    coming = _coming(uid, namespace, published)
    return NamespaceReport(
        uid=uid,
        fence=namespace.plan.fence,
        purge_counter=namespace.plan.purge.counter,
        warm_ready=warmth.ready,
        warm_wanted=warmth.wanted,
        warm_resolved=resolved,
        coming=[each.epoch for each in namespace.plan.coming] if coming is not None else [],
        coming_ready=coming.coming_ready if coming is not None else 0,
        coming_wanted=coming.coming_wanted if coming is not None else 0,
        generations=[_generation(uid, each, published) for each in namespace.served()] if namespace.others else [],
        blocks=usage.blocks if usage is not None else 0,
        bytes=usage.bytes if usage is not None else 0,
        quota_ok=quota_problem is None,
        code=problem.code if problem is not None else "",
        message=problem.message if problem is not None else "",
    )


def _coming(uid: str, namespace: HostedNamespace, published: Published) -> Warmth | None:
    """How warm the coming versions of documents are under every generation that takes new conversations together, as
    they come into force under all of them at once; None: the warm set of one of these is not resolved yet, or this node
    holds none of them.

    One without traffic (still warming, or kept for a way back) holds no document up.
    """
    weights = {each.model: each.weight for each in namespace.plan.generations} | {namespace.plan.model: 1}
    taking = [each for each in namespace.served() if each.model is not None and weights[each.model.name]]
    total = Warmth()
    for each in taking:
        served = uid, each.generation
        if published.warm_fences.get(served) != warm_fence(namespace):
            return None
        warmth = published.warmth.get(served, Warmth())
        total = replace(
            total,
            coming_ready=total.coming_ready + warmth.coming_ready,
            coming_wanted=total.coming_wanted + warmth.coming_wanted,
        )
    return total if taking else None


def _generation(uid: str, namespace: HostedNamespace, published: Published) -> GenerationReport:
    served = uid, namespace.generation
    warmth = published.warmth.get(served, Warmth())
    return GenerationReport(
        generation=namespace.generation,
        warm_ready=warmth.ready,
        warm_wanted=warmth.wanted,
        warm_resolved=published.warm_fences.get(served) == warm_fence(namespace),
    )
