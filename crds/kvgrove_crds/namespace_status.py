"""Observed state of a PromptCacheNamespace. Counts, names and digests only: never prompt text, token ids or keys."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import Status
from kvgrove_crds.cel import Transition
from kvgrove_crds.conditions import Conditions
from kvgrove_crds.containers import Bounded, ListMap
from kvgrove_crds.names import Digest, DnsLabel, DnsName, FullGeneration, Version
from kvgrove_crds.namespace_content import MAX_DOCUMENTS
from kvgrove_crds.reasons import OpenReason

Count = Annotated[int, Field(ge=0)]
Counter = Annotated[int, Field(ge=0, le=2**53 - 1)]
RolloutPhase = Literal[
    "Pending", "Loading", "Warming", "AwaitingApproval", "Shifting", "Promoted", "RollingBack", "RolledBack", "Stalled"
]


class PurgeStatus(Status):
    """The realm's (counter, nonce). Every change of spec.purge.epoch, in either direction, mints a new pair."""

    transitions = (
        Transition(
            cel="self.counter >= oldSelf.counter",
            says="status.purge.counter never falls: purged blocks would become readable again",
            cure="write a counter above every one that nodes have seen",
            broken=lambda old, new: new.counter < old.counter,
        ),
    )

    counter: Counter
    """Rises with every purge."""
    nonce: Annotated[str, Field(min_length=1, max_length=64)]
    """Random: a restored counter never forms the old keys."""
    observed_epoch: Counter = 0
    """spec.purge.epoch for which the pair was minted."""


class DocumentStatus(Status):
    """The current version of one document."""

    name: DnsLabel
    """Name in the spec."""
    version: Version
    """Version that requests get."""
    digest: Digest
    """Digest of its text."""
    epoch: Counter
    """Rises with each change, withdrawal or return."""


class RolloutStatus(Status):
    """Where the rollout stands."""

    phase: RolloutPhase = "Pending"
    """State of the rollout."""
    step: Count = 0
    """Index of the current step."""
    weight: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of new conversations on the desired generation."""
    step_started_at: datetime | None = None
    """When the step began."""
    started_at: datetime | None = None
    """When the rollout began."""
    promoted_at: datetime | None = None
    """When the active generation was promoted."""
    changed_fields: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Bounded(16)] = ()
    """Fields of the identity in which the desired generation differs from the active one."""
    failures: Count = 0
    """Failed measurements so far."""
    inconclusive: Count = 0
    """Inconclusive measurements in a row."""
    not_measured: Count = 0
    """Measurements in a row that could not be taken."""


class WarmthStatus(Status):
    """Blocks of the warm set, over all nodes, for the desired generation."""

    ready: Count = 0
    """Blocks that are ready."""
    wanted: Count = 0
    """Blocks that are wanted."""
    started_at: datetime | None = None
    """When this warm-up began."""


class UsageStatus(Status):
    """What the namespace takes, over all nodes."""

    device_bytes: Count = 0
    """GPU memory."""
    host_bytes: Count = 0
    """Host memory."""
    disk_bytes: Count = 0
    """Disk."""
    tokens: Count = 0
    """Tokens whose KV is kept."""
    hit_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Token-weighted hit ratio of the last five minutes, warm-up left out."""


class InvalidationStatus(Status):
    """The latest invalidation and who has confirmed it."""

    revision: Counter = 0
    """Rises with each invalidation."""
    requested_at: datetime | None = None
    """When it was asked for."""
    completed_at: datetime | None = None
    """When the last member confirmed or lost its lease."""
    confirmed: Count = 0
    """Members that acknowledged."""
    expired: Count = 0
    """Members whose lease ran out."""
    gone: Count = 0
    """Members that no longer exist and whose lease ran out."""
    pending: Count = 0
    """Members that are missing."""


class ErasureStatus(Status):
    """The latest erasure and its evidence."""

    revision: Counter = 0
    """Rises with each erasure."""
    requested_at: datetime | None = None
    """When it was asked for."""
    completed_at: datetime | None = None
    """When the evidence was complete."""
    receipts: Count = 0
    """Nodes that gave a receipt."""
    shredded: Count = 0
    """Nodes that are gone and whose data is noise without the destroyed secret."""
    waived: Count = 0
    """Nodes covered by the waiver."""
    unreachable: Count = 0
    """Nodes that are not heard."""
    failed: Count = 0
    """Nodes that reported a failure."""
    pending: Count = 0
    """Nodes that have not answered yet."""


class WorstNode(Status):
    """One node that holds the namespace back."""

    node: DnsName
    """Name of the node."""
    reason: OpenReason
    """Why."""
    message: Annotated[str, Field(max_length=512)] = ""
    """What helps."""


class NamespaceSummary(Status):
    """Texts for kubectl's columns."""

    generation: Annotated[str, Field(max_length=12)] = ""
    """First 12 digits of the active generation."""
    warm: Annotated[str, Field(max_length=32)] = ""
    """Ready and wanted blocks, like 120/128."""
    hit_ratio: Annotated[str, Field(max_length=8)] = ""
    """Hit ratio of the last five minutes, like 93%."""


class PromptCacheNamespaceStatus(Status):
    """Observed namespace."""

    transitions = (
        Transition(
            cel="self.documentRevision >= oldSelf.documentRevision && self.accessRevision >= oldSelf.accessRevision",
            says="status.documentRevision and status.accessRevision never fall",
            cure="write revisions above every one that members have seen",
            broken=lambda old, new: (
                new.document_revision < old.document_revision or new.access_revision < old.access_revision
            ),
        ),
    )

    observed_generation: Count = 0
    """metadata.generation that this status describes."""
    phase: Literal["Pending", "Warming", "Ready", "RollingOut", "Degraded", "Suspended", "Stalled", "Deleting"] = (
        "Pending"
    )
    """One word for where it stands; conditions say why."""
    conditions: Conditions = ()
    """Ready, Reconciling, Stalled, Warm, Promoted, InvalidationComplete, ErasureVerified, QuotaOK."""
    active_generation: FullGeneration | None = None
    """Generation that was promoted last; the target of a rollback."""
    desired_generation: FullGeneration | None = None
    """Generation of the ModelVersion that the spec names."""
    previous_generation: FullGeneration | None = None
    """Generation before the active one, until the window ends."""
    purge: PurgeStatus | None = None
    """Epoch of the realm."""
    document_revision: Counter = 0
    """Rises with each change of any document."""
    access_revision: Counter = 0
    """Rises with each change of access."""
    documents: Annotated[tuple[DocumentStatus, ...], ListMap(MAX_DOCUMENTS)] = ()
    """Current documents."""
    rollout: RolloutStatus = RolloutStatus()
    """Where the rollout stands."""
    warmth: WarmthStatus = WarmthStatus()
    """Blocks of the warm set."""
    usage: UsageStatus = UsageStatus()
    """What the namespace takes."""
    invalidation: InvalidationStatus = InvalidationStatus()
    """The latest invalidation."""
    erasure: ErasureStatus = ErasureStatus()
    """The latest erasure."""
    worst_nodes: Annotated[tuple[WorstNode, ...], Bounded(5)] = ()
    """A few nodes that hold it back."""
    summary: NamespaceSummary = NamespaceSummary()
    """Texts for kubectl's columns."""
