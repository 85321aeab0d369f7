"""The whole status of a namespace, as it is written: verdicts, counts and texts for columns. Pure.

Everything in it is about one generation of the spec: the one that is planned.
"""

from datetime import UTC, datetime

from kvgrove_crds.conditions import NAMESPACE_CONDITIONS
from kvgrove_crds.namespace_status import (
    DocumentStatus,
    ErasureStatus,
    InvalidationStatus,
    NamespaceSummary,
    PromptCacheNamespaceStatus,
    PurgeStatus,
    RolloutStatus,
    WarmthStatus,
    WorstNode,
)
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.conditions import Judgement, conditions
from kvgrove_operator.deletion import Verdict
from kvgrove_operator.namespace_facts import NamespaceFacts
from kvgrove_operator.namespace_judgements import judge, phase
from kvgrove_operator.plan_state import NamespaceState, Proof, Stage
from kvgrove_operator.rollout.due import weight
from kvgrove_operator.rollout.table import ENDS, Phase
from kvgrove_protocol.identity import changed_fields

_WORST = 5
_MESSAGE = 512


def compose(facts: NamespaceFacts) -> PromptCacheNamespaceStatus:
    """The status that follows ``facts.before``."""
    judged = judge(facts)
    before, generation = facts.before, facts.resource.metadata.generation or 0
    ready, wanted = facts.warmth
    rollout = facts.rollout
    moment = facts.now.replace(microsecond=0)
    warming = judged["Warm"].holds is not True
    served, declared = facts.served, facts.models.get(facts.wanted_model)
    previous = rollout.previous.generation.hex() if rollout.previous is not None else None
    return PromptCacheNamespaceStatus(
        observed_generation=generation,
        phase=phase(facts, judged),
        conditions=conditions(NAMESPACE_CONDITIONS, judged, before.conditions, generation, facts.now),
        active_generation=served.generation.hex() if served is not None else before.active_generation,
        desired_generation=declared.generation.hex() if declared is not None and declared.generation else None,
        previous_generation=previous or None,
        purge=_purge(facts.state) or before.purge,
        document_revision=facts.state.document_revision if facts.state is not None else before.document_revision,
        access_revision=facts.state.access_revision if facts.state is not None else before.access_revision,
        documents=_documents(facts.state),
        rollout=_rollout(facts),
        warmth=WarmthStatus(
            ready=ready,
            wanted=wanted,
            started_at=(before.warmth.started_at or moment) if warming and facts.reports else None,
        ),
        invalidation=_invalidation(facts, moment),
        erasure=_erasure(facts, moment),
        worst_nodes=_worst(facts),
        summary=NamespaceSummary(
            generation=served.generation.hex()[:12] if served is not None else "",
            warm=f"{ready}/{wanted}" if facts.reports else "",
        ),
    )


def deleting(
    before: PromptCacheNamespaceStatus,
    verdict: Verdict,
    proof: Proof,
    *,
    generation: int,
    requested_at: datetime,
    now: datetime,
) -> PromptCacheNamespaceStatus:
    """The status of one whose object is being deleted."""
    owed = verdict.judgement
    stuck = owed.reason in (Reason.NODE_UNREACHABLE, Reason.NODE_FAILED)
    kept = {each.type: Judgement(_truth(each.status), Reason.DELETING) for each in before.conditions}
    judged = {each.value: Judgement(False, Reason.DELETING) for each in NAMESPACE_CONDITIONS} | {
        "Promoted": kept.get("Promoted", Judgement(False, Reason.DELETING)),
        "Ready": Judgement(False, Reason.DELETING, "everything of it is being erased"),
        "Reconciling": Judgement(not verdict.may_go, Reason.DELETING, owed.message),
        "Stalled": Judgement(True, owed.reason, owed.message) if stuck else Judgement(False, Reason.NOT_STALLED),
        "InvalidationComplete": Judgement(True, Reason.INVALIDATION_CONFIRMED)
        if owed.holds
        else Judgement(False, Reason.INVALIDATION_PENDING, owed.message),
        "ErasureVerified": owed,
    }
    moment = now.replace(microsecond=0)
    erasure = ErasureStatus(
        revision=before.erasure.revision if before.phase == "Deleting" else before.erasure.revision + 1,
        requested_at=requested_at,
        completed_at=(before.erasure.completed_at or moment) if verdict.may_go else None,
        receipts=proof.confirmed,
        shredded=proof.gone,
        waived=len(verdict.waived),
        unreachable=len(verdict.debt.unreachable),
        failed=len(verdict.debt.failed),
        pending=len(verdict.debt.pending),
    )
    return before.model_copy(
        update={
            "observed_generation": generation,
            "phase": "Deleting",
            "conditions": conditions(NAMESPACE_CONDITIONS, judged, before.conditions, generation, now),
            "erasure": erasure,
            "worst_nodes": tuple(
                WorstNode(node=member, reason=Reason.NODE_UNREACHABLE) for member in verdict.debt.unreachable[:_WORST]
            ),
        }
    )


def _purge(state: NamespaceState | None) -> PurgeStatus | None:
    if state is None:
        return None
    return PurgeStatus(counter=state.purge.counter, nonce=state.purge.nonce.hex(), observed_epoch=state.purge_epoch)


def _documents(state: NamespaceState | None) -> tuple[DocumentStatus, ...]:
    if state is None:
        return ()
    return tuple(
        DocumentStatus(name=name, version=entry.version, digest=f"sha256:{entry.digest.hex()}", epoch=entry.epoch)
        for name, entry in state.documents.items()
    )


def _rollout(facts: NamespaceFacts) -> RolloutStatus:
    state, spec = facts.rollout, facts.resource.spec.rollout
    met = state.active is not None and state.active.model == facts.wanted_model
    return RolloutStatus(
        phase=state.phase.value,
        step=state.step,
        weight=100 if met and state.phase in ENDS else weight(state, spec),
        step_started_at=_moment(state.since) if state.phase is Phase.SHIFTING else None,
        started_at=_moment(state.started_at),
        promoted_at=_moment(state.promoted_at),
        changed_fields=_changed_fields(facts),
        failures=state.analysis.failures,
        inconclusive=state.analysis.inconclusive,
        not_measured=state.analysis.not_measured,
    )


def _changed_fields(facts: NamespaceFacts) -> tuple[str, ...]:
    """Of the identity of what comes, against what serves."""
    state = facts.rollout
    if state.active is None or state.candidate is None:
        return ()
    old, new = facts.models.get(state.active.model), facts.models.get(state.candidate.model)
    if old is None or new is None or old.inputs is None or new.inputs is None:
        return ()
    return changed_fields(old.inputs, new.inputs)


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds else None


def _invalidation(facts: NamespaceFacts, moment: datetime) -> InvalidationStatus:
    found, before = facts.invalidation, facts.before.invalidation
    if found is None or found.fence is None:
        return before
    revision = found.fence.purge + found.fence.documents + found.fence.access
    same = revision == before.revision
    completed = (before.completed_at or moment) if same else moment
    return InvalidationStatus(
        revision=revision,
        requested_at=before.requested_at if same else moment,
        completed_at=completed if found.complete else None,
        confirmed=found.confirmed,
        expired=found.expired,
        gone=found.gone,
        pending=found.pending,
    )


def _erasure(facts: NamespaceFacts, moment: datetime) -> ErasureStatus:
    before = facts.before.erasure
    if facts.state is None or not facts.state.erasures:
        return before
    entries = facts.state.erasures
    proofs = [each.proof or facts.proofs.get(each.plan.id, Proof()) for each in entries]
    done = all(each.stage is Stage.DONE for each in entries)
    same = before.revision == facts.state.erasure_epoch
    worst = max(proofs, key=lambda proof: proof.pending)
    return ErasureStatus(
        revision=facts.state.erasure_epoch,
        requested_at=before.requested_at if same else moment,
        completed_at=((before.completed_at if same else None) or moment) if done else None,
        receipts=worst.confirmed,
        shredded=worst.gone,
        pending=worst.pending,
    )


def _worst(facts: NamespaceFacts) -> tuple[WorstNode, ...]:
    found = [WorstNode(node=node, reason=Reason.NODE_UNREACHABLE) for node in facts.missing]
    found += [WorstNode(node=node, reason=Reason.WAITING_FOR_NODES) for node in facts.behind]
    found += [
        WorstNode(node=node, reason=Reason.NODE_FAILED, message=report.message[:_MESSAGE])
        for node, report in sorted(facts.nodes.items())
        if report is not None and report.message and node not in facts.behind
    ]
    return tuple(found[:_WORST])


def _truth(status: str) -> bool | None:
    return {"True": True, "False": False}.get(status)
