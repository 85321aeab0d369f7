"""Messages between members (daemons, gateways) and whoever plans for them: the operator, or ``kvgrove up``.

Members dial (DEALER -> ROUTER): ``Hello``, then plans come down and reports go up. Both are levels: applying a plan
twice changes nothing, a lower revision is ignored (DESIGN section 7). Only what changed since an earlier one may be
sent; `changes` makes the whole of it. A plan is applied namespace by namespace, and carries digests of bodies; the
bodies themselves are asked for over the same link and kept in memory.
"""

import msgspec

from kvgrove_protocol.chain import DocumentRef
from kvgrove_protocol.codec import OLDEST_SUPPORTED_VERSION, PROTOCOL_VERSION, Codec
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import GenerationInputs, Isolation, Purge
from kvgrove_protocol.receipts import Receipt


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Revision(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """``term`` of the leader that made the plan, and its number within the term."""

    term: int
    n: int


NO_REVISION = Revision(term=0, n=0)
"""Before every plan that is issued."""

DAEMON, GATEWAY = "daemon", "gateway"


# -- the plan ----------------------------------------------------------------------------------------------------------


class AdapterPlan(_Part, frozen=True, kw_only=True):
    """A LoRA adapter to be merged into a model's weights."""

    name: str
    """For people; it is no part of any key."""
    path: str
    """Directory, as the member sees it."""
    digest: str = ""
    """Pinned content, ``sha256:<hex>``: a member that finds another serves nothing of the model; empty: any."""


class ModelPlan(_Part, frozen=True, kw_only=True):
    """One ModelVersion that this node is to hold."""

    name: str
    path: str
    """Directory of the weights, as the member sees it."""
    tokenizer_path: str = ""
    """Directory of the tokenizer; empty: beside the weights."""
    adapters: list[AdapterPlan] = []
    chat_template: bytes = b""
    """Digest of an overriding template's body; empty: the tokenizer's own."""
    kv_dtype: str = "auto"
    kv_codec: str = "none"
    """Of the lower tiers: ``none``, ``int8``, ``fp8-e4m3`` or ``int4``."""
    block_size: int = 32
    max_model_len: int = 0
    """0: the model's own limit."""
    max_batch: int = 16
    prefill_chunk: int = 512
    pool_bytes: dict[str, int] = {}
    """Tier -> bytes."""
    generation: bytes = b""
    """Named by the planner once the nodes' digests agree; empty until then: not served."""
    inputs: GenerationInputs | None = None
    """What the generation was computed from; set with it."""
    tokenizer_bundle: bytes = b""
    """Digest of the bundle that gateways fetch from a daemon; set with ``generation``."""
    reported_len: int = 0
    """The most tokens that any node takes, as they report; 0: not known. Gateways refuse by it what fits nowhere."""
    placement: str = ""
    """Of the daemons that hold it; see `fits`."""

    @property
    def known_len(self) -> int:
        """Tokens that the model surely does not exceed; 0: not known."""
        return self.max_model_len or self.reported_len


class DocumentPlan(_Part, frozen=True, kw_only=True):
    name: str
    version: str
    body: bytes
    """Digest of the text."""
    epoch: int
    scopes: list[str] = []
    """A caller needs all of these; empty: everyone the namespace admits."""

    @property
    def reference(self) -> DocumentRef:
        """What folds into block keys: the same on every member."""
        return DocumentRef(id=self.name, digest=self.body, epoch=self.epoch)


class PrefixPlan(_Part, frozen=True, kw_only=True):
    name: str
    version: str
    body: bytes
    documents: list[str] = []
    """Documents that belong to the prefix, in order."""


class QuotaPlan(_Part, frozen=True, kw_only=True):
    floor: int = 0
    ceiling: int = 0
    """0: no limit but the pool."""


class TtlPlan(_Part, frozen=True, kw_only=True):
    """How long a block may be reused."""

    seconds: float = 86400.0
    sliding: bool = True
    """True: from the last use. False: from the computation."""


class EvictionPlan(_Part, frozen=True, kw_only=True):
    """What leaves first when the namespace is full."""

    policy: str = "costAware"
    """``lru``, ``s3fifo`` or ``costAware``."""
    high_watermark: int = 90
    """Percent of its room at which eviction starts."""
    low_watermark: int = 80
    """Percent of its room at which it stops."""
    max_branches: int = 1024
    """Continuations kept below one block, per contributor."""


class PricingPlan(_Part, frozen=True, kw_only=True):
    """Prices by which savings are shown; they decide nothing. All in ``currency``."""

    currency: str = "USD"
    """ISO 4217 code."""
    input_per_million_tokens: float = 0.0
    cached_input_per_million_tokens: float = 0.0
    """At most the price above."""
    output_per_million_tokens: float = 0.0
    storage_per_gibibyte_hour: float = 0.0


class ErasurePlan(_Part, frozen=True, kw_only=True):
    """Part of a namespace to be erased, once; what arrives later is new data. Exactly one selector is set."""

    id: str
    """Names it in receipts."""
    epoch: int
    """Rises with each erasure of the namespace: what was admitted under a lower one is not stored any more."""
    tenant: bytes = b""
    """Pseudonym of a tenant (`identity.Contributor.tenant`)."""
    user: bytes = b""
    """Pseudonym of a user of a tenant (`identity.Contributor.user`); ``tenant`` is set with it."""
    document: str = ""
    """Name of a document, in all its versions."""
    root: bytes = b""
    """Shared realm of a generation that is not served any more: everything that was computed under it."""


class GenerationPlan(_Part, frozen=True, kw_only=True):
    """A generation that is served beside the one of `NamespacePlan.model`, over the same pools and never the same keys.

    A conversation stays on the generation that holds its history for as long as that is planned.
    """

    model: str
    """Name of its ModelPlan, which has a ``generation``."""
    weight: int = 0
    """Percent of new conversations that it takes; `NamespacePlan.model` takes the rest."""


class NamespacePlan(_Part, frozen=True, kw_only=True):
    uid: str
    name: str
    """``<k8s namespace>/<name>``: what requests put into ``model``."""
    aliases: list[str] = []
    model: str
    """Name of the ModelPlan that serves now."""
    generations: list[GenerationPlan] = []
    """Others, side by side with it: of a rollout under way, or of one whose window is still open."""
    isolation: Isolation = Isolation.TENANT
    tenants: list[str] | None = None
    """None: every verified tenant. Empty: nobody."""
    scopes: list[str] = []
    """A caller needs all of these."""
    policy_version: int = 1
    purge: Purge
    fence: Fence
    documents: list[DocumentPlan] = []
    coming: list[DocumentPlan] = []
    """Next versions of some of ``documents``: nodes warm the prefixes that hold them; nobody may refer to them yet."""
    prefixes: list[PrefixPlan] = []
    warm: list[str] = []
    """Names of the prefixes to keep warm."""
    warm_chains: int = 0
    """Hottest chains to compute for another generation too, where tokenizer and template are equal."""
    warm_parallelism: int = 1
    """Warm-up prefills at a time on one node."""
    quota: dict[str, QuotaPlan] = {}
    lease_seconds: float = 30.0
    fail_closed: bool = False
    """Without a lease: refuse (True) or answer cold (False)."""
    suspended: bool = False
    events_export: bool = False
    """Whether residency events, which carry token ids, may leave the fleet's own links for this namespace."""
    tenant_share: int = 100
    """Percent of the namespace's room that one tenant's private blocks may fill."""
    ttl: TtlPlan = TtlPlan()
    eviction: EvictionPlan = EvictionPlan()
    pricing: PricingPlan | None = None
    """None: savings are counted in tokens and time, and not in money."""
    erasures: list[ErasurePlan] = []
    """Of parts of it; each stays listed until every holder has given its receipt."""
    secret: bytes = b""
    """Wraps the data keys of disk extents; in memory only, forgotten at lease end."""
    former_secret: bytes = b""
    """Set while survivors of an erasure are to be rewrapped from it to ``secret``; then it is destroyed."""
    pseudonym_key: bytes = b""
    """Keys the pseudonyms of contributors; stays the same for the life of the namespace."""


class NodeEndpoint(_Part, frozen=True, kw_only=True):
    """A daemon as gateways reach it."""

    member: str
    boot: str
    address: str
    placement: str = ""


def fits(daemon: str, model: str) -> bool:
    """Whether a daemon of placement ``daemon`` holds a model of placement ``model``; an empty one fits all."""
    return not daemon or not model or daemon == model


class NodePlan(_Message, frozen=True, kw_only=True, tag="node_plan"):
    """All that one member should hold and know. Gateways get ``nodes`` too."""

    revision: Revision
    models: list[ModelPlan] = []
    namespaces: list[NamespacePlan] = []
    erase_uids: list[str] = []
    """Namespaces that are gone: erase what is left of them."""
    nodes: list[NodeEndpoint] = []


class PlanChanges(_Message, frozen=True, kw_only=True, tag="plan_changes"):
    """What makes a plan of the plan ``base``; None: as there."""

    revision: Revision
    base: Revision
    models: list[ModelPlan] | None = None
    namespaces: list[NamespacePlan] = []
    """Those that are new or differ."""
    gone: list[str] = []
    """UIDs of those that are not planned any more."""
    erase_uids: list[str] | None = None
    nodes: list[NodeEndpoint] | None = None


# -- member -> planner -------------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    member: str
    role: str
    """DAEMON or GATEWAY."""
    boot: str
    pod_uid: str = ""
    address: str = ""
    """Where gateways reach a daemon's data socket."""
    placement: str = ""
    """Of a daemon: it is told of the models of this placement; empty: of all."""
    capabilities: list[str] = []
    epochs_seen: dict[str, int] = {}
    """Namespace UID -> highest purge counter this member ever applied, also in earlier boots."""
    namespace_uids: list[str] = []
    """Namespaces of which this member may still hold bytes."""
    public_key: bytes = b""
    """What its receipts are checked with (Ed25519, 32 bytes)."""
    oldest_version: int = OLDEST_SUPPORTED_VERSION
    newest_version: int = PROTOCOL_VERSION


class ModelReport(_Part, frozen=True, kw_only=True):
    name: str
    state: str
    """``loading``, ``ready`` or ``failed``."""
    inputs: GenerationInputs | None = None
    tokenizer_bundle: bytes = b""
    """Digest of the bundle that gateways fetch."""
    adapters: dict[str, str] = {}
    """Name -> digest of the adapters in the weights."""
    layout: bytes = b""
    max_model_len: int = 0
    code: str = ""
    message: str = ""


TTFT_BOUNDS_S = tuple(round(0.005 * 1.5**n, 6) for n in range(24))
"""Upper bounds of the buckets in which gateways count times to first token, in seconds: 5 ms to 56 s."""


class GenerationReport(_Part, frozen=True, kw_only=True):
    """What a member knows of one generation of a namespace that has several: its presence says that it serves it.

    Daemons tell how warm it is, gateways what they counted since they began.
    """

    generation: bytes
    warm_ready: int = 0
    warm_wanted: int = 0
    warm_resolved: bool = False
    """As in `NamespaceReport`."""
    requests: int = 0
    failed: int = 0
    """Requests that ended by no fault of the caller, and without an answer."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    ttft: list[int] = []
    """Requests by time to first token: below each of `TTFT_BOUNDS_S`, and the rest."""


class NamespaceReport(_Part, frozen=True, kw_only=True, gc=False):  # a planner of a large fleet keeps 100,000 of them
    uid: str
    fence: Fence
    """The fence this member enforces now: the acknowledgement of an invalidation."""
    purge_counter: int
    warm_ready: int = 0
    warm_wanted: int = 0
    warm_resolved: bool = True
    """Whether the two figures above are of the warm set of ``fence``: its texts may still be on their way."""
    coming: list[int] = []
    """Epochs of the coming versions of documents that the two figures below are of."""
    coming_ready: int = 0
    coming_wanted: int = 0
    generations: list[GenerationReport] = []
    """Only where the plan has several of this namespace."""
    blocks: int = 0
    bytes: int = 0
    quota_ok: bool = True
    code: str = ""
    message: str = ""


class NodeReport(_Message, frozen=True, kw_only=True, tag="node_report"):
    """The state of a member, and its request for leases. The deadline of a grant counts from when this was sent."""

    report_id: int
    applied: Revision
    models: list[ModelReport] = []
    namespaces: list[NamespaceReport] = []
    receipts: list[Receipt] = []
    base: int = 0
    """Id of the report sent before on this connection, where ``namespaces`` are only those that differ from it or are
    new; 0: they are all."""
    gone: list[str] = []
    """UIDs of those of ``base`` that are not reported any more."""
    plan_wanted: bool = False
    """Changes came whose base this member lacks: it is to be sent the whole plan."""


class BodyRequest(_Message, frozen=True, kw_only=True, tag="body_request"):
    digests: list[bytes]


class Goodbye(_Message, frozen=True, kw_only=True, tag="goodbye"):
    """An orderly end: this boot will not use a lease again."""


# -- planner -> member -------------------------------------------------------------------------------------------------


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    version: int
    term: int


class Refused(_Message, frozen=True, kw_only=True, tag="refused"):
    code: str
    message: str


class LeaseGrant(_Message, frozen=True, kw_only=True, tag="lease_grant"):
    """Answers report ``report_id``: namespace UID -> seconds, from the sending of that report."""

    report_id: int
    revision: Revision
    seconds: dict[str, float]


class Bodies(_Message, frozen=True, kw_only=True, tag="bodies"):
    """Digest and body of what was asked for and is known; the rest is left out."""

    items: list[tuple[bytes, bytes]]


ToPlanner = Hello | NodeReport | BodyRequest | Goodbye
ToMember = Welcome | Refused | NodePlan | PlanChanges | LeaseGrant | Bodies

TO_PLANNER: Codec[ToPlanner] = Codec(ToPlanner)
TO_MEMBER: Codec[ToMember] = Codec(ToMember)
