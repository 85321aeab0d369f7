"""Who may use a namespace, how much room it has, how long blocks live, and what deletion must prove."""

from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import Spec
from kvgrove_crds.cel import Rule, Transition, when
from kvgrove_crds.containers import ListMap, ListSet
from kvgrove_crds.durations import Between, Duration
from kvgrove_crds.names import DnsLabel, DnsName, Principal
from kvgrove_crds.quantities import Quantity

Isolation = Literal["Public", "Tenant", "Scope", "User", "Session"]
Percent = Annotated[int, Field(ge=0, le=100)]


class AccessSpec(Spec):
    """Who may use the namespace, judged by verified credentials on every request and every hit."""

    transitions = (
        Transition(
            cel="self.policyVersion >= oldSelf.policyVersion",
            says="spec.access.policyVersion never falls: blocks of an older policy would become readable again",
            cure="keep it or raise it, also in a revert",
            broken=lambda old, new: new.policy_version < old.policy_version,
        ),
    )

    tenants: Annotated[tuple[Principal, ...], ListSet(256)] | None = None
    """Tenants that may use it. Absent: every verified tenant. Empty: nobody."""
    scopes: Annotated[tuple[Principal, ...], ListSet(32)] = ()
    """Scopes a caller must hold, all of them, to share the cache and the texts; without them it is answered cold."""
    policy_version: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Raise it when tenants or scopes changed their meaning elsewhere: blocks of the older policy become unreadable."""


class TierQuota(Spec):
    """Room in one tier of every node."""

    rules = (
        Rule(
            # What is no quantity at all is refused by the field's own rule, with the better message.
            cel=(
                "!has(self.ceiling) || !isQuantity(self.floor) || !isQuantity(self.ceiling)"
                " || quantity(self.floor).compareTo(quantity(self.ceiling)) <= 0"
            ),
            says="the floor is at most the ceiling",
            cure="lower the floor or raise the ceiling",
            broken=lambda q: when(q.ceiling is not None and q.floor.bytes > q.ceiling.bytes),
        ),
    )

    floor: Quantity = Quantity("0")
    """Room that no other namespace can take."""
    ceiling: Quantity | None = None
    """Room that this namespace never exceeds; absent means the whole tier."""


class QuotaSpec(Spec):
    """Room on every node, by tier."""

    device: TierQuota = TierQuota()
    """GPU memory."""
    host: TierQuota = TierQuota()
    """Host memory."""
    disk: TierQuota = TierQuota()
    """Local disk."""
    per_tenant_share: Percent = 100
    """Percent of the namespace's room that one tenant's private blocks may fill."""


class TtlSpec(Spec):
    """How long a block may be reused."""

    duration: Annotated[Duration, Between("1s", "87600h")] = Duration("24h")
    """Time until a block is unreadable. Declared prefixes are warmed anew."""
    mode: Literal["Sliding", "Fixed"] = "Sliding"
    """Sliding counts from the last use, Fixed from the computation."""


class EvictionSpec(Spec):
    """What leaves first when the namespace is full."""

    rules = (
        Rule(
            cel="self.lowWatermark < self.highWatermark",
            says="lowWatermark is below highWatermark",
            cure="lower lowWatermark: eviction starts at the high mark and stops at the low one",
            broken=lambda e: when(e.low_watermark >= e.high_watermark),
        ),
    )

    policy: Literal["lru", "s3fifo", "costAware"] = "costAware"
    """lru: least recently used. s3fifo: resists scans. costAware: keeps what is likely to be reused."""
    high_watermark: Annotated[int, Field(ge=1, le=100)] = 90
    """Percent of the room at which eviction starts."""
    low_watermark: Percent = 80
    """Percent of the room at which it stops."""
    max_branches: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Continuations kept below one block, per caller; the least recent goes first."""


class ErasureWaiver(Spec):
    """Accepts that named nodes will never give a receipt. Kept on record."""

    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why it is acceptable."""
    approved_by: Annotated[str, Field(min_length=1, max_length=253)]
    """Who decided."""
    nodes: Annotated[tuple[DnsName, ...], ListSet(64, min_items=1)]
    """Nodes the waiver covers; others still need a receipt."""


class ErasureSpec(Spec):
    """Part of the namespace's cached data to be erased: all of a tenant, of one user of it, or of a document.

    Carried out once, over what is cached when it is declared; what arrives later is new data. The whole namespace is
    erased by deleting it.
    """

    rules = (
        Rule(
            cel="has(self.user) || has(self.tenant) != has(self.document)",
            says="exactly one of tenant, document is set",
            cure="keep the one you mean, and write another entry for the other",
            broken=lambda e: when(e.user is None and (e.tenant is None) == (e.document is None)),
        ),
        Rule(
            cel="!has(self.user) || (has(self.tenant) && !has(self.document))",
            says="a user is given with its tenant and without a document",
            cure="add the tenant whose user it is, and write another entry for the document",
            broken=lambda e: when(e.user is not None and (e.tenant is None or e.document is not None)),
        ),
    )

    name: DnsLabel
    """Name of the entry. To erase the same again later, declare it again under another name."""
    tenant: Principal | None = None
    """Tenant, as the credentials spell it: everything of it, or with user only that user's."""
    user: Principal | None = None
    """User of that tenant, as the credentials spell it."""
    document: DnsLabel | None = None
    """Name of a document, in all its versions; it need not be declared any more."""


MAX_ERASURES = 64


class PrivacySpec(Spec):
    """What deletion must prove and what may be stored."""

    erase: Literal["Verified", "BestEffort"] = "Verified"
    """Verified: the object goes only on evidence from every node that ever held its data. BestEffort: after one try."""
    waiver: ErasureWaiver | None = None
    """Accepts missing receipts of named nodes."""
    erasures: Annotated[tuple[ErasureSpec, ...], ListMap(MAX_ERASURES)] = ()
    """Parts of the cached data to be erased, each once. An entry may be removed when it is done."""
    lossy_codecs: Literal["Forbidden", "Allowed"] = "Forbidden"
    """Whether a model version with a lossy codec may be used: a hit then equals a cold run up to the codec's error."""


class FreshnessSpec(Spec):
    """How long a member may go on without hearing from the control plane."""

    lease: Annotated[Duration, Between("1s", "24h")] = Duration("30s")
    """Longest time a cut-off node or gateway may still reuse; also the longest an invalidation can take to complete."""
    on_control_plane_loss: Literal["ServeCold", "FailClosed"] = "ServeCold"
    """Without a lease: answer without cache, or refuse."""
