"""A Pod's volumes as folders of this machine, and the paths by which its containers find them.

There is no mount namespace, so a container cannot have ``/etc/app`` of its own. Instead each volume is a folder, and
every value of command, args and env that begins with a mountPath (itself, or after the ``=`` of a flag) is rewritten to
that folder. A path that a program knows without being told is not found.

configMap, secret, downwardAPI and projected volumes are written once, when the Pod starts; emptyDir is an empty folder
of the Pod. A hostPath of type Directory, File or Socket, which must exist, is the machine's own path; any other is a
folder of the node, so that nodes on one machine share no disk.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from pods.api import Json, NodeApi
from pods.environment import ConfigProblem, field_of

_OF_THE_MACHINE = ("Directory", "File", "Socket")


class PodFiles:
    """The volumes of one Pod, below ``folder``."""

    def __init__(self, pod: Json, folder: Path, node_root: Path, api: NodeApi, addresses: Mapping[str, str]) -> None:
        self._pod, self._folder, self._node_root, self._api = pod, folder, node_root, api
        self._addresses = addresses
        self._volumes: dict[str, Path] = {}

    def write(self) -> None:
        """Raises `ConfigProblem` where a source is missing; nothing is harmed by another try."""
        for volume in self._pod["spec"].get("volumes", []):
            self._volumes[volume["name"]] = self._volume(volume)

    def mapper(self, container: Json) -> Callable[[str], str]:
        """Rewrites a value of a container that begins with one of its mountPaths."""
        mounts = {
            str(mount["mountPath"]).rstrip("/"): self._volumes[mount["name"]] / mount.get("subPath", "")
            for mount in container.get("volumeMounts", [])
        }

        def rewrite(value: str) -> str:
            flag, equals, path = value.partition("=") if value.startswith("-") else ("", "", value)
            for mount in sorted(mounts, key=len, reverse=True):
                if path == mount or path.startswith(f"{mount}/"):
                    return f"{flag}{equals}{mounts[mount]}{path.removeprefix(mount)}"
            return value

        return rewrite

    def _volume(self, volume: Json) -> Path:
        folder = self._folder / "volumes" / volume["name"]
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "emptyDir" in volume:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        mode = (volume.get("projected") or volume.get("secret") or volume.get("configMap") or {}).get("defaultMode")
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            for path, content in self._contents(source, volume["name"]).items():
                file = folder / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.unlink(missing_ok=True)  # a former try may have left it without the right to write
                with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT, mode if mode is not None else 0o644), "wb") as f:
                    f.write(content)
        return folder

    def _host_path(self, source: Json) -> Path:
        path = Path(source["path"])
        if source.get("type") in _OF_THE_MACHINE:
            if not path.exists():
                raise ConfigProblem(f"hostPath {path} of type {source['type']} does not exist")
            return path
        own = self._node_root / path.relative_to("/")
        own.parent.mkdir(parents=True, exist_ok=True)
        if "File" not in source.get("type", ""):
            own.mkdir(exist_ok=True)
        return own

    def _contents(self, source: Json, volume: str) -> dict[str, bytes]:
        namespace = self._pod["metadata"]["namespace"]
        if "configMap" in source:
            return self._keys("ConfigMap", source["configMap"], source["configMap"].get("name", ""))
        if "secret" in source:
            name = source["secret"].get("secretName") or source["secret"].get("name", "")
            return self._keys("Secret", source["secret"], name)
        if "downwardAPI" in source:
            items = source["downwardAPI"].get("items", [])
            return {
                item["path"]: field_of(self._pod, item["fieldRef"]["fieldPath"], self._addresses).encode()
                for item in items
            }
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            account = self._pod["spec"].get("serviceAccountName", "default")
            return {wanted["path"]: self._api.service_account_token(namespace, account, wanted).encode()}
        raise ConfigProblem(
            f"volume {volume}: nodes of the tests know hostPath, emptyDir, configMap, secret, projected"
        )

    def _keys(self, kind: str, source: Json, name: str) -> dict[str, bytes]:
        found = self._api.read(kind, self._pod["metadata"]["namespace"], name)
        if found is None:
            if source.get("optional"):
                return {}
            raise ConfigProblem(f"{kind} {name} not found")
        data = content_of(kind, found)
        if "items" not in source:
            return data
        missing = [item["key"] for item in source["items"] if item["key"] not in data]
        if missing and not source.get("optional"):
            raise ConfigProblem(f"{kind} {name} has no key {', '.join(missing)}")
        return {item["path"]: data[item["key"]] for item in source["items"] if item["key"] in data}


def content_of(kind: str, item: Json) -> dict[str, bytes]:
    """The data of a ConfigMap or Secret."""
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    text = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return text | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}
