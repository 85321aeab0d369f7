"""What this node enforces now: the last plan, namespace by namespace (DESIGN section 7).

A `PlanTable` is immutable: the control link builds the next one and swaps it in with one assignment, so that every
admission afterwards, in any thread, sees the new fence, and the acknowledgement that follows is true (I3).
Must not know: sockets, engines, blocks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from kvgrove_protocol.control import NO_REVISION, DocumentPlan, ModelPlan, NamespacePlan, NodePlan, Revision
from kvgrove_protocol.identity import RealmInputs, generation


@dataclass(frozen=True)
class HostedNamespace:
    """One namespace as planned, with what requests look up."""

    plan: NamespacePlan
    model: ModelPlan | None
    documents: Mapping[str, DocumentPlan]
    others: tuple[ModelPlan, ...] = ()
    """Models of the other generations that serve it side by side; only those that are named."""

    def served(self) -> Iterator["HostedNamespace"]:
        """The namespace as each of its named generations serves it, the one of ``model`` first."""
        if self.realm is not None:
            yield self
        for model in self.others:
            yield replace(self, model=model, others=())

    def under(self, generation: bytes) -> "HostedNamespace | None":
        """The namespace as that generation serves it; None: it does not."""
        return next((each for each in self.served() if each.generation == generation), None)

    def roots(self) -> frozenset[bytes]:
        """Shared realms under which its blocks may be read."""
        return frozenset(each.realm.shared_realm() for each in self.served() if each.realm is not None)

    @property
    def generation(self) -> bytes:
        """Empty until the planner has named it."""
        return self.model.generation if self.model is not None else b""

    @property
    def realm(self) -> RealmInputs | None:
        """None until the planner has named the generation: nothing is served before."""
        if self.model is None or not self.model.generation:
            return None
        return RealmInputs(
            generation=self.model.generation,
            namespace_uid=self.plan.uid,
            purge=self.plan.purge,
            policy_version=self.plan.policy_version,
        )


@dataclass(frozen=True)
class PlanProblem:
    """Why part of a plan was not applied."""

    code: str
    message: str


@dataclass(frozen=True)
class PlanTable:
    """The plan in force."""

    revision: Revision = NO_REVISION
    models: Mapping[str, ModelPlan] = field(default_factory=dict)
    namespaces: Mapping[str, HostedNamespace] = field(default_factory=dict)
    problems: Mapping[str, PlanProblem] = field(default_factory=dict)
    """Namespace UID -> why its plan was not applied; it stays on its last good state, if it has one."""
    model_problems: Mapping[str, PlanProblem] = field(default_factory=dict)
    """Model name -> what of its plan was left out."""

    def apply(self, plan: NodePlan, epochs_seen: Mapping[str, int]) -> "PlanTable":
        """The table after ``plan``. A lower revision changes nothing; applying one twice changes nothing.

        ``epochs_seen``: namespace UID -> highest purge counter this member ever applied, also in earlier boots. A plan
        below it comes from a control plane that has lost its memory: that namespace keeps what it has.
        """
        if plan.revision < self.revision:
            return self
        problems: dict[str, PlanProblem] = {}
        model_problems: dict[str, PlanProblem] = {}
        models: dict[str, ModelPlan] = {}
        for model in plan.models:
            if model.generation and (model.inputs is None or generation(model.inputs) != model.generation):
                model_problems[model.name] = PlanProblem(
                    "GenerationMismatch", "the plan's generation is not that of its inputs"
                )
                model = structs.replace(model, generation=b"", inputs=None)  # noqa: PLW2901 - the plan as it counts
            models[model.name] = model
        namespaces: dict[str, HostedNamespace] = {}
        for planned in plan.namespaces:
            held = self.namespaces.get(planned.uid)
            if planned.purge.counter < epochs_seen.get(planned.uid, 0):
                problems[planned.uid] = PlanProblem(
                    "PurgeCounterFell",
                    f"planned purge counter {planned.purge.counter} is below the highest seen "
                    f"({epochs_seen[planned.uid]}): the planner must go above it",
                )
                if held is not None:
                    namespaces[planned.uid] = replace(
                        held, model=models.get(held.plan.model), others=_others(held.plan, models)
                    )
                continue
            namespaces[planned.uid] = HostedNamespace(
                plan=planned,
                model=models.get(planned.model),
                documents={document.name: document for document in planned.documents},
                others=_others(planned, models),
            )
        return PlanTable(plan.revision, models, namespaces, problems, model_problems)


def _others(plan: NamespacePlan, models: Mapping[str, ModelPlan]) -> tuple[ModelPlan, ...]:
    """Each generation once: two models of one generation are the same to whoever asks."""
    known = {models[plan.model].generation} if plan.model in models else set()
    found: list[ModelPlan] = []
    for beside in plan.generations:
        model = models.get(beside.model)
        if model is not None and model.generation and model.generation not in known:
            known.add(model.generation)
            found.append(model)
    return tuple(found)
