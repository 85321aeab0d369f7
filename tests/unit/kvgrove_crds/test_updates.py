"""What may change on a living object, and what is a new object."""

from typing import Any

import pytest

from kvgrove_crds import CacheNode, ModelVersion, PromptCacheNamespace, refused_transitions

VERSION: dict[str, Any] = {"source": {"hostPath": {"path": "/m"}}}
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
TONE = {"name": "tone", "source": {"hostPath": {"path": "/tone"}}}
GERMAN = {"name": "german", "source": {"hostPath": {"path": "/german"}}}


def version(**spec: Any) -> ModelVersion:
    return ModelVersion.model_validate({"metadata": {"name": "m"}, "spec": {**VERSION, **spec}})


def namespace(status: dict[str, Any] | None = None, **spec: Any) -> PromptCacheNamespace:
    body = {"metadata": {"name": "n"}, "spec": {"modelVersionRef": {"name": "m"}, **spec}, "status": status}
    return PromptCacheNamespace.model_validate(body)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {"source": {"hostPath": {"path": "/other"}}}, "spec.source"),
        ({}, {"kvFormat": {"blockSize": 64}}, "spec.kvFormat"),
        ({}, {"chatTemplateFrom": {"inline": "x"}}, "spec.chatTemplateFrom"),
        ({"tokenizerFrom": {"hostPath": {"path": "/t"}}}, {}, "spec.tokenizerFrom"),
        ({"adapters": [TONE]}, {"adapters": [TONE, GERMAN]}, "spec.adapters"),
        ({}, {"rope": {"type": "linear", "factor": 2}}, "spec.rope"),
        ({"digests": {"weights": DIGEST}}, {"digests": {"weights": OTHER}}, "spec.digests"),
        ({"digests": {"weights": DIGEST}}, {}, "spec.digests"),
    ],
)
def test_identity_is_immutable_and_the_message_says_the_cure(
    before: dict[str, Any], after: dict[str, Any], field: str
) -> None:
    ((path, transition),) = refused_transitions(version(**before), version(**after))
    assert path == "spec"
    assert field in transition.message
    assert "create a new ModelVersion" in transition.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"engine": {"maxBatchSize": 4}}),
        ({}, {"pool": {"host": "2Gi"}}),
        ({}, {"kvFormat": {"blockSize": 32}}),
        ({}, {"digests": {"weights": DIGEST}}),
        ({"digests": {"weights": DIGEST}}, {"digests": {"weights": DIGEST, "tokenizer": OTHER}}),
        ({"adapters": [TONE, GERMAN]}, {"adapters": [GERMAN, TONE]}),
        ({}, {"adapters": []}),
        ({}, {"credentialsSecretRef": {"name": "token"}}),
    ],
)
def test_everything_else_may_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert refused_transitions(version(**before), version(**after)) == []


def test_what_is_another_object_is_not_compared() -> None:
    other = ModelVersion.model_validate({"metadata": {"name": "o"}, "spec": {"source": {"hostPath": {"path": "/o"}}}})
    assert refused_transitions(version(), other) == []


def test_policy_version_never_falls_but_the_purge_epoch_may() -> None:
    before = namespace(access={"policyVersion": 2}, purge={"epoch": 5})
    assert refused_transitions(before, namespace(access={"policyVersion": 2}, purge={"epoch": 4})) == []
    ((path, transition),) = refused_transitions(before, namespace())
    assert path == "spec.access"
    assert "policyVersion never falls" in transition.message


@pytest.mark.parametrize(
    "after",
    [
        {"purge": {"counter": 6, "nonce": "b"}, "documentRevision": 3},
        {"purge": {"counter": 7, "nonce": "b"}, "documentRevision": 2},
        {"documentRevision": 3},
        None,
    ],
)
def test_counters_in_status_never_fall(after: dict[str, Any] | None) -> None:
    before = namespace({"purge": {"counter": 7, "nonce": "a"}, "documentRevision": 3})
    assert len(refused_transitions(before, namespace(after))) == 1
    assert refused_transitions(before, namespace({"purge": {"counter": 8, "nonce": "b"}, "documentRevision": 3})) == []


def test_a_cache_node_is_about_one_member_for_ever() -> None:
    def node(name: str) -> CacheNode:
        return CacheNode.model_validate({"metadata": {"name": "n"}, "spec": {"nodeName": name}})

    assert refused_transitions(node("a"), node("a")) == []
    assert len(refused_transitions(node("a"), node("b"))) == 1
