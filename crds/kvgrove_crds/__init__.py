"""The three resource kinds of kvgrove: their models, and the CRDs generated from them.

The one source of truth for field names, bounds, defaults and rules. Knows neither how objects reach an API server nor
what is planned from them.
"""

from kvgrove_crds.base import API_VERSION, DEFAULT_NAMESPACE, GROUP, VERSION, ObjectMeta
from kvgrove_crds.cache_node import (
    CacheNode,
    CacheNodeSpec,
    CacheNodeStatus,
    HeldGeneration,
    HeldNamespace,
    PlanRevision,
)
from kvgrove_crds.conditions import (
    CACHE_NODE_CONDITIONS,
    MODEL_VERSION_CONDITIONS,
    NAMESPACE_CONDITIONS,
    Condition,
    ConditionType,
)
from kvgrove_crds.durations import Duration
from kvgrove_crds.engine import EngineSpec, PoolSpec, Resources, Toleration
from kvgrove_crds.manifests import ConfigMap, Manifests, load_manifests, load_text, parse_manifest
from kvgrove_crds.model_identity import AdapterSpec, ChatTemplateSource, DigestPins, KvFormat, RopeSpec
from kvgrove_crds.model_version import (
    ModelVersion,
    ModelVersionSpec,
    ModelVersionStatus,
    NodeCounts,
    ResolvedDigests,
)
from kvgrove_crds.namespace import ModelVersionRef, PromptCacheNamespace, PromptCacheNamespaceSpec, PurgeSpec
from kvgrove_crds.namespace_access import (
    AccessSpec,
    ErasureWaiver,
    EvictionSpec,
    FreshnessSpec,
    Isolation,
    PrivacySpec,
    QuotaSpec,
    TierQuota,
    TtlSpec,
)
from kvgrove_crds.namespace_content import DocumentSpec, PrefixSpec
from kvgrove_crds.namespace_delivery import AnalysisSpec, RolloutSpec, RolloutStep, WarmupSpec
from kvgrove_crds.namespace_extras import (
    AlertsSpec,
    EventsSpec,
    ExactResponseCache,
    PricingSpec,
    ResponseCacheSpec,
    SemanticResponseCache,
)
from kvgrove_crds.namespace_status import (
    DocumentStatus,
    ErasureStatus,
    InvalidationStatus,
    PromptCacheNamespaceStatus,
    PurgeStatus,
    RolloutStatus,
    UsageStatus,
    WarmthStatus,
    WorstNode,
)
from kvgrove_crds.problems import ManifestError, Problem
from kvgrove_crds.quantities import Quantity
from kvgrove_crds.reasons import ConditionReason
from kvgrove_crds.sources import (
    ConfigMapKeyRef,
    HostPathSource,
    HuggingFaceSource,
    ModelSource,
    PvcSource,
    SecretKeyRef,
    TokenizerSource,
)
from kvgrove_crds.updates import refused_transitions

__all__ = [
    "API_VERSION",
    "CACHE_NODE_CONDITIONS",
    "DEFAULT_NAMESPACE",
    "GROUP",
    "MODEL_VERSION_CONDITIONS",
    "NAMESPACE_CONDITIONS",
    "VERSION",
    "AccessSpec",
    "AdapterSpec",
    "AlertsSpec",
    "AnalysisSpec",
    "CacheNode",
    "CacheNodeSpec",
    "CacheNodeStatus",
    "ChatTemplateSource",
    "Condition",
    "ConditionReason",
    "ConditionType",
    "ConfigMap",
    "ConfigMapKeyRef",
    "DigestPins",
    "DocumentSpec",
    "DocumentStatus",
    "Duration",
    "EngineSpec",
    "ErasureStatus",
    "ErasureWaiver",
    "EventsSpec",
    "EvictionSpec",
    "ExactResponseCache",
    "FreshnessSpec",
    "HeldGeneration",
    "HeldNamespace",
    "HostPathSource",
    "HuggingFaceSource",
    "InvalidationStatus",
    "Isolation",
    "KvFormat",
    "ManifestError",
    "Manifests",
    "ModelSource",
    "ModelVersion",
    "ModelVersionRef",
    "ModelVersionSpec",
    "ModelVersionStatus",
    "NodeCounts",
    "ObjectMeta",
    "PlanRevision",
    "PoolSpec",
    "PrefixSpec",
    "PricingSpec",
    "PrivacySpec",
    "Problem",
    "PromptCacheNamespace",
    "PromptCacheNamespaceSpec",
    "PromptCacheNamespaceStatus",
    "PurgeSpec",
    "PurgeStatus",
    "PvcSource",
    "Quantity",
    "QuotaSpec",
    "ResolvedDigests",
    "Resources",
    "ResponseCacheSpec",
    "RolloutSpec",
    "RolloutStatus",
    "RolloutStep",
    "RopeSpec",
    "SecretKeyRef",
    "SemanticResponseCache",
    "TierQuota",
    "TokenizerSource",
    "Toleration",
    "TtlSpec",
    "UsageStatus",
    "WarmthStatus",
    "WarmupSpec",
    "WorstNode",
    "load_manifests",
    "load_text",
    "parse_manifest",
    "refused_transitions",
]
