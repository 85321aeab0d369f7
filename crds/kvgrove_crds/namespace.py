"""PromptCacheNamespace: what an application's prompts share, for how long, with whom, and how it changes."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import API_VERSION, Resource, Spec
from kvgrove_crds.cel import Rule, Transition
from kvgrove_crds.containers import ListMap, ListSet
from kvgrove_crds.names import Alias, DnsLabel
from kvgrove_crds.namespace_access import (
    AccessSpec,
    EvictionSpec,
    FreshnessSpec,
    Isolation,
    PrivacySpec,
    QuotaSpec,
    TtlSpec,
)
from kvgrove_crds.namespace_content import MAX_DOCUMENTS, MAX_PREFIXES, DocumentSpec, PrefixSpec
from kvgrove_crds.namespace_delivery import RolloutSpec, WarmupSpec
from kvgrove_crds.namespace_extras import AlertsSpec, EventsSpec, PricingSpec, ResponseCacheSpec
from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus, PurgeStatus


class ModelVersionRef(Spec):
    """A ModelVersion by name (they are cluster-scoped)."""

    name: DnsLabel
    """metadata.name of the ModelVersion."""


class PurgeSpec(Spec):
    """Invalidation by Git: no imperative step is needed."""

    epoch: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Any change of this number makes every cached block of the namespace unreadable at once."""


def _undeclared_documents(spec: "PromptCacheNamespaceSpec") -> Iterator[str]:
    declared = {document.name for document in spec.documents}
    for i, prefix in enumerate(spec.prefixes):
        for j, name in enumerate(prefix.documents):
            if name not in declared:
                yield f".prefixes[{i}].documents[{j}]"


def _undeclared_prefixes(spec: "PromptCacheNamespaceSpec") -> Iterator[str]:
    declared = {prefix.name for prefix in spec.prefixes}
    for i, name in enumerate(spec.warmup.prefixes or ()):
        if name not in declared:
            yield f".warmup.prefixes[{i}]"


class PromptCacheNamespaceSpec(Spec):
    """Desired namespace."""

    rules = (
        Rule(
            cel=(
                "!has(self.prefixes) || self.prefixes.all(p, !has(p.documents) || size(p.documents) == 0"
                " || (has(self.documents) && p.documents.all(n, self.documents.exists(d, d.name == n))))"
            ),
            says="the documents of a prefix are names from spec.documents",
            cure="add the document to spec.documents or correct the name",
            broken=_undeclared_documents,
        ),
        Rule(
            cel=(
                "!has(self.warmup) || !has(self.warmup.prefixes) || size(self.warmup.prefixes) == 0"
                " || (has(self.prefixes) && self.warmup.prefixes.all(n, self.prefixes.exists(p, p.name == n)))"
            ),
            says="warmup.prefixes are names from spec.prefixes",
            cure="add the prefix to spec.prefixes or correct the name",
            broken=_undeclared_prefixes,
        ),
    )

    model_version_ref: ModelVersionRef
    """The model version that answers. Changing it starts a rollout."""
    aliases: Annotated[tuple[Alias, ...], ListSet(8)] = ()
    """Other values of a request's model field that mean this namespace, besides NAMESPACE/NAME."""
    isolation: Isolation = "Tenant"
    """Who may share private blocks: everybody (Public), or callers of the same tenant, scopes, user or session."""
    access: AccessSpec = AccessSpec()
    """Who may use the namespace."""
    quota: QuotaSpec = QuotaSpec()
    """Room on every node, by tier."""
    ttl: TtlSpec = TtlSpec()
    """How long a block may be reused."""
    eviction: EvictionSpec = EvictionSpec()
    """What leaves first when the namespace is full."""
    prefixes: Annotated[tuple[PrefixSpec, ...], ListMap(MAX_PREFIXES)] = ()
    """Stable beginnings of prompts, warmed before traffic arrives."""
    documents: Annotated[tuple[DocumentSpec, ...], ListMap(MAX_DOCUMENTS)] = ()
    """Texts that prompts refer to by name."""
    warmup: WarmupSpec = WarmupSpec()
    """What is computed before traffic needs it."""
    rollout: RolloutSpec = RolloutSpec()
    """How traffic shifts to a new generation."""
    purge: PurgeSpec = PurgeSpec()
    """Invalidation of everything."""
    privacy: PrivacySpec = PrivacySpec()
    """What deletion must prove and what may be stored."""
    freshness: FreshnessSpec = FreshnessSpec()
    """How long a member may go on without the control plane."""
    events: EventsSpec = EventsSpec()
    """Export of KV events."""
    response_cache: ResponseCacheSpec = ResponseCacheSpec()
    """Caches of whole answers."""
    pricing: PricingSpec | None = None
    """Prices by which savings are shown."""
    alerts: AlertsSpec = AlertsSpec()
    """Thresholds of alerts."""
    suspend: bool = False
    """Answer without cache and warm nothing; data stays until it expires."""


def _purge(namespace: "PromptCacheNamespace") -> PurgeStatus | None:
    return namespace.status.purge if namespace.status is not None else None


class PromptCacheNamespace(Resource):
    """What an application's prompts share, for how long, with whom, and how it changes."""

    transitions = (
        Transition(
            cel=("!has(oldSelf.status) || !has(oldSelf.status.purge) || (has(self.status) && has(self.status.purge))"),
            says="status.purge is never removed: purged blocks would become readable again",
            cure="write it with a counter above every one that nodes have seen",
            broken=lambda old, new: _purge(old) is not None and _purge(new) is None,
        ),
    )

    api_version: Literal["kvgrove.dev/v1alpha1"] = API_VERSION
    kind: Literal["PromptCacheNamespace"] = "PromptCacheNamespace"
    spec: PromptCacheNamespaceSpec
    status: PromptCacheNamespaceStatus | None = None

    @property
    def api_name(self) -> str:
        """The value of a request's ``model`` field that always means this namespace."""
        return f"{self.namespace}/{self.name}"
