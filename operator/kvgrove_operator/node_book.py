"""CacheNode objects on the API server: reads them once, then is the only one who writes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvgrove_crds.base import API_VERSION
from kvgrove_crds.cache_node import CacheNode, CacheNodeStatus
from kvgrove_operator import paths
from kvgrove_operator.cache_nodes import dumped, leases_of, loaded, spec_of
from kvgrove_operator.kube import Conflict, Kube, NotFound, Object
from kvgrove_operator.store import StoreTaken
from kvgrove_protocol.errors import Terminal


class NodeBookDamaged(Terminal):
    """A CacheNode does not read as one."""

    code = "state_damaged"


@dataclass(frozen=True)
class _Held:
    version: str
    """resourceVersion of the last write; a write names it, so that it fails once another leader has written."""
    status: bytes
    """As it was written, in JSON: of a large fleet these are many, and seldom read. Empty: none yet."""


class NodeBook:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._written: dict[str, _Held] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """Those that have an object."""
        return tuple(sorted(self._written))

    def status(self, member: str) -> CacheNodeStatus | None:
        """As it was written last."""
        held = self._written.get(member)
        return loaded(held.status) if held is not None and held.status else None

    async def load(self) -> list[CacheNode]:
        """All of them. Raises NodeBookDamaged: what may hold old data must not be guessed."""
        nodes: list[CacheNode] = []
        self._written = {}
        for found in await self._kube.list(paths.CACHE_NODES):
            try:
                node = _parsed(found)
                leases_of(node)
            except (ValidationError, ValueError):
                raise NodeBookDamaged(
                    f"CacheNode {found['metadata']['name']}: its content is not the operator's; apply the CRDs of this "
                    "release, or restore the object from a backup"
                ) from None
            nodes.append(node)
            self._written[node.name] = _Held(found["metadata"]["resourceVersion"], dumped(node.status))
        return nodes

    async def write(self, member: str, role: str, status: CacheNodeStatus) -> None:
        """Durable on return. Raises StoreTaken where another leader has written the object."""
        held = self._written.get(member)
        if held is None:
            held = self._written[member] = _Held(await self._make(member, role), b"")
        try:
            written = await self._write(member, held.version, status)
        except (Conflict, NotFound):
            written = await self._write(member, await self._settle(member, role, held, status), status)
        self._written[member] = _Held(written["metadata"]["resourceVersion"], dumped(status))

    async def _make(self, member: str, role: str) -> str:
        """Its resourceVersion."""
        try:
            made = await self._kube.create(paths.CACHE_NODES, spec_of(member, role))
        except Conflict:
            found = await self._kube.get(paths.cache_node(member))
            if found is None or _parsed(found).status is not None:
                raise StoreTaken(f"CacheNode {member} was made by another operator; this one starts anew") from None
            made = found  # our own, whose answer was lost
        return str(made["metadata"]["resourceVersion"])

    async def _write(self, member: str, version: str, status: CacheNodeStatus) -> Object:
        body = {
            "apiVersion": API_VERSION,
            "kind": "CacheNode",
            "metadata": {"name": member, "resourceVersion": version},
            "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        return await self._kube.apply(f"{paths.cache_node(member)}/status", body)

    async def _settle(self, member: str, role: str, held: _Held, status: CacheNodeStatus) -> str:
        """The version to write against where the object is not as this process left it."""
        found = await self._kube.get(paths.cache_node(member))
        if found is None:  # somebody deleted it: what it says is as true as before
            return await self._make(member, role)
        if dumped(_parsed(found).status) not in (held.status, dumped(status)):
            raise StoreTaken(f"CacheNode {member} was written by another operator; this one starts anew")
        return str(found["metadata"]["resourceVersion"])  # a label was written, or our own answer was lost

    async def remove(self, member: str) -> None:
        """Of a member that is gone and may hold nothing."""
        found = await self._kube.get(paths.cache_node(member))
        if found is not None:
            await self._kube.delete(paths.cache_node(member), uid=found["metadata"]["uid"])
        self._written.pop(member, None)


def _parsed(found: Mapping[str, Any]) -> CacheNode:
    kept = {key: found[key] for key in ("apiVersion", "kind", "spec", "status") if key in found}
    content = {**kept, "metadata": {"name": found["metadata"]["name"]}}
    return CacheNode.model_validate(content, by_alias=True, by_name=False)
