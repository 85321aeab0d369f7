"""CacheNode: what one member of the fleet (a node's daemon or a gateway) holds and has acknowledged.

Written by the operator alone, before the member's first lease and rarely after, so that facts survive an operator
restart: who may still hold a namespace's data, and which epochs were seen.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kvgrove_crds.base import API_VERSION, Resource, Spec, Status
from kvgrove_crds.cel import Transition
from kvgrove_crds.conditions import Conditions
from kvgrove_crds.containers import ListSet, OwnedListMap
from kvgrove_crds.names import DnsLabel, DnsName, FullGeneration

Count = Annotated[int, Field(ge=0)]
Counter = Annotated[int, Field(ge=0, le=2**53 - 1)]
Uid = Annotated[str, Field(min_length=1, max_length=64)]

SHOWN_NAMESPACES = 32
"""Of a member's namespaces, told of one by one."""


class CacheNodeSpec(Spec):
    """Which member this object is about."""

    transitions = (
        Transition(
            cel="self == oldSelf",
            says="the spec of a CacheNode is immutable: it names one member",
            cure="leave it to the operator, which makes one object for each member",
            broken=lambda old, new: old != new,
        ),
    )

    member: Literal["Daemon", "Gateway"] = "Daemon"
    """A node's daemon or a gateway."""
    node_name: DnsName
    """Name of the Node it runs on."""


class PlanRevision(Status):
    """Plans are ordered by (term, n)."""

    term: Counter
    """Rises with each leader."""
    n: Counter
    """Rises with each plan of a leader."""


class PoolCapacity(Status):
    """Pool bytes of the member, by tier."""

    device_bytes: Count = 0
    """GPU memory."""
    host_bytes: Count = 0
    """Host memory."""
    disk_bytes: Count = 0
    """Disk."""


class HeldGeneration(Status):
    """A generation that the member has loaded."""

    generation: FullGeneration
    """The generation."""
    model_version: DnsLabel
    """ModelVersion that it belongs to."""
    layout: Annotated[str, Field(max_length=64)] = ""
    """Layout fingerprint: blocks move only between equal ones."""
    state: Literal["Loading", "Ready", "Failed", "Draining"] = "Loading"
    """Where it stands."""
    message: Annotated[str, Field(max_length=512)] = ""
    """What helps where it failed."""


class HeldNamespace(Status):
    """A namespace whose data the member may hold."""

    uid: Uid
    """UID of the namespace object; a re-created one has another."""
    namespace: DnsLabel
    """Its Kubernetes namespace."""
    name: DnsLabel
    """Its name."""
    bytes: Count = 0
    """Bytes it holds, all tiers together."""
    ready: Count = 0
    """Wanted blocks that are ready."""
    wanted: Count = 0
    """Wanted blocks."""


class CacheNodeSummary(Status):
    """Texts for kubectl's columns."""

    generations: Annotated[str, Field(max_length=64)] = ""
    """Ready and planned generations, like 2/2."""
    warm: Annotated[str, Field(max_length=32)] = ""
    """Ready and wanted blocks, like 120/128."""
    hit_ratio: Annotated[str, Field(max_length=8)] = ""
    """Hit ratio of the last five minutes, like 93%."""


class CacheNodeStatus(Status):
    """Observed member."""

    observed_generation: Count = 0
    """metadata.generation that this status describes."""
    phase: Literal["Pending", "Ready", "Draining", "Unreachable", "Gone"] = "Pending"
    """One word for where it stands."""
    conditions: Conditions = ()
    """Ready."""
    pod_uid: Uid | None = None
    """UID of its pod."""
    boot_id: Annotated[str, Field(max_length=64)] | None = None
    """Random id of its current process."""
    capabilities: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], ListSet(64)] = ()
    """What it said it can do."""
    applied: PlanRevision | None = None
    """Latest plan it has applied."""
    last_report_time: datetime | None = None
    """When it was last heard, to the minute (so that idle nodes cause few writes)."""
    pool: PoolCapacity = PoolCapacity()
    """Pool bytes by tier."""
    generations: Annotated[tuple[HeldGeneration, ...], OwnedListMap(64, key="generation")] = ()
    """Generations it has loaded."""
    held: Count = 0
    """Namespaces whose data it may hold."""
    namespaces: Annotated[tuple[HeldNamespace, ...], OwnedListMap(SHOWN_NAMESPACES, key="uid")] = ()
    """The first of them, those that are not warm before the others."""
    records: Annotated[str, Field(max_length=1 << 20)] = ""
    """What the operator must not forget of the member, as JSON: who may hold a lease on what, and which counters the
    member has acknowledged. One text, because an API server checks every field of every object on each write.
    """
    summary: CacheNodeSummary = CacheNodeSummary()
    """Texts for kubectl's columns."""


class CacheNode(Resource):
    """What one member of the fleet holds and has acknowledged. Written by the operator; read-only to people."""

    api_version: Literal["kvgrove.dev/v1alpha1"] = API_VERSION
    kind: Literal["CacheNode"] = "CacheNode"
    spec: CacheNodeSpec
    status: CacheNodeStatus | None = None
