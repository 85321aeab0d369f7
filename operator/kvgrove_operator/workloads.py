"""From ModelVersions to the DaemonSets that run them: one for each placement. Pure.

A placement is where a Pod may run: node selector and tolerations. ModelVersions with equal placement share one daemon
on each of its nodes, which hosts their generations side by side over one pool; so a new ModelVersion starts no Pod.
What that daemon is (image, arguments, resources) the newest of them says. Pods are replaced when somebody deletes them
(``OnDelete``): a changed template must not throw away warm caches by itself (ADR 18).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kvgrove_crds.base import API_VERSION
from kvgrove_crds.model_version import ModelVersion
from kvgrove_operator.model_files import volumes_of
from kvgrove_operator.paths import link_keys_secret
from kvgrove_operator.settings import DaemonSettings
from kvgrove_protocol.control import DAEMON

Object = dict[str, Any]

COMPONENT: Final = "app.kubernetes.io/component"
PLACEMENT: Final = "kvgrove.dev/placement"
SELECTOR: Final = f"{COMPONENT}=daemon,app.kubernetes.io/managed-by=kvgrove-operator"
STATE: Final = "/var/lib/kvgrove/state"
"""Where a daemon keeps its state in its container."""
SCRATCH: Final = "/var/lib/kvgrove/scratch"
"""What libraries of it write beside that; it ends with the Pod."""
METRICS_PORT: Final = "metrics"
"""Name of the port that is scraped."""

LINK_KEYS: Final = "/etc/kvgrove/link-keys"
"""Where a daemon finds the keys of its links."""

_GRACE_SECONDS = 60
_OF_A_POD = ("image", "args", "resources")
"""Fields of the engine that one daemon can have but one value of."""
_MESSAGE = 512
"""Characters of the scheduler's words."""

_OTHER_DAEMONS: Final[Object] = {
    "labelSelector": {"matchLabels": {COMPONENT: "daemon", "app.kubernetes.io/name": "kvgrove"}},
    "topologyKey": "kubernetes.io/hostname",
}
"""A node has one daemon: it is the member of that name, and its state and its accelerator are its own."""


def placement_of(model: ModelVersion) -> str:
    """Names the placement: equal for ModelVersions that share a DaemonSet (8 hex digits)."""
    content = {
        "selector": model.spec.engine.node_selector,
        "tolerations": sorted(_tolerations(model), key=json.dumps),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def name_of(placement: str) -> str:
    return f"kvgrove-daemon-{placement}"


def daemon_sets(models: Iterable[ModelVersion], namespace: str, settings: DaemonSettings) -> dict[str, Object]:
    """Name -> the DaemonSet, with the fields that are ours; they live in Kubernetes namespace ``namespace``."""
    return {
        name_of(placement): _daemon_set(placement, sharing, namespace, settings)
        for placement, sharing in sorted(_placed(models).items())
    }


def overruled(models: Iterable[ModelVersion]) -> dict[str, str]:
    """Name -> what of its engine is not run as it says, because a newer one with the same nodes says otherwise."""
    found: dict[str, str] = {}
    for sharing in _placed(models).values():
        newest = _newest(sharing)
        for model in sharing:
            differs = [
                each for each in _OF_A_POD if getattr(model.spec.engine, each) != getattr(newest.spec.engine, each)
            ]
            if differs:
                fields = ", ".join(f"spec.engine.{each}" for each in differs)
                found[model.name] = f"{fields} of {newest.name} apply, which is newer and has the same nodes"
    return found


def _placed(models: Iterable[ModelVersion]) -> dict[str, list[ModelVersion]]:
    placed: dict[str, list[ModelVersion]] = {}
    for model in sorted(models, key=lambda each: each.name):
        placed.setdefault(placement_of(model), []).append(model)
    return placed


def _newest(models: Iterable[ModelVersion]) -> ModelVersion:
    return max(models, key=lambda each: (each.metadata.creation_timestamp or "", each.name))


def _daemon_set(placement: str, models: list[ModelVersion], namespace: str, settings: DaemonSettings) -> Object:
    newest = _newest(models)
    engine = newest.spec.engine
    own = {PLACEMENT: placement, COMPONENT: "daemon"}
    labels = {**own, "app.kubernetes.io/name": "kvgrove", "app.kubernetes.io/managed-by": "kvgrove-operator"}
    files = [*_own_files(settings), *_files_of(models, settings.model_root)]
    metrics, user = settings.metrics_port, settings.rights.user
    container: Object = {
        "name": "daemon",
        "image": engine.image or settings.image,
        "command": [*settings.command],
        "args": [
            *("--member", "$(NODE_NAME)"),
            *("--control", settings.control),
            *("--listen", settings.listen),
            *("--state-dir", STATE),
            *(("--plain-links",) if settings.plain_links else ("--link-keys", LINK_KEYS)),
            *("--pod-uid", "$(POD_UID)"),
            *("--placement", placement),
            *(("--metrics", f"$(POD_IP):{metrics}") if metrics else ()),
            *engine.args,
        ],
        "env": [
            _field("NODE_NAME", "spec.nodeName"),
            _field("POD_IP", "status.podIP"),
            _field("POD_UID", "metadata.uid"),
            {"name": "HOME", "value": SCRATCH},
            {"name": "TMPDIR", "value": SCRATCH},
            {"name": "HF_HUB_OFFLINE", "value": "1"},  # a node serves what is there, and fetches nothing on its own
        ],
        "resources": engine.resources.model_dump(mode="json", by_alias=True),
        "volumeMounts": [mount for _, mount in files],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    if metrics:
        container["ports"] = [{"name": METRICS_PORT, "containerPort": metrics}]
    pod: Object = {
        "containers": [container],
        "volumes": [volume for volume, _ in files],
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            **({} if user is None else {"runAsUser": user, "runAsGroup": user, "runAsNonRoot": user != 0}),
            **({"fsGroup": user} if user else {}),
        },
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_OTHER_DAEMONS]}},
        "nodeSelector": {"kubernetes.io/os": "linux", **engine.node_selector},
        "tolerations": _tolerations(newest),
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "automountServiceAccountToken": False,
    }
    if settings.service_account:
        pod["serviceAccountName"] = settings.service_account
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name_of(placement),
            "namespace": namespace,
            "labels": labels,
            "ownerReferences": [_owner(model) for model in models],
        },
        "spec": {
            "selector": {"matchLabels": own},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _own_files(settings: DaemonSettings) -> Iterator[tuple[Object, Object]]:
    """Volumes and where they are mounted, of what every daemon needs."""
    rights, host = settings.rights, settings.state_root
    state = {"hostPath": {"path": host, "type": "DirectoryOrCreate"}} if rights.host_state else {"emptyDir": {}}
    yield {"name": "state", **state}, {"name": "state", "mountPath": STATE}
    yield {"name": "scratch", "emptyDir": {}}, {"name": "scratch", "mountPath": SCRATCH}
    if not settings.plain_links:
        keys = {"name": "link-keys", "secret": {"secretName": link_keys_secret(DAEMON), "defaultMode": 0o440}}
        yield keys, {"name": "link-keys", "mountPath": LINK_KEYS, "readOnly": True}
    if rights.shared_memory:  # the pool is shared memory
        yield {"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108
    if rights.host_models:
        root = {"path": settings.model_root, "type": "Directory"}
        yield (
            {"name": "models", "hostPath": root},
            {"name": "models", "mountPath": settings.model_root, "readOnly": True},
        )


def _files_of(models: Iterable[ModelVersion], model_root: str) -> Iterator[tuple[Object, Object]]:
    """The same of what the models need beside the model root."""
    needed: dict[str, Object] = {}
    for model in models:
        needed |= volumes_of(model, model_root)
    for path, volume in sorted(needed.items()):
        name = f"source-{_short(path)}"
        yield {"name": name, **volume}, {"name": name, "mountPath": path, "readOnly": True}


def nodes_of(pods: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """Placement -> names of the nodes that its Pods are bound to, of Pods that are not over."""
    found: dict[str, set[str]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName", "")
        over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if node and not over:
            found.setdefault(pod["metadata"]["labels"].get(PLACEMENT, ""), set()).add(node)
    return {placement: frozenset(nodes) for placement, nodes in found.items()}


def unscheduled_of(pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Placement -> what the scheduler says of the first of its Pods that it can bind to no node."""
    found: dict[str, str] = {}
    for pod in sorted(pods, key=lambda each: str(each["metadata"]["name"])):
        for condition in pod.get("status", {}).get("conditions", ()):
            if (condition["type"], condition["status"]) == ("PodScheduled", "False"):
                message = condition.get("message") or condition.get("reason", "")
                found.setdefault(pod["metadata"]["labels"].get(PLACEMENT, ""), message[:_MESSAGE])
    return found


def _tolerations(model: ModelVersion) -> list[Object]:
    return [each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in model.spec.engine.tolerations]


def _owner(model: ModelVersion) -> Object:
    return {"apiVersion": API_VERSION, "kind": "ModelVersion", "name": model.name, "uid": model.metadata.uid or ""}


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _short(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:8]
