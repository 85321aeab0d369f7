"""One level-based reconcile for each kind of key: read what is there now, and do what is missing.

Nothing here depends on what happened before, and doing it twice changes nothing. It composes; what is decided comes
from pure modules, what is done is done by `fleet`, `objects` and `placements`.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from kvgrove_crds.namespace_status import PromptCacheNamespaceStatus
from kvgrove_operator import paths
from kvgrove_operator.alert_rules import AlertRules
from kvgrove_operator.declarations import Declarations
from kvgrove_operator.declared import Declared, Reader
from kvgrove_operator.fleet import Fleet
from kvgrove_operator.keys import ALERTS, MEMBERS, PLAN, WORKLOADS, Key, Kind
from kvgrove_operator.kube import Conflict, Kube
from kvgrove_operator.objects import Objects, path_of
from kvgrove_operator.placements import Placements
from kvgrove_operator.settings import Settings
from kvgrove_operator.work_queue import Trouble
from kvgrove_protocol.control import DAEMON
from kvgrove_protocol.errors import Terminal

_LOOK_AGAIN_SECONDS = 2.0
"""After a DaemonSet whose Pods are not all there yet, or definitions that are too old."""


class Add(Protocol):
    def __call__(self, key: Key, *, delay: float = 0.0) -> None: ...


class NotWatched(Terminal):
    """Something is planned in a Kubernetes namespace that this operator is not told to watch."""

    code = "not_watched"


class Reconciler:
    """``add``: has a key looked at. ``trouble``: what keeps one from getting done."""

    def __init__(
        self,
        kube: Kube,
        fleet: Fleet,
        reader: Reader,
        settings: Settings,
        objects: Objects,
        *,
        add: Add,
        trouble: Callable[[Key], Trouble | None],
    ) -> None:
        self._kube, self._fleet, self._reader, self._settings = kube, fleet, reader, settings
        self._objects, self._add = objects, add
        self._placements = Placements(kube, settings)
        self._alert_rules = AlertRules(kube, settings.own_namespace)
        self._declarations = Declarations(kube, fleet, objects, self._placements, add=add, trouble=trouble)

    async def reconcile(self, key: Key) -> None:
        match key.kind:
            case Kind.PLAN:
                await self._plan()
            case Kind.WORKLOADS:
                await self._workloads()
            case Kind.ALERTS:
                await self._alerts()
            case Kind.MEMBERS:
                await self._members()
            case Kind.NAMESPACE:
                await self._declarations.namespace(key)
            case Kind.MODEL:
                await self._declarations.model(key)
            case Kind.NODE:
                await self._fleet.write_node(key.name)

    def everything(self) -> Iterator[Key]:
        """All keys there are, for a look at each whatever was heard."""
        self._reader.forget()
        self._objects.forget()
        self._placements.forget()
        yield from (PLAN, WORKLOADS, ALERTS, MEMBERS)
        yield from self.statuses()
        yield from (Key(Kind.NODE, member) for member in self._fleet.recorded_members())

    def statuses(self) -> Iterator[Key]:
        """The keys of all objects that carry a status for people."""
        state, declared = self._fleet.state, self._declarations.declared or Declared()
        names = {held.name for held in (*state.namespaces.values(), *state.removed.values())}
        names |= {resource.api_name for resource in declared.namespaces.values()}
        yield from (Key(Kind.NAMESPACE, name) for name in sorted(names))
        yield from (Key(Kind.MODEL, name) for name in sorted({*state.models, *declared.models, *declared.unreadable}))

    @property
    def namespace_statuses(self) -> Mapping[str, PromptCacheNamespaceStatus]:
        """API name -> the status that was composed last."""
        return self._declarations.statuses

    # -- everything declared -------------------------------------------------------------------------------------------

    async def _plan(self) -> None:
        self._refuse_unwatched()
        declared = await self._reader.read(self._fleet.state.namespaces)
        done = await asyncio.gather(
            *(self._objects.add_finalizer(path_of(held), held) for held in declared.unfinalized), return_exceptions=True
        )
        for held in declared.unfinalized:
            if held["kind"] == "PromptCacheNamespace":
                self._reader.listing.heard(held, came_or_went=False)
        for problem in done:
            # One that somebody else changes at this moment is read anew below, and holds nobody up.
            if isinstance(problem, BaseException) and not isinstance(problem, Conflict):
                raise problem
        await self._fleet.apply(declared.desired, declared.seen, declared.present)
        before, self._declarations.declared = self._declarations.declared, declared
        if declared.unfinalized:
            self._add(PLAN)
        if declared.outdated:
            self._add(PLAN, delay=_LOOK_AGAIN_SECONDS)  # no event tells that definitions were applied
        if before is None or (before.models, before.unreadable) != (declared.models, declared.unreadable):
            self._add(WORKLOADS)
        self._add(ALERTS)
        for key in self.statuses() if before is None or before.problems != declared.problems else declared.news(before):
            self._add(key)

    def _refuse_unwatched(self) -> None:
        """What is not listed counts as deleted, so that what is planned must be among what is listed."""
        if not self._settings.namespaces:
            return
        names = sorted(held.name for held in self._fleet.state.namespaces.values())
        lost = [name for name in names if name.partition("/")[0] not in self._settings.namespaces]
        if lost:
            raise NotWatched(
                f"--namespace: {', '.join(lost[:5])} would count as deleted, because it was planned before and is in a "
                "namespace that is not watched any more; watch it too, or delete the object first"
            )

    async def _workloads(self) -> None:
        declared = self._declarations.declared
        if declared is None:
            return
        models = declared.models.values()
        if await self._placements.bring_about(models, complete=not declared.unreadable):
            for key in self.statuses():
                self._add(key)
        if not self._placements.settled(models):
            self._add(WORKLOADS, delay=_LOOK_AGAIN_SECONDS)

    async def _alerts(self) -> None:
        declared = self._declarations.declared
        if declared is not None and self._settings.alert_thresholds:
            await self._alert_rules.bring_about(declared.namespaces.values())

    async def _members(self) -> None:
        recorded = self._fleet.recorded_members()
        absent = {member: role for member, role in recorded.items() if member not in self._fleet.views()}
        if not absent:
            return
        nodes = {item["metadata"]["name"] for item in await self._kube.list(paths.NODES)}
        pods = {item["metadata"]["name"] for item in await self._kube.list(paths.pods(self._settings.own_namespace))}
        for member, role in absent.items():
            if member not in (nodes if role == DAEMON else pods):
                await self._fleet.member_gone(member)
                if not await self._fleet.forget_node(member):
                    self._add(Key(Kind.NODE, member))
