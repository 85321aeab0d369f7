"""Where the API server keeps what the operator reads and writes. Pure."""

from typing import Final

from kvgrove_crds.base import API_VERSION

_OURS: Final = f"/apis/{API_VERSION}"

MODELS: Final = f"{_OURS}/modelversions"
CACHE_NODES: Final = f"{_OURS}/cachenodes"
NODES: Final = "/api/v1/nodes"


def namespaces(kube_namespace: str = "") -> str:
    """The PromptCacheNamespaces of one Kubernetes namespace; of all where it is empty."""
    return f"{_OURS}/{_in(kube_namespace)}promptcachenamespaces"


def namespace(api_name: str) -> str:
    """One, by ``<k8s namespace>/<name>``."""
    kube_namespace, _, name = api_name.partition("/")
    return f"{namespaces(kube_namespace)}/{name}"


def model(name: str) -> str:
    return f"{MODELS}/{name}"


def cache_node(name: str) -> str:
    return f"{CACHE_NODES}/{name}"


def config_map(kube_namespace: str, name: str) -> str:
    return f"/api/v1/{_in(kube_namespace)}configmaps/{name}"


def secrets(kube_namespace: str) -> str:
    return f"/api/v1/{_in(kube_namespace)}secrets"


def pods(kube_namespace: str) -> str:
    return f"/api/v1/{_in(kube_namespace)}pods"


def events(kube_namespace: str) -> str:
    return f"/api/v1/{_in(kube_namespace)}events"


def daemon_sets(kube_namespace: str) -> str:
    return f"/apis/apps/v1/{_in(kube_namespace)}daemonsets"


def leases(kube_namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/{_in(kube_namespace)}leases"


def prometheus_rule(kube_namespace: str, name: str) -> str:
    return f"/apis/monitoring.coreos.com/v1/{_in(kube_namespace)}prometheusrules/{name}"


def pod_monitors(kube_namespace: str) -> str:
    return f"/apis/monitoring.coreos.com/v1/{_in(kube_namespace)}podmonitors"


def _in(kube_namespace: str) -> str:
    return f"namespaces/{kube_namespace}/" if kube_namespace else ""


def link_keys_secret(role: str) -> str:
    """Name of the Secret with the link keys of ``role``."""
    return f"kvgrove-link-{role}"
