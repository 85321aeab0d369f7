"""The verdicts on a ModelVersion, and its whole status. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kvgrove_crds.conditions import MODEL_VERSION_CONDITIONS
from kvgrove_crds.model_version import (
    AdapterDigest,
    ModelVersion,
    ModelVersionStatus,
    ModelVersionSummary,
    NodeCounts,
    ResolvedDigests,
)
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator.conditions import Judgement, conditions
from kvgrove_operator.observed import READY
from kvgrove_operator.plan_problems import PlanProblem
from kvgrove_operator.work_queue import Trouble
from kvgrove_protocol.control import ModelPlan, ModelReport
from kvgrove_protocol.identity import GenerationInputs

Phase = Literal["Pending", "Loading", "Ready", "Degraded", "Failed", "Deleting"]

_FAILED = "failed"
_MISMATCH = "digest_mismatch"
_CODES = {"unsupported_model": Reason.UNSUPPORTED_ARCHITECTURE, "missing_model": Reason.WEIGHTS_MISSING}
_NAMED = 5
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelFacts:
    """What is known of one ModelVersion at one moment."""

    resource: ModelVersion
    before: ModelVersionStatus
    plan: ModelPlan | None
    nodes: Mapping[str, ModelReport | None]
    """Every node that should hold it -> its report; None: nothing yet."""
    connected: frozenset[str]
    nodes_wanted: int
    """Nodes that match the placement; some may have no Pod yet."""
    unscheduled: str
    """Why a Pod of it is not bound to a node, as the scheduler says; empty: all are."""
    overruled: str
    """What of its engine is not run as it says, and why; empty: nothing."""
    users: tuple[str, ...]
    """Namespaces that name it or are served by it, by API name."""
    problems: tuple[PlanProblem, ...]
    trouble: Trouble | None
    deleting: bool
    now: datetime

    @property
    def ready(self) -> list[str]:
        inputs = self.plan.inputs if self.plan is not None else None
        return [
            node
            for node, report in self.nodes.items()
            if report is not None and report.state == READY and inputs is not None and report.inputs == inputs
        ]

    @property
    def failed(self) -> dict[str, ModelReport]:
        return {node: report for node, report in self.nodes.items() if report is not None and report.state == _FAILED}

    @property
    def missing(self) -> list[str]:
        return sorted(node for node in self.nodes if node not in self.connected)

    @property
    def desired(self) -> int:
        return max(self.nodes_wanted, len(self.nodes))


def compose(facts: ModelFacts) -> ModelVersionStatus:
    """The status that follows ``facts.before``."""
    judged = _judge(facts)
    generation = facts.resource.metadata.generation or 0
    inputs = facts.plan.inputs if facts.plan is not None else None
    digest = facts.plan.generation.hex() if facts.plan is not None and facts.plan.generation else None
    reports = [report for report in facts.nodes.values() if report is not None]
    agreeing = sum(report.inputs == inputs for report in reports) if inputs is not None else 0
    return ModelVersionStatus(
        observed_generation=generation,
        phase=_phase(facts, judged),
        conditions=conditions(MODEL_VERSION_CONDITIONS, judged, facts.before.conditions, generation, facts.now),
        generation=digest,
        digests=_resolved(facts, inputs) if inputs is not None else None,
        nodes=NodeCounts(
            desired=facts.desired,
            loaded=sum(report.state == READY for report in reports),
            verified=agreeing,
            ready=len(facts.ready),
            failed=len(facts.failed),
            unreachable=len(facts.missing),
        ),
        max_model_len=max((report.max_model_len for report in reports), default=0) or None,
        used_by=len(facts.users),
        summary=ModelVersionSummary(
            generation=digest[:12] if digest is not None else "", nodes=f"{len(facts.ready)}/{facts.desired}"
        ),
    )


def unreadable(
    before: ModelVersionStatus, problem: PlanProblem, *, generation: int, now: datetime
) -> ModelVersionStatus:
    """The status of one whose spec does not read as one of this release; what is planned of it stays."""
    refused = Judgement(False, problem.reason, problem.message)
    judged = {
        "Ready": refused,
        "Reconciling": Judgement(False, Reason.UP_TO_DATE),
        "Stalled": Judgement(True, problem.reason, problem.message),
        "DigestsVerified": Judgement(None, Reason.DIGESTS_PENDING),
        "Supported": Judgement(None, Reason.SUPPORT_UNKNOWN),
    }
    made = conditions(MODEL_VERSION_CONDITIONS, judged, before.conditions, generation, now)
    return before.model_copy(update={"observed_generation": generation, "phase": "Failed", "conditions": made})


def _resolved(facts: ModelFacts, inputs: GenerationInputs) -> ResolvedDigests:
    """A digest that a node spelt in another way than the status has is left out."""
    named = (inputs.weights, inputs.tokenizer, inputs.chat_template)
    weights, tokenizer, chat_template = (each if _DIGEST.fullmatch(each) else None for each in named)
    agreeing = (report for report in facts.nodes.values() if report is not None and report.inputs == inputs)
    found = next((report.adapters for report in agreeing), None)
    if found is None:  # nobody is there to say it again
        held = facts.before.digests.adapters if facts.before.digests is not None else ()
    else:
        listed = ((adapter.name, found.get(adapter.name, "")) for adapter in facts.resource.spec.adapters)
        held = tuple(AdapterDigest(name=name, digest=digest) for name, digest in listed if _DIGEST.fullmatch(digest))
    return ResolvedDigests(weights=weights, tokenizer=tokenizer, chat_template=chat_template, adapters=held)


def _judge(facts: ModelFacts) -> dict[str, Judgement]:
    ready = _ready(facts)
    stalled = _stalled(facts)
    settled = ready.holds is True or stalled.holds is True
    return {
        "Ready": ready,
        "Reconciling": Judgement(False, Reason.UP_TO_DATE)
        if settled
        else Judgement(True, Reason.PROGRESSING, ready.message),
        "Stalled": stalled,
        "DigestsVerified": _digests(facts),
        "Supported": _supported(facts),
    }


def _ready(facts: ModelFacts) -> Judgement:
    if facts.deleting:
        if facts.users:
            names = ", ".join(facts.users[:_NAMED])
            return Judgement(False, Reason.IN_USE, f"used by {len(facts.users)} namespaces: {names}; point them away")
        return Judgement(False, Reason.DELETING)
    if facts.problems:
        return Judgement(False, facts.problems[0].reason, facts.problems[0].message)
    if not facts.nodes and not facts.nodes_wanted:
        return Judgement(False, Reason.NO_NODES, "no node matches spec.engine.nodeSelector and its tolerations")
    if facts.failed:
        node = min(facts.failed)
        return Judgement(False, Reason.NODE_FAILED, f"{node}: {facts.failed[node].message}")
    if facts.missing:
        return Judgement(False, Reason.NODE_UNREACHABLE, f"not connected: {', '.join(facts.missing[:_NAMED])}")
    if len(facts.ready) < facts.desired:
        waiting = f"; a Pod is not scheduled: {facts.unscheduled}" if facts.unscheduled else ""
        message = f"{len(facts.ready)} of {facts.desired} nodes are ready{waiting}"
        return Judgement(False, Reason.WAITING_FOR_NODES, message)
    overruled = f"; {facts.overruled}" if facts.overruled else ""
    return Judgement(True, Reason.ALL_NODES_READY, f"{len(facts.ready)} nodes{overruled}")


def _stalled(facts: ModelFacts) -> Judgement:
    if facts.trouble is not None and facts.trouble.exhausted:
        return Judgement(True, Reason.RETRIES_EXHAUSTED, facts.trouble.reason)
    if facts.deleting and facts.users:
        return Judgement(True, Reason.IN_USE, "it goes when no namespace uses it any more")
    if facts.problems:
        return Judgement(True, facts.problems[0].reason, facts.problems[0].message)
    return Judgement(False, Reason.NOT_STALLED)


def _digests(facts: ModelFacts) -> Judgement:
    for problem in facts.problems:
        if problem.reason in (Reason.DIGESTS_DISAGREE, Reason.DIGEST_PIN_MISMATCH):
            return Judgement(False, problem.reason, problem.message)
    for node, report in sorted(facts.failed.items()):
        if report.code == _MISMATCH:
            return Judgement(False, Reason.DIGEST_PIN_MISMATCH, f"{node}: {report.message}")
    if facts.plan is not None and facts.plan.generation:
        return Judgement(True, Reason.DIGESTS_AGREE)
    return Judgement(None, Reason.DIGESTS_PENDING)


def _supported(facts: ModelFacts) -> Judgement:
    for problem in facts.problems:
        if problem.reason is Reason.UNSUPPORTED_FORMAT:
            return Judgement(False, problem.reason, problem.message)
    for node, report in sorted(facts.failed.items()):
        if report.code in _CODES:
            return Judgement(False, _CODES[report.code], f"{node}: {report.message}")
    if facts.ready:
        return Judgement(True, Reason.SUPPORTED)
    return Judgement(None, Reason.SUPPORT_UNKNOWN)


def _phase(facts: ModelFacts, judged: Mapping[str, Judgement]) -> Phase:
    if facts.deleting:
        return "Deleting"
    if judged["Ready"].holds:
        return "Ready"
    if facts.problems or (facts.failed and not facts.ready):
        return "Failed"
    if facts.ready and (facts.failed or facts.missing):
        return "Degraded"
    return "Loading" if facts.nodes else "Pending"
