"""A node, put together: control link, data socket, core thread, model loading.

The asyncio side takes plans and frames; the core thread owns cache and engines. A plan is applied in this order: what
must be remembered is made durable, the table is swapped (from here on the new fence holds), the report goes out, and
only then are bytes reclaimed and warmed (I3).
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from random import Random

import zmq
import zmq.asyncio

from kvgrove_daemon.bundles import bundle_chunk
from kvgrove_daemon.cache.arena import Arena, CupyArena, SharedMemoryArena
from kvgrove_daemon.cache.earlier_boots import EarlierSegments
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.workers import TierWorkers
from kvgrove_daemon.commands import (
    Command,
    Concluded,
    Erase,
    Follow,
    HandOver,
    Host,
    Look,
    PeerLost,
    Start,
    Stop,
    Unhost,
)
from kvgrove_daemon.core import Core
from kvgrove_daemon.earlier_disks import EarlierDisks
from kvgrove_daemon.engine.loop import EngineLoop
from kvgrove_daemon.erase_orders import EraseOrder, erase_orders
from kvgrove_daemon.eraser import Eraser
from kvgrove_daemon.erasing_pools import ErasingPools
from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.followers import Followers
from kvgrove_daemon.gateway_socket import GatewaySocket
from kvgrove_daemon.kv_events.export import KvEventExport
from kvgrove_daemon.memory_file import MemoryFile
from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_daemon.model_host import HostedModel, load_model
from kvgrove_daemon.model_loading import ModelLoading
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.node_pools import NodePools, Surface
from kvgrove_daemon.node_tiers import indexes_by_tier
from kvgrove_daemon.plan_effects import reclaims
from kvgrove_daemon.refusals import ENDING, QUEUE_FULL
from kvgrove_daemon.reporting import NodeState, namespace_reports
from kvgrove_daemon.self_test import prove_isolation
from kvgrove_daemon.settings import Settings
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_daemon.warm_resolving import WarmResolving
from kvgrove_link.body_store import BodyStore
from kvgrove_link.clock import boottime
from kvgrove_link.frames import new_boot_id
from kvgrove_link.gatekeeper import Gatekeeper
from kvgrove_link.leases import LeaseTable
from kvgrove_link.member import MemberLink
from kvgrove_link.member_key import MemberKey
from kvgrove_link.tracing import tracing
from kvgrove_prompt.render_pool import RenderPool
from kvgrove_protocol.control import DAEMON, Hello, ModelPlan, NodePlan, NodeReport
from kvgrove_protocol.data import BundleRequest, Cancel, Explain, Generate, Subscribe, ToGateway, ToNode, Unsubscribe
from kvgrove_protocol.events import DEVICE, HOST

log = logging.getLogger(__name__)

STOP_S = 30.0
DRAIN_LOOK_S = 0.05
BODIES_BYTES = 256 << 20
BODY_FETCH_S = 15.0
TEMPLATE_WORKERS = 1
"""Processes that render chat templates for warm-up."""


class Node:
    """One daemon. `run` returns after `stop`."""

    def __init__(self, settings: Settings) -> None:
        """Proves that callers are kept apart, then binds the data socket.

        Raises a KvgroveError that names the setting and the cure, SelfTestFailed before anything else is touched.
        """
        prove_isolation()
        self._settings = settings
        self.boot = new_boot_id()
        self._memory = MemoryFile.load(settings.state_dir / "memory.json")
        self._key = MemberKey.load_or_make(settings.state_dir / "receipts.key")
        self._earlier = EarlierSegments(settings.member, self.boot, self._memory.begin(self.boot))
        if alive := self._earlier.look():
            log.warning("%d earlier boots of this node still hold memory: erasures wait for their end", alive)
        self._table = PlanTable()
        self._leases = LeaseTable()
        self.metrics = NodeMetrics()
        self._arenas = 0
        self._workers = TierWorkers(lambda: self._submit(Concluded()))
        surface = Surface(
            top=DEVICE if settings.device == "cuda" else HOST,
            make_arena=self._make_arena,
            disk_dir=settings.cache_dir,
            workers=self._workers,
            fresh=self._is_current,
            clock=boottime,
            log=EventLog(self.boot),
        )
        self._pools = NodePools(surface)
        self._tracing = tracing(settings.otlp_endpoint, "kvgrove-daemon", settings.member)
        self._templates = RenderPool(TEMPLATE_WORKERS)
        self._context = zmq.asyncio.Context()
        keys = settings.link_keys
        self._gate = (
            Gatekeeper(self._context, keys, refused=lambda why: self.metrics.peers_refused.labels(why).inc())
            if keys is not None
            else None
        )
        self._socket = GatewaySocket(
            zmq.Context.shadow(self._context.underlying),
            settings.listen,
            member=settings.member,
            boot=self.boot,
            handle=self._on_message,
            lost=lambda peer: self._submit(PeerLost(peer)),
            count=lambda kind: self.metrics.frames_dropped.labels(kind).inc(),
            gate=self._gate,
        )
        self._export = self._make_export() if settings.kv_events is not None else None
        self._stopping = asyncio.Event()
        self._draining = False
        self._failure: BaseException | None = None
        self._orders: Sequence[EraseOrder] = ()

    def _make_export(self) -> KvEventExport:
        assert self._settings.kv_events is not None  # noqa: S101 - asked by the caller
        return KvEventExport(
            self._settings.kv_events,
            table=lambda: self._table,
            indexes=lambda: indexes_by_tier(self._pools),
            nearest=self._pools.surface.top,
            clock=boottime,
            registry=self.metrics.registry,
        )

    @property
    def address(self) -> str:
        """Where gateways reach this node."""
        return self._socket.address

    async def run(self) -> None:
        """Serve until `stop`. Raises what ended the core thread or the control link, if one of them fails."""
        loop = self._loop = asyncio.get_running_loop()
        self._link = MemberLink(
            self._context,
            self._settings.control,
            self._hello,
            on_plan=self._on_plan,
            report=self._report,
            leases=self._leases,
            random=Random(self.boot),  # noqa: S311 - jitter of reconnections
            keys=self._settings.link_keys,
        )
        self._bodies = BodyStore(self._link.fetch, max_bytes=BODIES_BYTES, timeout_s=BODY_FETCH_S)
        self._models = ModelLoading(self._load, self._on_loaded, self._on_unloaded, self._on_models_changed)
        self._warm = WarmResolving(lambda: self._table, self._models.by_generation, self._bodies, self._submit)
        around = Surroundings(
            table=lambda: self._table,
            lease_valid=lambda uid: self._leases.valid(uid, boottime()),
            send=self._send_from_core,
            clock=boottime,
            throwaway=lambda: os.urandom(32),
            metrics=self.metrics,
            tracing=self._tracing,
        )
        event_log = self._pools.surface.log
        self._core = Core(
            around,
            EngineLoop(clock=boottime),
            self._pools,
            Followers(event_log, self._send_from_core, self._export.exporter if self._export is not None else None),
            Eraser(
                self._settings.member,
                self.boot,
                ErasingPools(self._pools),
                self._memory,
                boots=self._earlier,
                files=EarlierDisks(self._settings.cache_dir, self._pools.directories, self._workers),
                clock=boottime,
            ),
            threads=self._settings.threads,
            jitter=Random(self.boot).random,  # noqa: S311 - jitter of retries
            changed=self._link.report_soon,
            died=self._on_core_death,
        )
        self._core.start()
        if self._export is not None:
            self._export.start()
        self._socket.start(loop)
        tasks = [asyncio.create_task(self._link.run()), asyncio.create_task(self._warm.run())]
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._failure is None:
                await self._drain()
        finally:
            await self._close([stopped, *tasks])
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End `run`: begin nothing new, finish what is under way, hand over to disk, give leases up, free the pools."""
        self._stopping.set()

    async def _drain(self) -> None:
        """While leases last: until nothing is under way and disk has what it can have, or the time is over."""
        deadline = boottime() + self._settings.drain_s
        self._draining = True
        self._submit(HandOver())
        while self._failure is None and self._core.published.left != 0:
            if boottime() >= deadline:
                left = self._core.published.left
                log.warning(
                    "ending with %s requests and blocks left, --drain is over", "unknown" if left is None else left
                )
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _close(self, tasks: list["asyncio.Task[None] | asyncio.Task[bool]"]) -> None:
        if not tasks[1].done():
            await self._link.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._models.close()
        if self._failure is None:
            await asyncio.to_thread(self._core.stop, STOP_S)
        if self._export is not None:
            await asyncio.to_thread(self._export.close)
        self._socket.close()
        if self._gate is not None:
            self._gate.close()
        await asyncio.to_thread(self._workers.close)
        self._templates.close()
        self._pools.close()
        self._context.destroy(0)
        self._tracing.close()

    def _on_core_death(self, error: BaseException) -> None:
        self._failure = error
        self._loop.call_soon_threadsafe(self._stopping.set)

    # -- data ----------------------------------------------------------------------------------------------------------

    def _on_message(self, peer: bytes, message: ToNode) -> None:
        match message:
            case Generate() if self._draining:
                self._socket.send(peer, ENDING.to(message.request_id))
            case Generate():
                if not self._core.submit(Start(peer, message, boottime())):
                    self._socket.send(peer, QUEUE_FULL.to(message.request_id))
            case Explain():
                if not self._core.submit(Look(peer, message.request)):
                    self._socket.send(peer, QUEUE_FULL.to(message.request.request_id))
            case Cancel():
                self._submit(Stop(peer, message.request_id))
            case Subscribe():
                self._submit(Follow(peer, on=True, boot=message.boot, after=message.after))
            case Unsubscribe():
                self._submit(Follow(peer, on=False))
            case BundleRequest():
                model = self._models.by_bundle(message.digest)
                self._socket.send(peer, bundle_chunk(message, model.bundle if model is not None else None))
            case _:
                self.metrics.frames_dropped.labels("unexpected").inc()

    def _submit(self, command: Command) -> None:
        """Queue what must not be lost; the bound is only reached when the core has been stuck for thousands of them."""
        if not self._core.submit(command):
            self.metrics.frames_dropped.labels("queue_full").inc()

    def _send_from_core(self, peer: bytes, message: ToGateway) -> None:
        self._loop.call_soon_threadsafe(self._socket.send, peer, message)

    # -- control -------------------------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(
            member=self._settings.member,
            role=DAEMON,
            boot=self.boot,
            pod_uid=self._settings.pod_uid,
            placement=self._settings.placement,
            address=self.address,
            epochs_seen=dict(self._memory.epochs),
            namespace_uids=sorted(self._memory.epochs),
            public_key=self._key.public,
        )

    def _on_plan(self, plan: NodePlan) -> None:
        old, new = self._table, self._table.apply(plan, self._memory.epochs)
        if new is old:
            return
        self._memory.raise_to({uid: namespace.plan.purge.counter for uid, namespace in new.namespaces.items()})
        self._memory.keep_wiped({uid: _erasures(namespace) for uid, namespace in new.namespaces.items()})
        self._table = new  # from here on nothing older is read
        self._orders = erase_orders(plan, self._memory.epochs)
        for name, problem in ({**new.problems, **new.model_problems}).items():
            log.warning("plan %s, %s: %s: %s", plan.revision, name, problem.code, problem.message)
        self._models.follow(new.models)
        self._erase()
        self.metrics.forget(_names(old) - _names(new))
        for drop in reclaims(old, new):
            self._submit(drop)
        self._warm.changed()

    def _report(self, report_id: int) -> NodeReport:
        published, table = self._core.published, self._table
        for uid, namespace in table.namespaces.items():
            self.metrics.lease_remaining.labels(namespace.plan.name).set(self._leases.remaining(uid, boottime()))
        state = NodeState(table, published, self._warm.problems, self._memory.epochs)
        return NodeReport(
            report_id=report_id,
            applied=table.revision,
            models=self._models.reports(),
            namespaces=namespace_reports(state),
            receipts=[self._key.sign(receipt) for receipt in published.receipts],
        )

    # -- models --------------------------------------------------------------------------------------------------------

    async def _load(self, plan: ModelPlan) -> HostedModel:
        template: str | None = None
        if plan.chat_template:
            template = (await self._bodies.get([plan.chat_template]))[plan.chat_template]
        default_dtype = "float32" if self._settings.device == "cpu" else "bfloat16"
        cache = self._settings.state_dir / "digests"
        return await asyncio.to_thread(
            load_model,
            plan,
            template,
            self._pools,
            cache,
            default_dtype=default_dtype,
            renderer=self._templates,
        )

    def _make_arena(self, tier: str, layout: KVLayout, slots: int) -> Arena:
        if tier == DEVICE:
            return CupyArena(layout, slots)
        self._arenas += 1
        return SharedMemoryArena(layout, slots, segment_name(self._settings.member, self.boot, self._arenas))

    def _is_current(self, uid: str, root: bytes) -> bool:
        """Whether blocks of a namespace under ``root`` may be listed now: asked before a slower tier does."""
        namespace = self._table.namespaces.get(uid)
        if namespace is None or not self._leases.valid(uid, boottime()):
            return False
        return root in namespace.roots()

    def _on_loaded(self, model: HostedModel) -> None:
        self._submit(Host(model))
        self._warm.changed()

    def _on_models_changed(self) -> None:
        self._link.report_soon()
        self._erase()

    def _erase(self) -> None:
        """Tell the core what is to be erased, and whether all pools are there that it may be in."""
        self._submit(Erase(self._orders, settled=all(model.state != "loading" for model in self._models.reports())))

    def _on_unloaded(self, model: HostedModel) -> None:
        self._submit(Unhost(model.generation))
        if (twin := self._models.by_generation(model.generation)) is not None:
            self._submit(Host(twin))  # the same generation under another name serves on


def _names(table: PlanTable) -> set[str]:
    return {namespace.plan.name for namespace in table.namespaces.values()}


def _erasures(namespace: HostedNamespace) -> frozenset[str]:
    return frozenset(erasure.id for erasure in namespace.plan.erasures)
