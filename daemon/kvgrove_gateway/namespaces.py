"""Plan -> what a request may name, and in which state. Pure.

`Directory` is one plan, ready for look-ups; a newer plan is a new directory. Access is checked against it on every
request (I2): its tenants say who is served, its scopes say who shares the cache and the declared texts. References to
documents resolve only under a freshness lease: without one their current version and scopes are not known (I3). A
document that is unknown and one that is not for this caller answer alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvgrove_gateway.conversations import Offer
from kvgrove_gateway.errors import Forbidden, NotFound, Unavailable
from kvgrove_gateway.identity.caller import Identity, holds_all_of
from kvgrove_protocol.control import NO_REVISION, DocumentPlan, ModelPlan, NamespacePlan, NodePlan, PrefixPlan, Revision
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, RealmInputs


@dataclass(frozen=True)
class Resolution:
    """One request's view of its namespace, all from one plan."""

    namespace: NamespacePlan
    model: ModelPlan
    caller: Caller
    fence: Fence | None
    """None: no lease. The request is served cold and names no document."""
    prefix: PrefixPlan | None
    scope_denied: bool
    """The caller lacks a scope that the namespace asks for now: served cold, and without its texts."""
    documents: tuple[DocumentPlan, ...]
    """Canonical order: those of the prefix first, then the others as the namespace lists them, each once."""

    @property
    def realm(self) -> RealmInputs:
        return RealmInputs(
            generation=self.model.generation,
            namespace_uid=self.namespace.uid,
            purge=self.namespace.purge,
            policy_version=self.namespace.policy_version,
        )

    def body_digests(self) -> list[bytes]:
        """Bodies that the prompt is assembled from."""
        prefix = [] if self.prefix is None else [self.prefix.body]
        return prefix + [document.body for document in self.documents]


@dataclass(frozen=True)
class Directory:
    """Look-up tables of one plan."""

    revision: Revision
    namespaces: tuple[NamespacePlan, ...] = ()
    _by_name: dict[str, NamespacePlan] = field(default_factory=dict)
    _models: dict[str, ModelPlan] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: NodePlan) -> "Directory":
        """Names go before aliases, and the first of two equal aliases wins: nobody can take a namespace's own name."""
        by_name: dict[str, NamespacePlan] = {}
        for namespace in plan.namespaces:
            by_name[namespace.name] = namespace
        for namespace in sorted(plan.namespaces, key=lambda each: each.name):
            for alias in namespace.aliases:
                by_name.setdefault(alias, namespace)
        return cls(plan.revision, tuple(plan.namespaces), by_name, {model.name: model for model in plan.models})

    def visible(self, identity: Identity) -> list[str]:
        """Names and aliases that ``identity`` may put into ``model``, sorted."""
        return sorted(name for name, namespace in self._by_name.items() if _admits(namespace, identity))

    def models(self) -> list[ModelPlan]:
        """Models that some namespace is served by."""
        used = {namespace.model for namespace in self.namespaces}
        used |= {beside.model for namespace in self.namespaces for beside in namespace.generations}
        return [model for name, model in self._models.items() if name in used]

    def offers(self, namespace: NamespacePlan) -> list[Offer]:
        """The generations that ``namespace`` may be answered by, each once, the one that serves it first.

        Those that are named: while the first is not, there are none.
        """
        first = self._models.get(namespace.model)
        if first is None or not first.generation:
            return []
        found = {first.generation: Offer(first, 100)}
        for beside in namespace.generations:
            model = self._models.get(beside.model)
            if model is not None and model.generation:
                found.setdefault(model.generation, Offer(model, beside.weight))
        return list(found.values())

    def body_digests(self) -> set[bytes]:
        """All bodies that requests may need under this plan."""
        documents = {document.body for each in self.namespaces for document in each.documents}
        return documents | {prefix.body for each in self.namespaces for prefix in each.prefixes}

    def admit(self, identity: Identity, name: str) -> NamespacePlan:
        """The namespace behind ``name``; raises NotFound or Forbidden."""
        namespace = self._by_name.get(name)
        if namespace is None:
            raise NotFound(
                "The model does not exist: use '<namespace>/<name>' or an alias, see GET /v1/models.", field="model"
            )
        if not _admits(namespace, identity):
            raise Forbidden("This API key may not use this model: ask its owner for access.", field="model")
        return namespace

    def name_of(self, identity: Identity, name: str) -> str | None:
        """The own name of the namespace behind ``name``; None where ``identity`` may not use one of that name."""
        namespace = self._by_name.get(name)
        return namespace.name if namespace is not None and _admits(namespace, identity) else None

    def resolve(
        self,
        identity: Identity,
        name: str,
        *,
        prefix: str | None = None,
        documents: Sequence[str] = (),
        session: str | None = None,
        generation: bytes = b"",
        lease_valid: bool,
        retry_after_s: int = 1,
    ) -> Resolution:
        """Everything a request needs of its namespace; raises NotFound, Forbidden or Unavailable.

        ``generation``: one of its `offers`; one that is not, or empty, means the first.
        ``lease_valid``: whether this gateway holds a lease for the namespace `admit` returns, at this moment.
        """
        namespace = self.admit(identity, name)
        offers = self.offers(namespace)
        if not offers:
            raise _unavailable("model_not_ready", "The model is not ready yet: try again later.", retry_after_s)
        model = next((each.model for each in offers if each.model.generation == generation), offers[0].model)
        wants_references = prefix is not None or bool(documents)
        if not lease_valid and (wants_references or namespace.fail_closed):
            raise _unavailable(
                "freshness_lease_expired",
                "The current state of the namespace cannot be verified: try again later"
                + (", or without 'kvgrove.prefix' and 'kvgrove.documents'." if not namespace.fail_closed else "."),
                retry_after_s,
            )
        caller = identity.caller
        if session is not None:
            caller = Caller(tenant=caller.tenant, user=caller.user, scopes=caller.scopes, session=session)
        denied = not holds_all_of(caller, namespace.scopes)
        chosen = None if prefix is None else _prefix(namespace, prefix, denied=denied)
        return Resolution(
            namespace=namespace,
            model=model,
            caller=caller,
            fence=namespace.fence if lease_valid else None,
            prefix=chosen,
            scope_denied=denied,
            documents=_documents(namespace, caller, chosen, documents, denied=denied),
        )


def _admits(namespace: NamespacePlan, identity: Identity) -> bool:
    """The namespace's current rule and the credential's own limit."""
    if not identity.may_name(namespace.name):
        return False
    return namespace.tenants is None or identity.caller.tenant in namespace.tenants


def _prefix(namespace: NamespacePlan, name: str, *, denied: bool) -> PrefixPlan:
    for prefix in [] if denied else namespace.prefixes:
        if prefix.name == name:
            return prefix
    raise NotFound(
        "No such prefix in this namespace, or not for this caller.", field="kvgrove.prefix", code="prefix_not_found"
    )


def _documents(
    namespace: NamespacePlan, caller: Caller, prefix: PrefixPlan | None, names: Sequence[str], *, denied: bool
) -> tuple[DocumentPlan, ...]:
    declared = [] if denied else namespace.documents
    readable = {document.name: document for document in declared if holds_all_of(caller, document.scopes)}
    own = [] if prefix is None else prefix.documents
    if any(name not in readable for name in own):
        raise NotFound(
            "No such prefix in this namespace, or not for this caller.", field="kvgrove.prefix", code="prefix_not_found"
        )
    for position, name in enumerate(names):
        if name not in readable:
            raise NotFound(
                "No such document in this namespace, or not for this caller.",
                field=f"kvgrove.documents[{position}]",
                code="document_not_found",
            )
    wanted = set(names).difference(own)
    ordered = list(dict.fromkeys(own)) + [name for name in readable if name in wanted]
    return tuple(readable[name] for name in ordered)


def _unavailable(code: str, message: str, retry_after_s: int) -> Unavailable:
    error = Unavailable(message, code=code)
    error.retry_after_s = retry_after_s
    return error


EMPTY = Directory(NO_REVISION)
"""Before the first plan."""
