"""Keeps the DaemonSets as `workloads` says and what scrapes them, and knows which nodes their Pods are on."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kvgrove_crds.model_version import ModelVersion
from kvgrove_operator import paths
from kvgrove_operator.kube import Kube, Object
from kvgrove_operator.monitors import pod_monitor
from kvgrove_operator.optional_kind import OptionalKind
from kvgrove_operator.settings import Settings
from kvgrove_operator.workloads import (
    PLACEMENT,
    SELECTOR,
    daemon_sets,
    nodes_of,
    overruled,
    placement_of,
    unscheduled_of,
)


@dataclass(frozen=True)
class _Seen:
    """At one look."""

    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Placement -> names of the nodes with a Pod of it."""
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Placement -> how many nodes match it."""
    unscheduled: Mapping[str, str] = field(default_factory=dict)
    """Placement -> why a Pod of it waits for a node, where one does."""
    overruled: Mapping[str, str] = field(default_factory=dict)
    """ModelVersion -> what of its engine is not run as it says, where that is so."""


class Placements:
    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube, self._settings = kube, settings
        self._collection = paths.daemon_sets(settings.own_namespace)
        self._monitors = OptionalKind(kube, "nothing tells Prometheus of daemons")
        self._applied: dict[str, tuple[Object, int]] = {}
        self._seen = _Seen()

    def forget(self) -> None:
        """Apply everything anew: what a generation does not tell of may have been changed."""
        self._applied.clear()

    async def bring_about(self, models: Collection[ModelVersion], *, complete: bool) -> bool:
        """Apply what is wanted; whether anything that statuses tell of it is otherwise than at the last look.

        ``complete``: ``models`` are all there are, so that a DaemonSet of none of them may go.
        """
        wanted = daemon_sets(models, self._settings.own_namespace, self._settings.daemons)
        found = await self._kube.list(self._collection, labels=SELECTOR)
        there = {item["metadata"]["name"]: item["metadata"]["generation"] for item in found}
        for name, body in wanted.items():
            if self._applied.get(name) != (body, there.get(name)):
                applied = await self._kube.apply(f"{self._collection}/{name}", body)
                await self._have_scraped(applied)
                self._applied[name] = body, applied["metadata"]["generation"]
                found = [item for item in found if item["metadata"]["name"] != name] + [applied]
        for item in found:
            name = item["metadata"]["name"]
            if complete and name not in wanted:
                await self._kube.delete(f"{self._collection}/{name}", uid=item["metadata"]["uid"])
        counts = {
            item["metadata"]["labels"].get(PLACEMENT, ""): int(item.get("status", {}).get("desiredNumberScheduled", 0))
            for item in found
            if item["metadata"]["name"] in wanted
        }
        pods = await self._kube.list(paths.pods(self._settings.own_namespace), labels=SELECTOR)
        before, self._seen = self._seen, _Seen(nodes_of(pods), counts, unscheduled_of(pods), overruled(models))
        return self._seen != before

    async def _have_scraped(self, daemon_set: Object) -> None:
        if self._settings.pod_monitors is not None:
            body = pod_monitor(daemon_set, self._settings.pod_monitors)
            collection = paths.pod_monitors(self._settings.own_namespace)
            await self._monitors.apply(f"{collection}/{body['metadata']['name']}", body)

    def nodes(self, model: ModelVersion | None) -> frozenset[str]:
        """Nodes with a Pod of the placement of ``model``, and so the names of its daemons."""
        return frozenset() if model is None else self._seen.nodes.get(placement_of(model), frozenset())

    def wanted(self, model: ModelVersion | None) -> int:
        """How many nodes match that placement."""
        return 0 if model is None else self._seen.wanted.get(placement_of(model), 0)

    def unscheduled(self, model: ModelVersion | None) -> str:
        """Why a Pod of that placement has no node; empty: each has one."""
        return "" if model is None else self._seen.unscheduled.get(placement_of(model), "")

    def overruled(self, model: ModelVersion) -> str:
        """What of its engine is not run as it says, and why; empty: nothing."""
        return self._seen.overruled.get(model.name, "")

    def settled(self, models: Iterable[ModelVersion]) -> bool:
        """Whether every placement has nodes, and a Pod on each."""
        return all(0 < self.wanted(model) == len(self.nodes(model)) for model in models)
