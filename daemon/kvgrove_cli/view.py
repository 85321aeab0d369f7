"""From what was planned and what members reported to what people read. Pure.

Judges nothing that is not evident from its arguments: a namespace is Ready when every running node enforces its fence
and holds what is to be warm.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvgrove_cli.processes import ChildState
from kvgrove_cli.status import (
    ErasureStatus,
    FleetStatus,
    InvalidationStatus,
    MemberStatus,
    ModelStatus,
    NamespaceStatus,
    Problem,
    RemovedStatus,
    RolloutStatus,
)
from kvgrove_crds.model_version import ModelVersion
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.plan_state import ErasureState, Proof, Stage
from kvgrove_operator.rollout.due import weight
from kvgrove_operator.rollout.facts import RolloutState
from kvgrove_operator.rollout.table import Phase
from kvgrove_operator.rollout.words import Said, said
from kvgrove_protocol.control import ModelPlan, ModelReport, NamespacePlan, NamespaceReport, NodeReport
from kvgrove_protocol.identity import short
from kvgrove_protocol.receipts import Place


@dataclass(frozen=True)
class Nodes:
    """The newest report of each daemon that should be there; None where it has not reported yet in this boot."""

    reports: Mapping[str, NodeReport | None]

    def of_model(self, name: str) -> dict[str, ModelReport | None]:
        return {
            node: next((m for m in report.models if m.name == name), None) if report is not None else None
            for node, report in self.reports.items()
        }

    def of_namespace(self, uid: str) -> dict[str, NamespaceReport | None]:
        return {
            node: next((n for n in report.namespaces if n.uid == uid), None) if report is not None else None
            for node, report in self.reports.items()
        }


@dataclass(frozen=True)
class View:
    """What the planner knows."""

    revision: str
    in_force: Mapping[str, str]
    """Role -> revision of the plan that members of that role are to apply."""
    namespaces: list[NamespaceStatus]
    models: list[ModelStatus]
    problems: list[Problem]
    removed: list[RemovedStatus]


def fleet_status(pid: int, view: View, members: Sequence[MemberStatus], refused: Sequence[Problem]) -> FleetStatus:
    """The whole document. ``refused``: what is wrong with manifests that were not taken over.

    Members that were stopped on purpose keep nobody from being ready; a gateway without an address does.
    """
    wanted = [member for member in members if member.state != ChildState.STOPPED]
    fallen = [
        Problem(object=f"member {member.name}", reason=f"Process{member.state.capitalize()}", message=member.message)
        for member in wanted
        if member.state != ChildState.RUNNING
    ]
    problems = [*refused, *view.problems, *fallen]
    return FleetStatus(
        pid=pid,
        revision=view.revision,
        ready=not problems
        and all(
            member.connected and member.applied == view.in_force[member.role] and member.address for member in wanted
        )
        and all(model.state == "Ready" for model in view.models)
        and all(namespace.phase in ("Ready", "Suspended") for namespace in view.namespaces),
        namespaces=view.namespaces,
        models=view.models,
        members=[*members],
        problems=problems,
        removed=view.removed,
    )


def in_one_line(current: FleetStatus) -> str:
    """What a fleet that is not where it should be waits for."""
    waiting = [f"{n.name} is {n.phase}" + (f" ({n.message})" if n.message else "") for n in current.namespaces]
    waiting += [f"{m.name} is {m.state}" for m in current.models if m.state != "Ready"]
    waiting += [f"{m.name} is {m.state}, plan {m.applied}" for m in current.members]
    return "; ".join([*waiting, *(p.message for p in current.problems)])


def model_status(model: ModelVersion, plan: ModelPlan | None, nodes: Nodes, problem: str) -> ModelStatus:
    """``problem``: what the planner says against it, or empty."""
    reports = nodes.of_model(model.name)
    ready = [report for report in reports.values() if report is not None and report.state == "ready"]
    failed = [
        f"{node}: {report.message}"
        for node, report in reports.items()
        if report is not None and report.state == "failed"
    ]
    inputs = plan.inputs if plan is not None else None
    if failed:
        state, message = "Failed", failed[0]
    elif problem:
        state, message = "Stalled", problem
    elif plan is not None and plan.generation and len(ready) == len(reports):
        state, message = "Ready", ""
    else:
        state, message = "Loading", ""
    return ModelStatus(
        name=model.name,
        state=state,
        generation=short(plan.generation) if plan is not None else "",
        weights=inputs.weights if inputs is not None else "",
        tokenizer=inputs.tokenizer if inputs is not None else "",
        chat_template=inputs.chat_template if inputs is not None else "",
        nodes_ready=len(ready),
        nodes=len(reports),
        message=message,
    )


def namespace_status(
    namespace: PromptCacheNamespace,
    uid: str,
    *,
    plan: NamespacePlan | None,
    models: Mapping[str, ModelPlan],
    nodes: Nodes,
    invalidation: InvalidationStatus,
    erasures: Sequence[ErasureStatus],
    rollout: RolloutState,
    problem: str,
) -> NamespaceStatus:
    """``plan``: what members are told of it now; None while no model can serve it."""
    reports = nodes.of_namespace(uid)
    warm_ready = sum(report.warm_ready for report in reports.values() if report is not None)
    warm_wanted = sum(report.warm_wanted for report in reports.values() if report is not None)
    model = models.get(plan.model) if plan is not None else None
    wanted = namespace.spec.model_version_ref.name
    told = said(rollout, namespace.spec.rollout, wanted)
    if plan is None or model is None or not model.generation:
        phase, message = "Pending", problem or f"waiting for ModelVersion {wanted}"
    elif problem:
        phase, message = "Degraded", problem
    elif plan.suspended:
        phase, message = "Suspended", "the cache is switched off: requests are answered cold"
    elif not told.promoted:
        phase, message = "Degraded" if told.stuck else "RollingOut", told.message
    else:
        behind = [node for node, report in reports.items() if report is None or not report.fence.covers(plan.fence)]
        warm = warm_ready >= warm_wanted and all(r.warm_resolved for r in reports.values() if r is not None)
        phase = "Ready" if warm and not behind else "Warming"
        message = f"waiting for {', '.join(behind)}" if behind else _complaint(reports)
    return NamespaceStatus(
        name=namespace.api_name,
        uid=uid,
        phase=phase,
        model=plan.model if plan is not None else "",
        generation=short(model.generation) if model is not None and model.generation else "",
        prefixes=[prefix.name for prefix in plan.prefixes] if plan is not None else [],
        fence=(plan.fence.purge, plan.fence.documents, plan.fence.access) if plan is not None else (0, 0, 0),
        warm_ready=warm_ready,
        warm_wanted=warm_wanted,
        invalidation=invalidation,
        invalidation_complete=invalidation.complete,
        message=message,
        erasures=[*erasures],
        rollout=_rollout(rollout, namespace, told, reports),
    )


def _rollout(
    state: RolloutState, namespace: PromptCacheNamespace, told: Said, reports: Mapping[str, NamespaceReport | None]
) -> RolloutStatus:
    candidate, spec = state.candidate, namespace.spec.rollout
    several = [each for report in reports.values() if report is not None for each in report.generations]
    warm = [each for each in several if candidate is not None and each.generation == candidate.generation]
    return RolloutStatus(
        phase=state.phase.value,
        step=state.step + 1 if state.phase is Phase.SHIFTING else 0,
        steps=len(spec.steps),
        weight=weight(state, spec),
        candidate=candidate.model if candidate is not None else "",
        candidate_generation=short(candidate.generation) if candidate is not None and candidate.generation else "",
        previous=state.previous.model if state.previous is not None else "",
        reason=told.reason.value,
        message=told.message,
        warm_ready=sum(each.warm_ready for each in warm),
        warm_wanted=sum(each.warm_wanted for each in warm),
        failures=state.analysis.failures,
        inconclusive=state.analysis.inconclusive,
        not_measured=state.analysis.not_measured,
    )


def erasure_status(erasure: ErasureState, proof: Proof) -> ErasureStatus:
    """``proof``: as it stands now; of one that is done, the one on record counts."""
    states = {Stage.WAITING: "Waiting", Stage.CURRENT: "UnderWay", Stage.DONE: "Verified"}
    return _erasure(erasure.name, erasure.plan.id, states[erasure.stage], erasure.proof or proof)


def removed_status(name: str, uid: str, proof: Proof) -> RemovedStatus:
    return RemovedStatus(name=name, uid=uid, erasure=_erasure("", "", "UnderWay", proof))


def _erasure(name: str, erasure: str, state: str, proof: Proof) -> ErasureStatus:
    receipts = [signed.receipt for signed in proof.receipts]
    erased = Counter[str]()
    for receipt in receipts:
        erased.update(receipt.places)
    return ErasureStatus(
        name=name,
        id=erasure,
        state=state,
        confirmed=proof.confirmed,
        pending=proof.pending,
        gone=proof.gone,
        places={place.value: erased[place] for place in Place if erased[place]},
        faults=[f"{each.member}: {each.reason.value}" for each in receipts if each.reason is not None],
        receipts=[*proof.receipts],
    )


def _complaint(reports: Mapping[str, NamespaceReport | None]) -> str:
    lines: Sequence[str] = [f"{node}: {r.message}" for node, r in reports.items() if r is not None and r.message]
    return "; ".join(lines)
