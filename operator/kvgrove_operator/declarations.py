"""The two kinds that people declare: status, finalizer and deletion of each object, from what is there now.

The deletion branch comes first, and looks at nothing that the object refers to. It composes; what is decided comes from
pure modules, what is written goes through `objects`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import ValidationError

from kvgrove_crds.base import Status
from kvgrove_crds.manifests import parse_manifest
from kvgrove_crds.model_version import ModelVersionStatus
from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_crds.namespace_access import PrivacySpec
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_crds.problems import ManifestError
from kvgrove_crds.reasons import ConditionReason as Reason
from kvgrove_operator import deletion, model_view, namespace_view, paths
from kvgrove_operator.declared import Declared
from kvgrove_operator.evidence import WHOLE
from kvgrove_operator.fleet import Fleet
from kvgrove_operator.keys import PLAN, WORKLOADS, Key, Kind
from kvgrove_operator.kube import Kube, Object
from kvgrove_operator.model_view import ModelFacts
from kvgrove_operator.namespace_facts import NamespaceFacts
from kvgrove_operator.objects import FINALIZER, Objects, is_deleting
from kvgrove_operator.placements import Placements
from kvgrove_operator.plan import models_of
from kvgrove_operator.plan_problems import PlanProblem, model_object, namespace_object
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.work_queue import Trouble

S = TypeVar("S", bound=Status)

_UNREAD = (Reason.INVALID_SPEC, Reason.CRD_OUTDATED)


class Declarations:
    """``add``: has a key looked at. ``trouble``: what keeps one from getting done."""

    def __init__(
        self,
        kube: Kube,
        fleet: Fleet,
        objects: Objects,
        placements: Placements,
        *,
        add: Callable[[Key], None],
        trouble: Callable[[Key], Trouble | None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube, self._fleet, self._objects, self._placements = kube, fleet, objects, placements
        self._add, self._trouble, self._now = add, trouble, now
        self.declared: Declared | None = None
        """What was planned last; None: nothing has been yet, and nothing can be said."""
        self.statuses: dict[str, PromptCacheNamespaceStatus] = {}
        """API name -> the status that was composed last, of namespaces that have an object."""

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def namespace(self, key: Key) -> None:
        path = paths.namespace(key.name)
        held = await self._objects.read(path)
        if held is None:
            self.statuses.pop(key.name, None)
            return
        if is_deleting(held):
            await self._erase(key, path, held)
            return
        uid = held["metadata"]["uid"]
        before = _status(held, PromptCacheNamespaceStatus)
        facts = self._namespace_facts(uid, before)
        if facts is None:
            return  # not planned yet: planning adds its key
        self.statuses[key.name] = status = namespace_view.compose(facts)
        if status != before:
            await self._objects.write_status(path, held, status, before.conditions, status.conditions)

    def _namespace_facts(self, uid: str, before: PromptCacheNamespaceStatus) -> NamespaceFacts | None:
        fleet, planned = self._fleet, self._fleet.planned
        resource = fleet.resource(uid)
        if resource is None or planned is None or self.declared is None:
            return None
        plan = fleet.plan_of(uid)
        model = self.declared.models.get(plan.model if plan is not None else resource.spec.model_version_ref.name)
        daemons = fleet.daemons()
        reports = {node: view.namespace(uid) for node, view in daemons.items() if view.report is not None}
        nodes = self._placements.nodes(model)
        others = [self.declared.models.get(each.model) for each in (plan.generations if plan is not None else ())]
        beside = {node for other in others for node in self._placements.nodes(other)}
        return NamespaceFacts(
            resource=resource,
            before=before,
            state=fleet.state.namespaces.get(uid),
            plan=plan,
            models={each.name: each for each in planned.models},
            nodes={node: reports.get(node) for node in sorted(nodes)},
            beside={node: reports.get(node) for node in sorted(beside)},
            connected=frozenset(daemons),
            nodes_wanted=self._placements.wanted(model),
            invalidation=fleet.ledger.invalidation(uid),
            proofs=fleet.ledger.proofs(uid),
            problems=self._problems(namespace_object(resource.api_name)),
            trouble=self._first_trouble(PLAN, Key(Kind.NAMESPACE, resource.api_name)),
            now=self._now(),
        )

    async def _erase(self, key: Key, path: str, held: Object) -> None:
        """The deletion branch: it looks at nothing that the namespace refers to."""
        metadata = held["metadata"]
        uid, fleet = metadata["uid"], self._fleet
        if FINALIZER not in metadata.get("finalizers", ()):
            return
        if uid in fleet.state.namespaces:
            self._add(PLAN)  # planning takes it out first, which destroys its secret
            return
        if uid not in fleet.state.removed:
            await self._objects.remove_finalizer(path, held)  # it was never planned, so nobody ever held anything
            return
        proof = fleet.ledger.final_proof(uid) or fleet.ledger.proofs(uid).get(WHOLE, Proof())
        debt = deletion.debt_of(fleet.ledger.holders(uid), fleet.views(), proof)
        verdict = deletion.judge(_privacy(held), proof, debt, erased=fleet.ledger.erased(uid))
        before = _status(held, PromptCacheNamespaceStatus)
        status = namespace_view.deleting(
            before,
            verdict,
            proof,
            generation=metadata.get("generation", 0),
            requested_at=datetime.fromisoformat(metadata["deletionTimestamp"]),
            now=self._now(),
        )
        self.statuses[key.name] = status
        if status != before:
            announced = "ErasureVerified" if verdict.may_go else ""
            await self._objects.write_status(
                path, held, status, before.conditions, status.conditions, announced=announced
            )
            held = await self._kube.get(path) or held
        if verdict.may_go:
            await self._objects.remove_finalizer(path, held)
            self.statuses.pop(key.name, None)

    # -- models --------------------------------------------------------------------------------------------------------

    async def model(self, key: Key) -> None:
        path = paths.model(key.name)
        held = await self._objects.read(path)
        if held is None:
            return
        before = _status(held, ModelVersionStatus)
        unread = next((each for each in self._problems(model_object(key.name)) if each.reason in _UNREAD), None)
        if unread is not None:
            generation = held["metadata"].get("generation", 0)
            refused = model_view.unreadable(before, unread, generation=generation, now=self._now())
            if refused != before:
                await self._objects.write_status(path, held, refused, before.conditions, refused.conditions)
            return
        facts = self._model_facts(key.name, before, deleting=is_deleting(held))
        if facts is None:
            return
        if facts.deleting and not facts.users:
            await self._objects.remove_finalizer(path, held)
            return
        status = model_view.compose(facts)
        if status != before:
            await self._objects.write_status(path, held, status, before.conditions, status.conditions)

    def _model_facts(self, name: str, before: ModelVersionStatus, *, deleting: bool) -> ModelFacts | None:
        fleet, planned = self._fleet, self._fleet.planned
        if planned is None or self.declared is None:
            return None
        model = self.declared.models.get(name)
        if model is None:
            return None
        daemons = fleet.daemons()
        reports = {
            node: next((each for each in view.report.models if each.name == name), None)
            for node, view in daemons.items()
            if view.report is not None
        }
        users = {each.api_name for each in fleet.desired.namespaces if each.spec.model_version_ref.name == name} | {
            held.name for held in fleet.state.namespaces.values() if name in models_of(held)
        }
        return ModelFacts(
            resource=model,
            before=before,
            plan=next((each for each in planned.models if each.name == name), None),
            nodes={node: reports.get(node) for node in sorted(self._placements.nodes(model))},
            connected=frozenset(daemons),
            nodes_wanted=self._placements.wanted(model),
            unscheduled=self._placements.unscheduled(model),
            overruled=self._placements.overruled(model),
            users=tuple(sorted(users)),
            problems=self._problems(model_object(name)),
            trouble=self._first_trouble(PLAN, WORKLOADS, Key(Kind.MODEL, name)),
            deleting=deleting,
            now=self._now(),
        )

    # -- both ----------------------------------------------------------------------------------------------------------

    def _problems(self, of: str) -> tuple[PlanProblem, ...]:
        planned = self._fleet.planned
        found = (
            *(self.declared.problems if self.declared is not None else ()),
            *(planned.problems if planned else ()),
        )
        return tuple(problem for problem in found if problem.object == of)

    def _first_trouble(self, *keys: Key) -> Trouble | None:
        return next((found for key in keys if (found := self._trouble(key)) is not None), None)


def _status(held: Object, of: type[S]) -> S:
    """As it reads; one that does not read as ours is as good as none."""
    try:
        return of.model_validate(held.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return of()


def _privacy(held: Object) -> PrivacySpec:
    try:
        parsed = parse_manifest({**held, "metadata": {"name": held["metadata"]["name"]}, "status": None}, source="")
    except ManifestError:
        return PrivacySpec()  # the strictest: evidence from everybody
    return parsed.spec.privacy if isinstance(parsed, PromptCacheNamespace) else PrivacySpec()
