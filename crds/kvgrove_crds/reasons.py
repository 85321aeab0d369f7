"""The closed list of condition reasons, shared by code, documentation and alerts.

A reason is stable: dashboards and ``kubectl wait`` scripts match on it. The meaning beside each is what the
documentation prints. A message may say more (names, counts); it never holds prompt text, keys or secrets.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, WithJsonSchema


class ConditionReason(StrEnum):
    """Why a condition has its status. ``meaning`` is one sentence for people."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> "ConditionReason":
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # Ready
    ALL_NODES_READY = "AllNodesReady", "Every planned node holds what it should and has applied the latest plan."
    WAITING_FOR_NODES = "WaitingForNodes", "Some planned nodes have not reported the latest plan as applied."
    NO_NODES = "NoNodes", "No node matches the placement."
    NODE_UNREACHABLE = "NodeUnreachable", "A node has not been heard for longer than its lease."
    NODE_FAILED = "NodeFailed", "A node reported that it could not do what the plan asks."
    SUSPENDED = "Suspended", "spec.suspend is set: requests are answered without cache, nothing is warmed."
    DELETING = "Deleting", "The object is being deleted; its data is being erased first."
    MODEL_VERSION_NOT_FOUND = "ModelVersionNotFound", "spec.modelVersionRef names a ModelVersion that does not exist."
    MODEL_VERSION_NOT_READY = "ModelVersionNotReady", "The ModelVersion exists and is not ready yet."
    LOSSY_CODEC_FORBIDDEN = (
        "LossyCodecForbidden",
        "The ModelVersion stores KV by a lossy codec, which spec.privacy.lossyCodecs does not allow.",
    )
    CONTENT_NOT_FOUND = (
        "ContentNotFound",
        "A ConfigMap or key that a prefix, document or template names does not exist.",
    )
    ALIAS_CONFLICT = "AliasConflict", "Another namespace claimed the same alias earlier."
    INVALID_SPEC = "InvalidSpec", "The spec contradicts itself in a way that the schema cannot see."
    IN_USE = "InUse", "A ModelVersion cannot be deleted while namespaces use it."

    # Reconciling
    UP_TO_DATE = "UpToDate", "Status describes the latest spec and nothing is left to do."
    PROGRESSING = "Progressing", "Work for the latest spec is under way."

    # Stalled
    NOT_STALLED = "NotStalled", "Nothing blocks progress."
    RETRIES_EXHAUSTED = "RetriesExhausted", "Retries reached their bound; the next change or resync tries again."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "A step took longer than the spec allows; the last good state serves on."
    CRD_OUTDATED = "CrdOutdated", "The installed CRDs are older than the operator: apply the ones of its release."

    # DigestsVerified
    DIGESTS_AGREE = "DigestsAgree", "All nodes report the same digests, equal to the pinned ones."
    DIGESTS_PENDING = "DigestsPending", "No node has reported digests yet."
    DIGESTS_DISAGREE = "DigestsDisagree", "Nodes found different files under the same source."
    DIGEST_PIN_MISMATCH = "DigestPinMismatch", "What the nodes found differs from a digest that the spec pins."

    # Supported
    SUPPORTED = "Supported", "The engine can serve this architecture with reuse."
    SUPPORT_UNKNOWN = "SupportUnknown", "No node has loaded the model's config yet."
    UNSUPPORTED_ARCHITECTURE = (
        "UnsupportedArchitecture",
        "The model's state is not a KV per token, so it cannot be reused.",
    )
    UNSUPPORTED_FORMAT = "UnsupportedFormat", "The engine or the hardware cannot keep KV in the format asked for."
    WEIGHTS_MISSING = "WeightsMissing", "The source holds no weights that the engine can load."

    # Warm
    WARM = "Warm", "The share of wanted blocks that are ready reached the declared minimum."
    WARMING = "Warming", "Wanted blocks are being computed."
    NOTHING_TO_WARM = "NothingToWarm", "No prefixes are declared and there is no earlier generation to learn from."
    WARMUP_DEADLINE_EXCEEDED = "WarmupDeadlineExceeded", "The deadline passed below the minimum ratio."
    WARMUP_NOT_MEASURED = "WarmupNotMeasured", "Nodes did not report how warm they are."

    # Promoted
    PROMOTED = "Promoted", "The desired generation takes all new conversations."
    LOADING = "Loading", "Nodes are loading the desired generation."
    AWAITING_APPROVAL = "AwaitingApproval", "Warm; spec.rollout.approvedGeneration must name it before traffic shifts."
    SHIFTING = "Shifting", "Traffic is moving to the desired generation step by step."
    ROLLING_BACK = "RollingBack", "Traffic is moving back to the last promoted generation."
    ROLLED_BACK = "RolledBack", "The last promoted generation takes all traffic again."
    ANALYSIS_FAILED = "AnalysisFailed", "A measured value broke a declared limit."
    ANALYSIS_INCONCLUSIVE = "AnalysisInconclusive", "Too few requests to tell, for longer than allowed."
    ANALYSIS_NOT_MEASURED = "AnalysisNotMeasured", "Values could not be measured, for longer than allowed."

    # InvalidationComplete
    NOTHING_TO_INVALIDATE = "NothingToInvalidate", "No invalidation has been asked for."
    INVALIDATION_CONFIRMED = "InvalidationConfirmed", "Every recorded member acknowledged, or its lease has run out."
    INVALIDATION_PENDING = "InvalidationPending", "Some members have neither acknowledged nor lost their lease."

    # ErasureVerified
    NOTHING_TO_ERASE = "NothingToErase", "No erasure has been asked for."
    ERASURE_CONFIRMED = (
        "ErasureConfirmed",
        "Each node that ever held the data gave a receipt, or its secret is destroyed.",
    )
    ERASURE_PENDING = "ErasurePending", "Receipts are missing."
    ERASURE_WAIVED = "ErasureWaived", "spec.privacy.waiver accepts missing receipts; it is on record."

    # QuotaOK
    WITHIN_QUOTA = "WithinQuota", "The quota is applied on every node."
    QUOTA_UNKNOWN = "QuotaUnknown", "No node has reported its pool yet."
    QUOTA_EXCEEDS_POOL = "QuotaExceedsPool", "Floors together exceed a node's pool; the last good quota stays in force."


OpenReason = Annotated[
    ConditionReason | str,
    Field(union_mode="left_to_right"),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 128}),
]
"""A reason read back: a newer operator may have written one that an older one, taking over, does not know."""
