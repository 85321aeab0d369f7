"""The few calls by which a node agent reads and writes, over the official client; plain JSON objects in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

UNREACHABLE = (ApiException, HTTPError, OSError)
"""What a call raises where the API server refuses or is away. The agent tries again, as a kubelet does."""

_WRONG = (400, 422)

LEASES = "kube-node-lease"
_STRATEGIC = "application/strategic-merge-patch+json"
_NOT_FOUND, _CONFLICT = 404, 409

Json = dict[str, Any]


class NodeApi:
    """Close it (context manager). May be used by several threads."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = config.new_client_from_config(str(kubeconfig))
        self._core = client.CoreV1Api(self._client)
        self._leases = client.CoordinationV1Api(self._client)

    def close(self) -> None:
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    def pods(self) -> tuple[list[Json], str]:
        """All Pods, and the resource version from which to watch."""
        answer = json.loads(self._core.list_pod_for_all_namespaces(_preload_content=False).data)
        return answer["items"], answer["metadata"]["resourceVersion"]

    def watch_pods(self, since: str, seconds: int) -> Iterator[tuple[str, Json]]:
        """(type of event, Pod) until the time is over. Ends early where ``since`` is too old."""
        stream = self._core.list_pod_for_all_namespaces(
            watch=True, resource_version=since, timeout_seconds=seconds, _preload_content=False
        )
        try:
            for line in _lines(stream):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]
        finally:
            stream.close()
            stream.release_conn()

    def write_pod_status(self, pod: Json, status: Json) -> None:
        metadata = pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        self._core.patch_namespaced_pod_status(
            metadata["name"], metadata["namespace"], body, _content_type=_STRATEGIC, _preload_content=False
        ).release_conn()

    def remove_pod(self, pod: Json) -> None:
        """The end of a graceful deletion: all its processes are gone. Nothing happens where it is gone already."""
        metadata = pod["metadata"]
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        try:
            self._core.delete_namespaced_pod(metadata["name"], metadata["namespace"], body=body)
        except ApiException as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    def read(self, kind: str, namespace: str, name: str) -> Json | None:
        """A ConfigMap or a Secret; None where there is none."""
        read = {"ConfigMap": self._core.read_namespaced_config_map, "Secret": self._core.read_namespaced_secret}[kind]
        try:
            answer: Json = json.loads(read(name, namespace, _preload_content=False).data)
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return answer

    def service_account_token(self, namespace: str, name: str, wanted: Json) -> str:
        spec = {"expirationSeconds": wanted.get("expirationSeconds", 3600)}
        if "audience" in wanted:
            spec["audiences"] = [wanted["audience"]]
        answer = self._core.create_namespaced_service_account_token(name, namespace, {"spec": spec})
        return str(answer.status.token)

    def register_node(self, node: Json) -> None:
        """Makes the Node, or takes over one of that name."""
        try:
            self._core.create_node(node)
        except ApiException as error:
            if error.status != _CONFLICT:
                raise
        self.write_node_status(node)

    def write_node_status(self, node: Json) -> None:
        self._core.patch_node_status(node["metadata"]["name"], {"status": node["status"]}, _content_type=_STRATEGIC)

    def node_is_ready(self, name: str) -> bool:
        conditions = self._core.read_node(name).status.conditions or []
        return any(item.type == "Ready" and item.status == "True" for item in conditions)

    def renew_lease(self, name: str, seconds: int, now: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": now}
        try:
            self._leases.patch_namespaced_lease(name, LEASES, {"spec": spec}, _content_type=_STRATEGIC)
        except ApiException as error:
            if error.status != _NOT_FOUND:
                raise
            self._leases.create_namespaced_lease(LEASES, {"metadata": {"name": name}, "spec": spec})


def show_defect(error: Exception) -> None:
    """Raises again what no later try mends: the API server calls what we sent wrong."""
    if isinstance(error, ApiException) and error.status in _WRONG:
        raise error


def _lines(stream: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in stream.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
