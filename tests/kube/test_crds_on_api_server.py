"""Our kinds on a real API server: it accepts and refuses what the models do, in their words, and keeps all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import whole_statuses
import yaml
from controlplane.plane import Plane

from kvgrove_crds import CacheNode, ManifestError, ModelVersion, ModelVersionSpec, PromptCacheNamespace, load_manifests
from kvgrove_crds.crd import DEFINITIONS

EXAMPLES = Path(__file__).parents[2] / "crds" / "examples"
VALID = sorted((EXAMPLES / "valid").rglob("*.yaml"))
INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))


def documents(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document]


def create(plane: Plane, item: Mapping[str, Any]) -> None:
    made = plane.kubectl("create", "-f", "-", stdin=json.dumps(item))
    assert made.returncode == 0, made.stderr


def patch(plane: Plane, target: str, namespace: str, change: Mapping[str, Any], *, status: bool = False) -> str:
    """Merges a change into an object; returns the words with which the API server refuses it, or nothing."""
    options = ["--subresource=status"] if status else []
    done = plane.kubectl("patch", target, "-n", namespace, "--type=merge", "-p", json.dumps(change), *options)
    return done.stderr if done.returncode else ""


def message_about(word: str) -> str:
    """The message of the one transition rule of a ModelVersion's spec that speaks of ``word``."""
    (rule,) = (rule for rule in ModelVersionSpec.transitions if word in rule.message)
    return rule.message


@pytest.fixture(scope="session")
def with_examples(crds: Plane) -> Plane:
    """The Kubernetes namespaces that examples name."""
    named = {item["metadata"].get("namespace", "default") for file in VALID for item in documents(file)}
    for name in sorted(named - {"default"}):
        create(crds, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return crds


def test_every_kind_is_served_with_its_rules(crds: Plane) -> None:
    for definition in DEFINITIONS:
        served = crds.get("crd", definition.name)
        conditions = {item["type"]: item["status"] for item in served["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"
        assert served["spec"]["versions"][0]["schema"] == definition.as_yaml()["spec"]["versions"][0]["schema"]


@pytest.mark.parametrize("file", VALID, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_valid_example_is_accepted(with_examples: Plane, file: Path) -> None:
    done = with_examples.kubectl(
        "apply", "--server-side", "--validate=strict", "--dry-run=server", "-o", "json", "-f", str(file)
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", VALID, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_the_api_server_fills_in_the_defaults_that_the_models_have(with_examples: Plane, file: Path) -> None:
    for item in documents(file):
        model: Any = {"ModelVersion": ModelVersion, "PromptCacheNamespace": PromptCacheNamespace}.get(item["kind"])
        if model is None:
            continue
        done = with_examples.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(item))
        assert done.returncode == 0, done.stderr
        stored = model.model_validate_json(done.stdout, strict=True, by_alias=True, by_name=False)
        assert stored.spec == model.model_validate(item).spec


@pytest.mark.parametrize("file", INVALID, ids=lambda file: file.stem)
def test_invalid_example_is_refused_with_the_words_of_the_models(crds: Plane, file: Path) -> None:
    with pytest.raises(ManifestError) as ours:
        load_manifests([file])
    (problem,) = ours.value.problems
    done = crds.kubectl("create", "--validate=strict", "--dry-run=server", "-f", str(file))
    assert done.returncode != 0, "the API server accepts it"
    own_words = re.search(r"^# expect-api: (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    if own_words is not None:  # it judges types, enums and duplicates before our rules
        assert own_words[1] in done.stderr
        return
    assert f"{problem.rule}; {problem.cure}" in done.stderr
    # A rule over several fields stands where they meet; the API server names that place, the models the field below.
    place = re.search(r"(?:is invalid: |^\* )(\S+): Invalid value", done.stderr, re.MULTILINE)
    assert place is not None, done.stderr
    assert place[1] == "<nil>" or problem.path.startswith(place[1])
    assert place[1] != "<nil>" or problem.path == "metadata.name"


def test_quickstart_applies_and_is_listed_by_short_name(crds: Plane) -> None:
    applied = crds.kubectl("apply", "-f", str(EXAMPLES / "valid" / "quickstart"))
    assert applied.returncode == 0, applied.stderr
    assert "smollm2-135m-v1" in crds.kubectl("get", "mv").stdout
    assert "support-bot" in crds.kubectl("get", "pcn").stdout
    assert "support-bot" in crds.kubectl("get", "kvgrove").stdout
    chosen = crds.kubectl("get", "pcn", "--field-selector=spec.modelVersionRef.name=smollm2-135m-v1", "-o", "name")
    assert chosen.stdout.split() == ["promptcachenamespace.kvgrove.dev/support-bot"]
    gone = crds.kubectl("delete", "-f", str(EXAMPLES / "valid" / "quickstart"))
    assert gone.returncode == 0, gone.stderr


MODEL = {
    "apiVersion": "kvgrove.dev/v1alpha1",
    "kind": "ModelVersion",
    "spec": {
        "source": {"huggingFace": {"repo": "acme/small", "revision": "a" * 40}},
        "chatTemplateFrom": {"inline": "{{ messages }}"},
        "adapters": [{"name": "tone", "source": {"hostPath": {"path": "/adapters/tone"}}}],
        "rope": {"type": "linear", "factor": 2.0},
        "digests": {"weights": whole_statuses.DIGEST},
        "pool": {"host": "1Gi"},
    },
}
SPACE = {
    "apiVersion": "kvgrove.dev/v1alpha1",
    "kind": "PromptCacheNamespace",
    "spec": {"modelVersionRef": {"name": "small"}, "access": {"policyVersion": 3}},
}
NODE = {"apiVersion": "kvgrove.dev/v1alpha1", "kind": "CacheNode", "spec": {"nodeName": "node-1"}}


@pytest.fixture
def objects(crds: Plane, cluster_namespace: str) -> dict[str, str]:
    """One object of each kind: kind -> what kubectl calls it. Cluster-scoped ones bear the test namespace's name."""
    create(crds, MODEL | {"metadata": {"name": cluster_namespace}})
    create(crds, SPACE | {"metadata": {"name": "space", "namespace": cluster_namespace}})
    create(crds, NODE | {"metadata": {"name": cluster_namespace}})
    return {
        "ModelVersion": f"mv/{cluster_namespace}",
        "PromptCacheNamespace": "pcn/space",
        "CacheNode": f"cn/{cluster_namespace}",
    }


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"source": {"huggingFace": {"revision": "b" * 40}}}, "spec.source"),
        ({"source": {"huggingFace": None, "hostPath": {"path": "/models/small"}}}, "spec.source"),
        ({"kvFormat": {"blockSize": 128}}, "spec.kvFormat"),
        ({"chatTemplateFrom": {"inline": "{{ other }}"}}, "spec.chatTemplateFrom"),
        ({"chatTemplateFrom": None}, "spec.chatTemplateFrom"),
        ({"tokenizerFrom": {"hostPath": {"path": "/tokenizers/small"}}}, "spec.tokenizerFrom"),
        ({"adapters": None}, "spec.adapters"),
        ({"rope": {"factor": 4.0}}, "spec.rope"),
        ({"rope": None}, "spec.rope"),
        ({"digests": {"weights": "sha256:" + "cd" * 32}}, "a digest pin"),
        ({"digests": None}, "a digest pin"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_identity_of_a_model_version_is_immutable(
    crds: Plane, objects: dict[str, str], cluster_namespace: str, change: dict[str, Any], word: str
) -> None:
    refused = patch(crds, objects["ModelVersion"], cluster_namespace, {"spec": change})
    assert message_about(word) in refused


def test_what_is_not_identity_of_a_model_version_may_change(
    crds: Plane, objects: dict[str, str], cluster_namespace: str
) -> None:
    change = {"pool": {"host": "2Gi"}, "digests": {"tokenizer": whole_statuses.DIGEST}, "engine": {"type": "vllm"}}
    assert patch(crds, objects["ModelVersion"], cluster_namespace, {"spec": change}) == ""


@pytest.mark.parametrize("access", [{"policyVersion": 2}, {"policyVersion": None}, None], ids=json.dumps)
def test_the_policy_version_never_falls(
    crds: Plane, objects: dict[str, str], cluster_namespace: str, access: dict[str, Any] | None
) -> None:
    refused = patch(crds, objects["PromptCacheNamespace"], cluster_namespace, {"spec": {"access": access}})
    assert "spec.access.policyVersion never falls" in refused
    raised = patch(crds, objects["PromptCacheNamespace"], cluster_namespace, {"spec": {"access": {"policyVersion": 4}}})
    assert raised == ""


def test_a_cache_node_names_one_member(crds: Plane, objects: dict[str, str], cluster_namespace: str) -> None:
    refused = patch(crds, objects["CacheNode"], cluster_namespace, {"spec": {"nodeName": "node-2"}})
    assert "the spec of a CacheNode is immutable" in refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"purge": {"counter": 6}}, "status.purge.counter never falls"),
        ({"purge": None}, "status.purge is never removed"),
        (None, "status.purge is never removed"),
        ({"documentRevision": 8}, "status.documentRevision and status.accessRevision never fall"),
        ({"documentRevision": None}, "status.documentRevision and status.accessRevision never fall"),
        ({"accessRevision": 4}, "status.documentRevision and status.accessRevision never fall"),
    ],
    ids=lambda value: json.dumps(value) if not isinstance(value, str) else "",
)
def test_counters_in_a_status_never_fall(
    crds: Plane, objects: dict[str, str], cluster_namespace: str, change: dict[str, Any] | None, says: str
) -> None:
    target = objects["PromptCacheNamespace"]
    assert patch(crds, target, cluster_namespace, {"status": whole_statuses.NAMESPACE}, status=True) == ""
    assert says in patch(crds, target, cluster_namespace, {"status": change}, status=True)
    raised = {"purge": {"counter": 8}, "documentRevision": 10, "accessRevision": 6}
    assert patch(crds, target, cluster_namespace, {"status": raised}, status=True) == ""


@pytest.mark.parametrize(
    ("model", "sample"),
    [
        (ModelVersion, whole_statuses.MODEL_VERSION),
        (PromptCacheNamespace, whole_statuses.NAMESPACE),
        (CacheNode, whole_statuses.CACHE_NODE),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_ops_06_no_field_of_a_status_is_pruned(
    crds: Plane, objects: dict[str, str], cluster_namespace: str, model: type[Any], sample: dict[str, Any]
) -> None:
    target = objects[model.__name__]
    assert patch(crds, target, cluster_namespace, {"status": sample}, status=True) == ""
    stored = crds.get(target, "-n", cluster_namespace)
    assert stored["status"] == sample
    read = model.model_validate_json(json.dumps(stored), strict=True, by_alias=True, by_name=False)
    assert list(whole_statuses.unset_fields(read.status)) == [], "give the sample a value for it"
    assert json.loads(read.status.model_dump_json(by_alias=True)) == sample


def test_a_status_is_written_by_its_subresource_alone(
    crds: Plane, objects: dict[str, str], cluster_namespace: str
) -> None:
    target = objects["PromptCacheNamespace"]
    assert patch(crds, target, cluster_namespace, {"status": whole_statuses.NAMESPACE}) == ""
    assert "status" not in crds.get(target, "-n", cluster_namespace)


def test_kubectl_prints_the_columns(crds: Plane, objects: dict[str, str], cluster_namespace: str) -> None:
    samples = {
        "ModelVersion": whole_statuses.MODEL_VERSION,
        "PromptCacheNamespace": whole_statuses.NAMESPACE,
        "CacheNode": whole_statuses.CACHE_NODE,
    }
    seen = {}
    for kind, target in objects.items():
        assert patch(crds, target, cluster_namespace, {"status": samples[kind]}, status=True) == ""
        table = crds.kubectl("get", target, "-n", cluster_namespace).stdout.splitlines()
        seen[kind] = [re.split(r"\s{2,}", line.strip()) for line in table]
    (head, row) = seen["PromptCacheNamespace"]
    assert head == ["NAME", "READY", "PHASE", "GENERATION", "WARM", "HIT RATIO", "AGE"]
    assert row[:6] == ["space", "True", "RollingOut", "0123456789ab", "120/128", "93%"]
    (head, row) = seen["ModelVersion"]
    assert head == ["NAME", "READY", "PHASE", "GENERATION", "NODES", "AGE"]
    assert row[1:5] == ["True", "Ready", "0123456789ab", "3/6"]
    (head, row) = seen["CacheNode"]
    assert head == ["NAME", "READY", "PHASE", "MEMBER", "GENERATIONS", "WARM", "HIT RATIO", "AGE"]
    assert row[1:7] == ["True", "Ready", "Daemon", "1/1", "120/128", "93%"]
    wide = crds.kubectl("get", objects["PromptCacheNamespace"], "-n", cluster_namespace, "-o", "wide").stdout
    assert "AllNodesReady" in wide


@pytest.mark.parametrize("field", ["pcn.spec.freshness", "mv.spec.pool", "cn.status.namespaces", "pcn.spec.warmup"])
def test_kubectl_explain_shows_the_docstrings(crds: Plane, field: str) -> None:
    short, *path = field.split(".")
    node: dict[str, Any] = next(
        d.as_yaml()["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for d in DEFINITIONS if d.short_name == short
    )
    for part in path:
        node = node["properties"][part]
    explained = " ".join(crds.kubectl("explain", field).stdout.split())
    assert node["description"] in explained
    for name, child in node.get("items", node)["properties"].items():
        assert f"{name} <" in explained
        assert child["description"] in explained


def space(namespace: str, documents: list[dict[str, Any]]) -> dict[str, Any]:
    spec = {"modelVersionRef": {"name": "small"}, "documents": documents}
    return SPACE | {"metadata": {"name": "large", "namespace": namespace}, "spec": spec}


def test_ops_08_300_kb_of_documents_are_stored_once_and_without_an_annotation(
    crds: Plane, cluster_namespace: str
) -> None:
    texts = [{"name": f"part-{i}", "version": "1", "text": f"{i} " * 50_000} for i in range(3)]
    assert len(json.dumps(texts)) > 300_000
    item = space(cluster_namespace, texts)
    applied = crds.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(item))
    assert applied.returncode == 0, applied.stderr
    stored = crds.get("pcn/large", "-n", cluster_namespace)
    assert [document["text"] for document in stored["spec"]["documents"]] == [text["text"] for text in texts]
    assert "annotations" not in stored["metadata"]


def test_ops_08_5000_documents_are_refused_with_their_number(crds: Plane, cluster_namespace: str) -> None:
    texts = [{"name": f"d-{i}", "version": "1", "text": "t" * 20} for i in range(5_000)]
    applied = crds.kubectl("create", "-f", "-", stdin=json.dumps(space(cluster_namespace, texts)))
    assert applied.returncode != 0
    assert "spec.documents: Too many: 5000: must have at most 64 items" in applied.stderr
