"""A status of each kind with every field set, as the operator would write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

DIGEST = "sha256:" + "ab" * 32
GENERATION = "0123456789abcdef" * 4
NOON = "2026-11-29T12:00:00Z"
_READY = {
    "type": "Ready",
    "status": "True",
    "observedGeneration": 3,
    "lastTransitionTime": NOON,
    "reason": "AllNodesReady",
    "message": "all is well",
}

MODEL_VERSION: dict[str, Any] = {
    "observedGeneration": 1,
    "phase": "Ready",
    "conditions": [_READY],
    "generation": GENERATION,
    "digests": {
        "weights": DIGEST,
        "tokenizer": DIGEST,
        "chatTemplate": DIGEST,
        "adapters": [{"name": "tone", "digest": DIGEST}],
    },
    "nodes": {"desired": 6, "loaded": 5, "verified": 4, "ready": 3, "failed": 2, "unreachable": 1},
    "kvBytesPerToken": 23040,
    "maxModelLen": 8192,
    "usedBy": 2,
    "summary": {"generation": GENERATION[:12], "nodes": "3/6"},
}

NAMESPACE: dict[str, Any] = {
    "observedGeneration": 3,
    "phase": "RollingOut",
    "conditions": [_READY],
    "activeGeneration": GENERATION,
    "desiredGeneration": GENERATION,
    "previousGeneration": GENERATION,
    "purge": {"counter": 7, "nonce": "f00d", "observedEpoch": 4},
    "documentRevision": 9,
    "accessRevision": 5,
    "documents": [{"name": "manual", "version": "2", "digest": DIGEST, "epoch": 8}],
    "rollout": {
        "phase": "Shifting",
        "step": 1,
        "weight": 50,
        "stepStartedAt": NOON,
        "startedAt": NOON,
        "promotedAt": NOON,
        "changedFields": ["tokenizer"],
        "failures": 1,
        "inconclusive": 2,
        "notMeasured": 3,
    },
    "warmth": {"ready": 120, "wanted": 128, "startedAt": NOON},
    "usage": {"deviceBytes": 1, "hostBytes": 2, "diskBytes": 3, "tokens": 4, "hitRatio": 0.93},
    "invalidation": {
        "revision": 1,
        "requestedAt": NOON,
        "completedAt": NOON,
        "confirmed": 2,
        "expired": 3,
        "gone": 4,
        "pending": 5,
    },
    "erasure": {
        "revision": 1,
        "requestedAt": NOON,
        "completedAt": NOON,
        "receipts": 2,
        "shredded": 3,
        "waived": 4,
        "unreachable": 5,
        "failed": 6,
        "pending": 7,
    },
    "worstNodes": [{"node": "node-1", "reason": "NodeUnreachable", "message": "bring it back"}],
    "summary": {"generation": GENERATION[:12], "warm": "120/128", "hitRatio": "93%"},
}

CACHE_NODE: dict[str, Any] = {
    "observedGeneration": 1,
    "phase": "Ready",
    "conditions": [_READY],
    "podUid": "8f14e45f-ceea-467f-a8f6-000000000001",
    "bootId": "b00t",
    "capabilities": ["disk"],
    "applied": {"term": 3, "n": 14},
    "lastReportTime": NOON,
    "pool": {"deviceBytes": 1, "hostBytes": 2, "diskBytes": 3},
    "generations": [
        {
            "generation": GENERATION,
            "modelVersion": "smollm2-135m-v1",
            "layout": "layer-major",
            "state": "Ready",
            "message": "loaded",
        }
    ],
    "held": 1,
    "records": '{"boots":["b00t"],"held":{"8f14e45f-ceea-467f-a8f6-000000000002":[[[0,30.0]],[7,9,5]]}}',
    "namespaces": [
        {
            "uid": "8f14e45f-ceea-467f-a8f6-000000000002",
            "namespace": "shop",
            "name": "support-bot",
            "bytes": 4096,
            "ready": 120,
            "wanted": 128,
        }
    ],
    "summary": {"generations": "1/1", "warm": "120/128", "hitRatio": "93%"},
}


def unset_fields(value: Any, path: str = "status") -> Iterator[str]:
    """Paths of fields that a model has and a sample does not set: a sample must say something about each."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in set(type(value).model_fields) - value.model_fields_set)
        for name in value.model_fields_set:
            yield from unset_fields(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, tuple):
        for item in value:
            yield from unset_fields(item, f"{path}[]")
