"""The few calls that the commands make, with the rights of whoever runs them."""

import json
from pathlib import Path
from typing import Any

from kvgrove_cli.errors import FleetProblem, UsageProblem

GROUP, VERSION = "kvgrove.dev", "v1alpha1"
NAMESPACES, MODELS, NODES = "promptcachenamespaces", "modelversions", "cachenodes"

_CALL_SECONDS = (5.0, 30.0)

Object = dict[str, Any]


class ClusterApi:
    """``kubeconfig``, ``context``: None means what kubectl would take. Raises UsageProblem where there is no cluster.

    Calls raise FleetProblem, with what the API server said.
    """

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        try:
            from kubernetes import client, config  # noqa: PLC0415 - whoever has no cluster need not have it
            from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
            from urllib3.exceptions import HTTPError  # noqa: PLC0415
        except ImportError:
            raise UsageProblem("the Kubernetes client is not installed: pip install 'kvgrove[operator]'") from None
        file = str(kubeconfig) if kubeconfig is not None else None
        try:
            loaded: Any = config.new_client_from_config(file, context)  # type: ignore[no-untyped-call]
            contexts: Any = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
        except config.ConfigException as error:
            raise UsageProblem(f"no cluster: {error}; set KUBECONFIG or --kubeconfig") from None
        named = next((each for each in contexts[0] if each["name"] == context), contexts[1])
        self.namespace = str(named["context"].get("namespace", "default"))
        """Of the context."""
        self._host = str(loaded.configuration.host)
        self._objects: Any = client.CustomObjectsApi(loaded)
        self._refused, self._away = ApiException, HTTPError

    def list(self, plural: str, namespace: str | None = None) -> list[Object]:
        """All of a kind; of one Kubernetes namespace where it is given."""
        if namespace is None:
            found = self._call("list_cluster_custom_object", plural)
        else:
            found = self._call("list_namespaced_custom_object", namespace, plural)
        return [*found["items"]]

    def get(self, plural: str, namespace: str, name: str) -> Object:
        return self._call("get_namespaced_custom_object", namespace, plural, name)

    def edit(self, plural: str, held: Object, spec: Object) -> Object:
        """Merge ``spec`` into the spec of ``held``; refused where somebody else has changed the object since."""
        metadata = held["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": spec}
        return self._call("patch_namespaced_custom_object", metadata["namespace"], plural, metadata["name"], body)

    def _call(self, verb: str, *arguments: Any) -> Object:
        try:
            found: Object = getattr(self._objects, verb)(GROUP, VERSION, *arguments, _request_timeout=_CALL_SECONDS)
        except self._refused as error:
            raise FleetProblem(_said(error)) from None
        except self._away as error:
            raise FleetProblem(f"{self._host} does not answer: {type(error).__name__}") from None
        return found


def _said(error: Any) -> str:
    """The API server's own words."""
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        return f"the API server says {error.status} {error.reason}"
    return f"Error from server ({error.reason}): {message}"
