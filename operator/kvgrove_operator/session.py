"""One term of leading: everything that runs while this process leads, and how it ends."""

import asyncio
import logging
from random import Random

import kopf
import zmq
import zmq.asyncio

from kvgrove_link.planner import PlannerSocket
from kvgrove_operator.declared import Reader
from kvgrove_operator.fleet import Fleet
from kvgrove_operator.fleet_memory import Memory
from kvgrove_operator.handlers import kopf_settings, registry_of
from kvgrove_operator.keys import MEMBERS, PLAN, WORKLOADS, Key
from kvgrove_operator.kube import Kube
from kvgrove_operator.leadership import Leadership
from kvgrove_operator.link_secrets import LinkSecrets
from kvgrove_operator.metrics import OperatorMetrics, ProcessMetrics
from kvgrove_operator.node_book import NodeBook
from kvgrove_operator.objects import FINALIZER, Objects
from kvgrove_operator.reconciler import Reconciler
from kvgrove_operator.settings import Settings
from kvgrove_operator.store import Store
from kvgrove_operator.work_queue import WorkQueue
from kvgrove_operator.workers import Work, Workers
from kvgrove_protocol.errors import Terminal

log = logging.getLogger("kvgrove_operator")

_BIND_TRIES, _BIND_SECONDS = 50, 0.1
_SINGLES = (PLAN, WORKLOADS, MEMBERS)


class Unusable(Terminal):
    """The fleet link cannot listen where it is told to."""

    code = "address_unusable"


class Session:
    """Made once this process leads; `run` it."""

    def __init__(
        self,
        settings: Settings,
        kube: Kube,
        leadership: Leadership,
        context: zmq.asyncio.Context,
        metrics: ProcessMetrics,
    ) -> None:
        self._settings, self._kube, self._leadership, self._context = settings, kube, leadership, context
        self._metrics = metrics
        self._workers: Workers | None = None
        self._keys: LinkSecrets | None = None

    @property
    def planned_at(self) -> float | None:
        """When everything declared was last planned (CLOCK_BOOTTIME); None: not yet."""
        return self._workers.planned_at if self._workers is not None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop``. Raises LeadershipLost, Outdated or StoreTaken where this process may not go on."""
        settings, kube = self._settings, self._kube
        store, book = Store(kube, settings.own_namespace), NodeBook(kube)
        memory = Memory(await store.load(), tuple(await book.load()))
        if memory.term() >= self._leadership.term:  # the Lease was deleted, or restored from a backup
            await self._leadership.raise_term(memory.term())
        # The plan is what members enforce: a purge must not wait for the statuses of two thousand namespaces.
        queue: WorkQueue[Key] = WorkQueue(jitter=Random().random, first=_SINGLES)  # noqa: S311 - it keeps no secret
        self._workers = workers = Workers(queue, resync=settings.resync)
        if not settings.plain_links:
            self._keys = LinkSecrets(kube, settings.own_namespace)
            await self._keys.load()
        objects = Objects(kube, settings.identity)
        reader = Reader(kube, settings, FINALIZER)
        fleet = Fleet(
            await self._bind(),
            term=self._leadership.term,
            memory=memory,
            store=store,
            book=book,
            changed=workers.add,
        )
        reconciler = Reconciler(
            kube,
            fleet,
            reader,
            settings,
            objects,
            add=workers.add,
            trouble=queue.trouble,
        )

        def turned(key: Key) -> None:
            for each in reconciler.statuses() if key in _SINGLES else ():
                workers.add(each)

        statuses = reconciler.namespace_statuses
        self._metrics.session = OperatorMetrics(fleet, queue, workers, objects, kube, statuses=statuses)
        log.info("leading, term %d, fleet link on %s", self._leadership.term, fleet.address)
        try:
            async with asyncio.TaskGroup() as group:
                parts = [
                    group.create_task(self._leadership.keep(fleet.lead)),
                    group.create_task(fleet.serve()),
                    group.create_task(fleet.keep_time()),
                    group.create_task(fleet.keep_records()),
                    group.create_task(fleet.keep_planning()),
                    *([group.create_task(self._keys.keep())] if self._keys is not None else []),
                    group.create_task(workers.run(Work(reconciler.reconcile, reconciler.everything, turned))),
                ]
                await self._watch(workers, reader, objects, stop)
                for part in parts:
                    part.cancel()
        finally:
            self._metrics.session = None
            fleet.close()

    async def _bind(self) -> PlannerSocket:
        """An address that a session before this one has left is freed in the background."""
        address = self._settings.listen
        for _ in range(_BIND_TRIES):
            try:
                return PlannerSocket(self._context, address, term=self._leadership.term, keys=self._keys)
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE:
                    raise Unusable(f"--listen {address}: {error.strerror}; choose an address of this machine") from None
            await asyncio.sleep(_BIND_SECONDS)
        raise Unusable(f"--listen {address}: another process has this address; choose another, or end it")

    async def _watch(self, workers: Workers, reader: Reader, objects: Objects, stop: asyncio.Event) -> None:
        await kopf.operator(
            registry=registry_of(workers.add, reader, objects),
            settings=kopf_settings(),
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            standalone=True,
            stop_flag=stop,
        )
