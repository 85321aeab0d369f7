"""CacheNode objects on the API server: reads them once, then is the only one who writes them."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kvgrove_crds.base import API_VERSION
from kvgrove_crds.cache_node import CacheNode, CacheNodeStatus
from kvgrove_operator import paths
from kvgrove_operator.cache_nodes import spec_of
from kvgrove_operator.kube import Kube, NotFound
from kvgrove_protocol.errors import Terminal


class NodeBookDamaged(Terminal):
    """A CacheNode does not read as one."""

    code = "state_damaged"


class NodeBook:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._written: dict[str, CacheNodeStatus | None] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """Those that have an object."""
        return tuple(sorted(self._written))

    def status(self, member: str) -> CacheNodeStatus | None:
        """As it was written last."""
        return self._written.get(member)

    async def load(self) -> list[CacheNode]:
        """All of them. Raises NodeBookDamaged: what may hold old data must not be guessed."""
        nodes: list[CacheNode] = []
        for found in await self._kube.list(paths.CACHE_NODES):
            try:
                nodes.append(CacheNode.model_validate(_without_metadata(found), by_alias=True, by_name=False))
            except ValidationError:
                raise NodeBookDamaged(
                    f"CacheNode {found['metadata']['name']}: its content is not the operator's; apply the CRDs of this "
                    "release, or restore the object from a backup"
                ) from None
        self._written = {node.name: node.status for node in nodes}
        return nodes

    async def write(self, member: str, role: str, status: CacheNodeStatus) -> None:
        """Durable on return."""
        path = paths.cache_node(member)
        body = {
            "apiVersion": API_VERSION,
            "kind": "CacheNode",
            "metadata": {"name": member},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        if member not in self._written:
            await self._kube.apply(path, spec_of(member, role))
        try:
            await self._kube.apply(f"{path}/status", body)
        except NotFound:  # somebody deleted it: what it says is as true as before
            await self._kube.apply(path, spec_of(member, role))
            await self._kube.apply(f"{path}/status", body)
        self._written[member] = status

    async def remove(self, member: str) -> None:
        """Of a member that is gone and may hold nothing."""
        found = await self._kube.get(paths.cache_node(member))
        if found is not None:
            await self._kube.delete(paths.cache_node(member), uid=found["metadata"]["uid"])
        self._written.pop(member, None)


def _without_metadata(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: found[key] for key in ("apiVersion", "kind", "spec", "status") if key in found}
    return {**kept, "metadata": {"name": found["metadata"]["name"]}}
