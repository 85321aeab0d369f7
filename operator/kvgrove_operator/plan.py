"""From the two resources to a plan for every member. Pure: time and randomness are handed in.

Planning the same desired state twice gives the same result and mints nothing: call it as often as you like, and issue
a new revision only when the result differs. The new state must be durable before the plan is sent. One object's problem
leaves all others planned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvgrove_crds.namespace import PromptCacheNamespace
from kvgrove_operator.aliases import claim
from kvgrove_operator.generations import DesiredModel, plan_models
from kvgrove_operator.member_events import Issued
from kvgrove_operator.observed import Observed, observe
from kvgrove_operator.plan_memo import PlanMemo
from kvgrove_operator.plan_namespace import Surroundings, plan_namespace
from kvgrove_operator.plan_problems import PlanProblem
from kvgrove_operator.plan_state import Mint, NamespaceState, PlanState
from kvgrove_protocol.control import GATEWAY, ModelPlan, NamespacePlan, NodeEndpoint, NodePlan, Revision, fits
from kvgrove_protocol.receipts import seal_of

__all__ = ["Desired", "DesiredModel", "Mint", "Observed", "PlanProblem", "PlanState", "Planned", "observe", "plan"]

NO_BODIES: Mapping[bytes, bytes] = {}


@dataclass(frozen=True)
class Desired:
    """What is declared, with the texts of prefixes, documents and templates filled in."""

    models: tuple[DesiredModel, ...] = ()
    namespaces: tuple[PromptCacheNamespace, ...] = ()
    """Each with its ``metadata.uid``. A text that could not be resolved is left None."""


@dataclass(frozen=True)
class Planned:
    state: PlanState
    """To be made durable before any of this is sent."""
    models: tuple[ModelPlan, ...]
    namespaces: tuple[NamespacePlan, ...]
    erase_uids: tuple[str, ...]
    bodies: Mapping[bytes, bytes] = field(repr=False)
    """Digest -> text, of all that the plan names. Pass it to the next planning as ``kept``."""
    problems: tuple[PlanProblem, ...]
    due: float | None
    """When time alone may change the plan (Unix seconds); None: never."""

    def issued(self) -> dict[str, Issued]:
        """What the ledger of members has to know of this plan."""
        return {
            plan.uid: Issued(
                plan.fence, plan.lease_seconds, tuple(each.id for each in plan.erasures), seal_of(plan.secret)
            )
            for plan in self.namespaces
        }

    def same_plan(self, other: "Planned") -> bool:
        """Whether members would be told the same: then there is nothing to issue."""
        return (self.models, self.namespaces, self.erase_uids) == (other.models, other.namespaces, other.erase_uids)

    def for_member(
        self, role: str, *, nodes: Iterable[NodeEndpoint], revision: Revision, placement: str = ""
    ) -> NodePlan:
        """The plan as a member of this role gets it. Gateways learn of all models and of the nodes, and get no
        namespace's secret. Daemons learn of all namespaces, whose fences they are to enforce whatever they hold of
        them, and of the models of their placement.
        """
        gateway = role == GATEWAY
        return NodePlan(
            revision=revision,
            models=[each for each in self.models if gateway or fits(placement, each.placement)],
            namespaces=[_without_secrets(plan) if gateway else plan for plan in self.namespaces],
            erase_uids=[*self.erase_uids],
            nodes=[*nodes] if gateway else [],
        )


def plan(
    desired: Desired,
    state: PlanState,
    observed: Observed,
    *,
    mint: Mint,
    now: float,
    kept: Mapping[bytes, bytes] = NO_BODIES,
    memo: PlanMemo | None = None,
) -> Planned:
    """The plan that follows ``state``. ``kept``: bodies of the plan before, for texts that cannot be resolved now.
    ``now``: Unix seconds; plan again at `Planned.due`. ``memo``: of whoever plans often; it makes no difference but
    in time.

    Raises ValueError for a namespace without a UID.
    """
    namespaces = {_uid(resource): resource for resource in sorted(desired.namespaces, key=lambda item: item.api_name)}
    known = state.removed | state.namespaces
    serving = sorted({name for uid in namespaces if uid in known for name in models_of(known[uid])})
    models = plan_models(desired.models, state.models, serving, observed, kept)
    around = Surroundings(models, claim(namespaces, state.namespaces), observed, kept, mint, now)
    memo = memo if memo is not None else PlanMemo()
    memo.begin(around)
    states: dict[str, NamespaceState] = {}
    plans: list[NamespacePlan] = []
    bodies = dict(models.bodies)
    problems = list(models.problems)
    times: list[float] = []
    for uid, resource in namespaces.items():
        before, returned = known.get(uid), uid in state.removed
        result = memo.recall(uid, resource, before, around) if not returned else None
        if result is None:
            result = memo.note(uid, resource, around, plan_namespace(uid, resource, before, around, returned=returned))
        states[uid] = result.state
        bodies |= result.bodies
        problems += result.problems
        times += [result.due] if result.due is not None else []
        if result.plan is not None:
            plans.append(result.plan)
    memo.keep(namespaces.keys())
    in_use = {resource.resource.name for resource in desired.models}
    in_use |= {name for held in states.values() for name in models_of(held)}
    held_models = {name: models.states[name] for name in sorted(models.states) if name in in_use}
    removed = _removed(state, namespaces, observed)
    return Planned(
        state=PlanState(namespaces=states, removed=removed, models=held_models),
        models=tuple(held.plan for held in held_models.values()),
        namespaces=tuple(plans),
        erase_uids=tuple(sorted(removed)),
        bodies=bodies,
        problems=tuple(problems),
        due=min(times, default=None),
    )


def models_of(held: NamespaceState) -> set[str]:
    """ModelVersions by which a namespace is served, or was and may be again: they must be held."""
    targets = held.rollout.targets if held.rollout is not None else ()
    return {held.model, *(each.model for each in targets)} - {""}


def _removed(
    state: PlanState, namespaces: Mapping[str, PromptCacheNamespace], observed: Observed
) -> dict[str, NamespaceState]:
    """Those that are gone and of which something may be left. Their secrets are destroyed at once."""
    gone = {uid: held for uid, held in (state.removed | state.namespaces).items() if uid not in namespaces}
    return {
        uid: replace(held, secret=b"", former_secret=b"", pseudonym_key=b"", erasures=())
        for uid, held in sorted(gone.items())
        if uid in state.namespaces or uid not in observed.erased
    }


def _without_secrets(plan: NamespacePlan) -> NamespacePlan:
    return replace(plan, secret=b"", former_secret=b"", pseudonym_key=b"")


def _uid(resource: PromptCacheNamespace) -> str:
    if not resource.metadata.uid:
        raise ValueError(f"{resource.api_name}: metadata.uid is empty; a namespace is known by its UID")
    return resource.metadata.uid
