"""What is watched: events become keys on the work queue, and nothing else.

Kopf keeps the watches alive; it stores nothing in objects, adds no finalizer and posts no events of its own, because
no handler here needs any of that. Most events are our own status writes: a key that reads everything is added only
where something changed that people or the cluster decide.
"""

from collections.abc import Callable, Hashable
from typing import Any

import kopf

from kvgrove_crds.base import GROUP, VERSION
from kvgrove_operator.declared import Reader
from kvgrove_operator.keys import MEMBERS, PLAN, WORKLOADS, Key, Kind
from kvgrove_operator.objects import Objects

Body = Any


class Changes:
    """Remembers of each object what matters, to tell a change from an echo."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Hashable] = {}

    def of_declared(self, event: str | None, body: Body) -> bool:
        """Whether spec, deletion or finalizers are news."""
        metadata = body["metadata"]
        says = (
            metadata["uid"],
            metadata.get("generation"),
            metadata.get("deletionTimestamp"),
            tuple(metadata.get("finalizers", ())),
        )
        return self._note((body["kind"], metadata.get("namespace"), metadata["name"]), event, says)

    def of_node(self, event: str | None, body: Body) -> bool:
        """Whether the Node came, went, or may take other Pods."""
        metadata, spec = body["metadata"], body.get("spec", {})
        taints = tuple((each.get("key"), each.get("value"), each.get("effect")) for each in spec.get("taints", ()))
        says = (metadata["uid"], tuple(sorted(metadata.get("labels", {}).items())), taints)
        return self._note(("Node", metadata["name"]), event, says)

    def _note(self, key: Hashable, event: str | None, says: Hashable) -> bool:
        if event == "DELETED":
            self._known.pop(key, None)
            return True
        news = self._known.get(key) != says
        self._known[key] = says
        return news


def registry_of(add: Callable[[Key], None], reader: Reader, objects: Objects) -> kopf.OperatorRegistry:
    """The handlers, for `kopf.operator`."""
    registry = kopf.OperatorRegistry()
    changes = Changes()

    @kopf.on.login(registry=registry)
    def login(**named: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**named)

    @kopf.on.event(GROUP, VERSION, "promptcachenamespaces", registry=registry)
    async def namespace(type: str | None, body: Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        if objects.heard(body):
            add(Key(Kind.NAMESPACE, f"{body['metadata']['namespace']}/{body['metadata']['name']}"))
        if changes.of_declared(type, body):
            reader.listing.heard(body, came_or_went=type != "MODIFIED")
            add(PLAN)

    @kopf.on.event(GROUP, VERSION, "modelversions", registry=registry)
    async def model(type: str | None, body: Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        if objects.heard(body):
            add(Key(Kind.MODEL, body["metadata"]["name"]))
        if changes.of_declared(type, body):
            add(PLAN)

    @kopf.on.event("", "v1", "configmaps", registry=registry)
    async def config_map(body: Body, **_: Any) -> None:
        if reader.config_map_changed(body["metadata"]["namespace"], body["metadata"]["name"]):
            add(PLAN)

    @kopf.on.event("", "v1", "nodes", registry=registry)
    async def node(type: str | None, body: Body, **_: Any) -> None:  # noqa: A002 - kopf's name
        if changes.of_node(type, body):
            add(MEMBERS)
            add(WORKLOADS)

    return registry


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.finalizer = f"{GROUP}/unused"
    return settings
