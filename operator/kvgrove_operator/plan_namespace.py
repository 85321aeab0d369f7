"""One namespace: from its declared state and what was in force to what is in force next. Pure.

Purges, access changes, erasures and changed or withdrawn texts always apply, whatever else is wrong with the namespace:
they are what somebody relies on being gone. What cannot be met (a model that does not exist, an alias that is taken, a
text that cannot be had) leaves that part on its last good value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvgrove_crds.namespace import PromptCacheNamespace, PromptCacheNamespaceSpec
from kvgrove_crds.namespace_access import TierQuota
from kvgrove_crds.namespace_extras import PricingSpec
from kvgrove_crds.reasons import ConditionReason
from kvgrove_operator.aliases import AliasClaims
from kvgrove_operator.coming import ComingRules
from kvgrove_operator.contents import contents
from kvgrove_operator.epochs import UNSEEN, access, purge
from kvgrove_operator.erasures import Retired, erasures
from kvgrove_operator.generations import Models
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan_problems import PlanProblem, of_namespace
from kvgrove_operator.plan_state import Mint, NamespaceState
from kvgrove_operator.rollout.side_by_side import generation_plans
from kvgrove_operator.serving import serving, warm_chains
from kvgrove_protocol.control import EvictionPlan, NamespacePlan, PricingPlan, QuotaPlan, TtlPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Isolation, RealmInputs


@dataclass(frozen=True)
class PlannedNamespace:
    state: NamespaceState
    plan: NamespacePlan | None
    """None: no model has ever been there to serve it."""
    bodies: Mapping[bytes, bytes]
    due: float | None
    """When time alone may change the plan (Unix seconds)."""
    problems: tuple[PlanProblem, ...]


@dataclass(frozen=True)
class Surroundings:
    """What all namespaces of one planning share."""

    models: Models
    aliases: AliasClaims
    observed: Observed
    kept: Mapping[bytes, bytes]
    mint: Mint
    now: float
    """Unix seconds."""


def plan_namespace(
    uid: str, resource: PromptCacheNamespace, before: NamespaceState | None, around: Surroundings, *, returned: bool
) -> PlannedNamespace:
    """``returned``: it had been deleted, and its erasure is not known to be complete."""
    spec, name = resource.spec, resource.api_name
    seen = around.observed.fences_seen.get(uid, UNSEEN)
    problems: list[PlanProblem] = []
    who = access(spec, before, seen)
    purged = purge(spec, before, seen, returned=returned, mint=around.mint)
    rules = ComingRules(
        now=around.now,
        minimum_ratio=spec.warmup.minimum_ratio,
        daemons=_taking(before, spec, around),
        warmth=around.observed.coming.get(uid, {}),
        cut=before is None or purged != before.purge or who.revision != before.access_revision,
    )
    pseudonym_key = before.pseudonym_key if before is not None and before.pseudonym_key else around.mint.secret()
    asked = erasures(spec.privacy.erasures, before, pseudonym_key, around.observed.proofs, around.mint)
    texts = contents(spec, before, around.kept, rules, seen=seen.documents, raised=asked.added)
    fence = Fence(purge=purged.counter, documents=texts.revision, access=who.revision)
    chosen = serving(resource, before, around.models, around.observed, uid=uid, fence=fence, now=around.now)
    retired = [_retired(uid, each, before) for each in chosen.retired] if before is not None else []
    erased = asked.sealed(retired, around.mint)
    problems += [
        of_namespace(
            name,
            ConditionReason.CONTENT_NOT_FOUND,
            f"{path}: its ConfigMap or key does not exist; what was in force for it stays",
        )
        for path in texts.missing
    ]
    granted, refused = around.aliases.of(uid, spec.aliases)
    problems += [
        of_namespace(
            name,
            ConditionReason.ALIAS_CONFLICT,
            f"spec.aliases: {alias} is another namespace's already; choose another, or remove it there first",
        )
        for alias in refused
    ]
    problems += chosen.problems
    suspended = spec.suspend or chosen.cold
    state = NamespaceState(
        name=name,
        purge=purged,
        purge_epoch=spec.purge.epoch,
        policy_version=spec.access.policy_version,
        document_revision=texts.revision,
        documents=texts.documents,
        coming=texts.coming,
        document_epoch=texts.epoch,
        prefixes=texts.prefixes,
        access_revision=who.revision,
        access=who.digest,
        aliases=granted,
        model=chosen.model,
        rollout=chosen.rollout,
        secret=erased.secret,
        former_secret=erased.former_secret,
        pseudonym_key=pseudonym_key,
        erasures=erased.entries,
        erasure_epoch=erased.epoch,
    )
    times = [chosen.due, *(each.deadline for each in texts.coming.values())]
    due = min((each for each in times if each is not None), default=None)
    if not state.model:
        return PlannedNamespace(state, None, texts.bodies, due, tuple(problems))
    warm = [*texts.prefixes] if spec.warmup.prefixes is None else list(spec.warmup.prefixes)
    plan = NamespacePlan(
        uid=uid,
        name=name,
        aliases=[*granted],
        model=state.model,
        generations=chosen.beside,
        isolation=Isolation(spec.isolation),
        tenants=[*spec.access.tenants] if spec.access.tenants is not None else None,
        scopes=[*spec.access.scopes],
        policy_version=spec.access.policy_version,
        purge=state.purge,
        fence=state.fence,
        documents=texts.document_plans(),
        coming=texts.coming_plans(),
        prefixes=texts.prefix_plans(),
        warm=[] if suspended else [prefix for prefix in warm if prefix in texts.prefixes],
        warm_chains=0 if suspended else warm_chains(spec, chosen),
        warm_parallelism=spec.warmup.parallelism,
        quota=_quota({"device": spec.quota.device, "host": spec.quota.host, "disk": spec.quota.disk}),
        lease_seconds=spec.freshness.lease.seconds,
        fail_closed=spec.freshness.on_control_plane_loss == "FailClosed",
        suspended=suspended,
        tenant_share=spec.quota.per_tenant_share,
        ttl=TtlPlan(seconds=spec.ttl.duration.seconds, sliding=spec.ttl.mode == "Sliding"),
        eviction=EvictionPlan(
            policy=spec.eviction.policy,
            high_watermark=spec.eviction.high_watermark,
            low_watermark=spec.eviction.low_watermark,
            max_branches=spec.eviction.max_branches,
        ),
        events_export=spec.events.export,
        pricing=_pricing(spec.pricing),
        erasures=erased.plans(),
        secret=state.secret,
        former_secret=state.former_secret,
        pseudonym_key=state.pseudonym_key,
    )
    return PlannedNamespace(state, plan, texts.bodies, due, tuple(problems))


def _taking(before: NamespaceState | None, spec: PromptCacheNamespaceSpec, around: Surroundings) -> frozenset[str]:
    """Connected daemons that hold a model by which new conversations are answered: these are to be warm."""
    if before is None:
        return frozenset()
    beside = generation_plans(before.rollout, spec.rollout) if before.rollout is not None else []
    names = {before.model, *(each.model for each in beside if each.weight)}
    return frozenset().union(*(around.models.daemons.get(name, ()) for name in names))


def _retired(uid: str, generation: bytes, before: NamespaceState) -> Retired:
    """By the realm that members were told last: a purge with the same planning has cut off that one too."""
    realm = RealmInputs(
        generation=generation, namespace_uid=uid, purge=before.purge, policy_version=before.policy_version
    )
    return Retired(generation, realm.shared_realm())


def _pricing(spec: PricingSpec | None) -> PricingPlan | None:
    if spec is None:
        return None
    return PricingPlan(
        currency=spec.currency,
        input_per_million_tokens=spec.input_per_million_tokens,
        cached_input_per_million_tokens=spec.cached_input_per_million_tokens,
        output_per_million_tokens=spec.output_per_million_tokens,
        storage_per_gibibyte_hour=spec.storage_per_gibibyte_hour,
    )


def _quota(tiers: Mapping[str, TierQuota]) -> dict[str, QuotaPlan]:
    return {
        tier: QuotaPlan(floor=quota.floor.bytes, ceiling=quota.ceiling.bytes if quota.ceiling is not None else 0)
        for tier, quota in tiers.items()
        if quota.floor.bytes or quota.ceiling is not None
    }
