"""The verdicts on a namespace: its conditions and its phase. Pure.

Only what is evident is judged True. A namespace is Ready when requests are answered by it as declared: every node that
should be there is, enforces its fence, and holds what is to be warm. While another generation than the declared one
still serves it stays Ready, Promoted says how far the rollout is, and Warm is about the generation that comes.
"""

from datetime import timedelta
from typing import Literal

from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.conditions import Judgement
from kvgrove_operator.namespace_facts import NamespaceFacts
from kvgrove_operator.plan_state import Stage
from kvgrove_operator.rollout.table import Phase as RolloutPhase

Phase = Literal["Pending", "Warming", "Ready", "RollingOut", "Degraded", "Suspended", "Stalled", "Deleting"]

_NAMED = 5
_BLOCKING = (Reason.LOSSY_CODEC_FORBIDDEN, Reason.INVALID_SPEC, Reason.CRD_OUTDATED)
"""Of what is wrong with a namespace, what may mean that requests are not answered as declared."""
_INITIAL = 1
"""Each counter of the first fence that a namespace has: before it there was nothing to invalidate."""


def judge(facts: NamespaceFacts) -> dict[str, Judgement]:
    """Condition type -> verdict, for every type that a namespace has."""
    found = {
        "Warm": _warm_next(facts),
        "Promoted": _promoted(facts),
        "InvalidationComplete": _invalidation(facts),
        "ErasureVerified": _erasure(facts),
        "QuotaOK": _quota(facts),
    }
    found["Ready"] = ready = _ready(facts, _warm(facts))
    found["Stalled"] = stalled = _stalled(facts)
    under_way = [
        each
        for each in (ready, found["Promoted"], found["InvalidationComplete"], found["ErasureVerified"])
        if each.holds is not True and each.reason is not Reason.SUSPENDED
    ]
    if under_way and stalled.holds is not True:
        found["Reconciling"] = Judgement(True, Reason.PROGRESSING, under_way[0].message)
    else:
        found["Reconciling"] = Judgement(False, Reason.UP_TO_DATE)
    return found


def phase(facts: NamespaceFacts, judged: dict[str, Judgement]) -> Phase:
    ready = judged["Ready"]
    if ready.reason is Reason.SUSPENDED:
        return "Suspended"
    if judged["Stalled"].holds:
        return "Degraded" if facts.served is not None else "Stalled"
    if facts.served is None:
        return "Pending"
    if not judged["Promoted"].holds:
        return "RollingOut"
    if ready.holds:
        return "Ready"
    return "Warming" if ready.reason in (Reason.WARMING, Reason.WAITING_FOR_NODES) else "Degraded"


def _ready(facts: NamespaceFacts, warm: Judgement) -> Judgement:
    wanted = facts.wanted_model
    if facts.plan is None:
        if any(problem.reason is Reason.MODEL_VERSION_NOT_FOUND for problem in facts.problems):
            return Judgement(False, Reason.MODEL_VERSION_NOT_FOUND, facts.problems[0].message)
        return Judgement(False, Reason.MODEL_VERSION_NOT_READY, f"no ModelVersion has served it yet, waiting: {wanted}")
    if facts.served is None:
        return Judgement(
            False, Reason.MODEL_VERSION_NOT_READY, f"ModelVersion {facts.plan.model} has no generation yet"
        )
    blocking = [each for each in facts.problems if each.reason in _BLOCKING]
    if blocking:
        return Judgement(False, blocking[0].reason, blocking[0].message)
    if facts.resource.spec.suspend:
        return Judgement(False, Reason.SUSPENDED, "requests are answered without the cache")
    if not facts.nodes:
        return Judgement(False, Reason.NO_NODES, "no daemon runs; look at the DaemonSet and at the nodes' labels")
    if facts.missing:
        return Judgement(False, Reason.NODE_UNREACHABLE, f"not connected: {_list(facts.missing)}")
    if facts.behind:
        return Judgement(False, Reason.WAITING_FOR_NODES, f"waiting for {_list(facts.behind)}")
    if len(facts.nodes) < facts.nodes_wanted:
        message = f"{len(facts.nodes)} of {facts.nodes_wanted} nodes have a daemon"
        return Judgement(False, Reason.WAITING_FOR_NODES, message)
    if not warm.holds:
        return Judgement(False, warm.reason, warm.message)
    return Judgement(True, Reason.ALL_NODES_READY, f"{len(facts.nodes)} nodes")


def _warm_next(facts: NamespaceFacts) -> Judgement:
    """Of the generation that is to serve next, which is that of the declared model."""
    if not facts.coming:
        return _warm(facts)
    ready, wanted = facts.warmth
    said, rollout = facts.said, facts.rollout
    if RolloutPhase.WARMING not in (rollout.phase, rollout.stalled_in):
        return Judgement(True, Reason.WARM, f"{ready} of {wanted} blocks")
    return Judgement(False, said.reason, f"{ready} of {wanted} blocks; {said.message}")


def _warm(facts: NamespaceFacts) -> Judgement:
    if facts.plan is None or not facts.reports:
        return Judgement(None, Reason.WARMUP_NOT_MEASURED, "no node has reported it yet")
    if not facts.plan.warm and not facts.plan.coming:
        return Judgement(True, Reason.NOTHING_TO_WARM)
    ready = sum(report.warm_ready for report in facts.reports)
    wanted = sum(report.warm_wanted for report in facts.reports)
    if facts.warm:
        return Judgement(True, Reason.WARM, f"{ready} of {wanted} blocks")
    said = next((report.message for report in facts.reports if report.message), "")
    started, deadline = facts.before.warmth.started_at, facts.resource.spec.warmup.deadline.seconds
    if started is not None and facts.now - started > timedelta(seconds=deadline):
        message = f"{ready} of {wanted} blocks after {deadline:g} s; {said or 'look at the nodes'}"
        return Judgement(False, Reason.WARMUP_DEADLINE_EXCEEDED, message)
    return Judgement(False, Reason.WARMING, f"{ready} of {wanted} blocks" + (f"; {said}" if said else ""))


def _promoted(facts: NamespaceFacts) -> Judgement:
    if facts.served is None:
        return Judgement(False, Reason.LOADING, f"waiting for ModelVersion {facts.wanted_model}")
    said = facts.said
    return Judgement(said.promoted, said.reason, said.message)


def _invalidation(facts: NamespaceFacts) -> Judgement:
    found = facts.invalidation
    if found is None:
        return Judgement(None, Reason.INVALIDATION_PENDING, "it has not been planned yet")
    counts = f"{found.confirmed} confirmed, {found.expired} expired, {found.gone} gone, {found.pending} pending"
    if not found.complete:
        return Judgement(False, Reason.INVALIDATION_PENDING, counts)
    fence = found.fence
    if fence is not None and max(fence.purge, fence.documents, fence.access) <= _INITIAL:
        return Judgement(True, Reason.NOTHING_TO_INVALIDATE)
    return Judgement(True, Reason.INVALIDATION_CONFIRMED, counts)


def _erasure(facts: NamespaceFacts) -> Judgement:
    erasures = facts.state.erasures if facts.state is not None else ()
    if not erasures:
        return Judgement(True, Reason.NOTHING_TO_ERASE)
    waiting = [each for each in erasures if each.stage is not Stage.DONE]
    if not waiting:
        return Judgement(True, Reason.ERASURE_CONFIRMED, f"{len(erasures)} erasures")
    pending = sum(facts.proofs[each.plan.id].pending for each in waiting if each.plan.id in facts.proofs)
    names = _list(tuple(each.name for each in waiting))
    return Judgement(False, Reason.ERASURE_PENDING, f"{names}: {pending} receipts are missing")


def _quota(facts: NamespaceFacts) -> Judgement:
    if not facts.reports:
        return Judgement(None, Reason.QUOTA_UNKNOWN)
    bad = sorted(node for node, report in facts.nodes.items() if report is not None and not report.quota_ok)
    if bad:
        message = f"{_list(tuple(bad))}: lower spec.quota floors of this or another namespace, or enlarge spec.pool"
        return Judgement(False, Reason.QUOTA_EXCEEDS_POOL, message)
    return Judgement(True, Reason.WITHIN_QUOTA)


def _stalled(facts: NamespaceFacts) -> Judgement:
    if facts.trouble is not None and facts.trouble.exhausted:
        return Judgement(True, Reason.RETRIES_EXHAUSTED, facts.trouble.reason)
    if facts.problems:
        return Judgement(True, facts.problems[0].reason, facts.problems[0].message)
    said = facts.said
    if said.stuck:
        return Judgement(True, said.reason, said.message)
    warm = _warm(facts)
    if warm.reason is Reason.WARMUP_DEADLINE_EXCEEDED:
        return Judgement(True, warm.reason, warm.message)
    return Judgement(False, Reason.NOT_STALLED)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
