"""A gateway, put together: control link, node links, HTTP server, in one event loop.

A plan is applied in one step of the loop: from there on every request resolves against it, and only then does the
report go out that acknowledges it (I3).
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import uvicorn
import zmq.asyncio

from kvgrove_gateway.api.errors import api_error
from kvgrove_gateway.app import Api
from kvgrove_gateway.assembling import Assembling
from kvgrove_gateway.board import PlanBoard
from kvgrove_gateway.chat import Chat
from kvgrove_gateway.conversations import Conversations
from kvgrove_gateway.erasures import Erasures
from kvgrove_gateway.errors import ApiError
from kvgrove_gateway.explain.service import Explainer
from kvgrove_gateway.fleet import Fleet
from kvgrove_gateway.generation_counts import GenerationCounts
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.kv_events.engines import ForeignEngines
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.namespaces import EMPTY, Directory
from kvgrove_gateway.node_link import NodeLink
from kvgrove_gateway.protection.assembled import Protection
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.settings import Settings
from kvgrove_gateway.tls import ServerTls
from kvgrove_link.body_store import BodyStore
from kvgrove_link.clock import boottime
from kvgrove_link.frames import new_boot_id
from kvgrove_link.leases import LeaseTable
from kvgrove_link.member import MemberLink
from kvgrove_link.member_key import MemberKey
from kvgrove_link.tracing import tracing
from kvgrove_protocol.control import GATEWAY, Hello, NamespaceReport, NodeEndpoint, NodePlan, NodeReport
from kvgrove_protocol.receipts import Place

log = logging.getLogger(__name__)

DRAIN_LOOK_S = 0.05
READ_AHEAD_RETRY_S = 1.0
SWEEP_S = 0.05
BACKLOG = 2048
"""Connections the kernel holds while the loop is busy."""

CERTIFICATE_LOOK_S = 1.0


class Gateway:
    """One gateway process. `run` returns after `stop`, once requests are answered or the drain time is over."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        """``listener``: bound, not listening yet. Raises BrokenKeyFile, LinkKeysUnusable or TlsUnusable."""
        limits = settings.limits
        if settings.link_keys is not None:
            settings.link_keys.own()  # said at the start, where somebody looks
        self._settings = settings
        self._listener = listener
        self._boot = new_boot_id()
        self._random = Random(self._boot)  # noqa: S311 - jitter of reconnections
        self._metrics = Metrics()
        self._protection = Protection(
            settings,
            registry=self._metrics.registry,
            key_file_failed=self._metrics.key_file_failures.inc,
            denied=lambda code: self._metrics.denied.labels(code).inc(),
            clock=time.monotonic,
            now=time.time,
        )
        self._tracing = tracing(settings.otlp_endpoint, "kvgrove-gateway", settings.member)
        self._context = zmq.asyncio.Context()
        self._board = PlanBoard()
        self._leases = LeaseTable()
        self._link = MemberLink(
            self._context,
            settings.control,
            self._hello,
            on_plan=self._on_plan,
            report=self._report,
            leases=self._leases,
            random=self._random,
            keys=settings.link_keys,
        )
        self._fleet = Fleet(self._make_link, limits=limits, metrics=self._metrics, clock=time.perf_counter)
        self._engines = ForeignEngines(
            self._context,
            settings.kv_event_sources,
            block_size=settings.kv_event_block_size,
            capacity=limits.engine_blocks,
            metrics=self._metrics,
            clock=time.monotonic,
        )
        self._bodies = BodyStore(self._link.fetch, max_bytes=limits.bodies_bytes, timeout_s=limits.body_fetch_s)
        self._assembling = Assembling(
            limits,
            bodies=self._bodies,
            bundles=self._fleet.bundle,
            registry=self._metrics.registry,
            throwaway=lambda: os.urandom(32),
            cacheable_minimum=lambda model: settings.cacheable_minimum.get(
                model, settings.cacheable_minimum.get("", 0)
            ),
        )
        preparation = self._assembling.preparation
        self._key = MemberKey.fresh()
        self._conversations = Conversations(os.urandom(32), limits.conversations)
        self._counts = GenerationCounts()
        self._erasures = Erasures(
            settings.member,
            self._boot,
            self._key,
            {Place.ASSEMBLY_CACHE: self._assembling.clear, Place.WARM_LISTS: self._conversations.forget},
        )
        chat = Chat(
            self._board,
            preparation,
            self._fleet,
            lease_remaining=lambda uid: self._leases.remaining(uid, boottime()),
            limits=limits,
            metrics=self._metrics,
            conversations=self._conversations,
            counts=self._counts,
            clock=time.perf_counter,
            explain_routes=settings.explain_routes,
            tracing=self._tracing,
            telling=settings.reasons,
            charge=self._protection.rates.charge,
            new_id=lambda: secrets.token_hex(12),
        )
        explainer = Explainer(chat, self._fleet, self._assembling.threads, new_id=lambda: secrets.token_hex(12))
        api = Api(
            board=self._board,
            chat=chat,
            explainer=explainer,
            health=self,
            metrics=self._metrics,
            refresh_metrics=self._refresh_metrics,
            limits=limits,
            clock=time.perf_counter,
            now=time.time,
            new_id=lambda: secrets.token_hex(12),
        )
        self._gate = self._protection.around(
            api.application(),
            draining=lambda: self._draining,
            namespace_of=self._namespace_of,
            refuse=lambda path, error: api_error(path, error, f"req_{secrets.token_hex(12)}"),
        )
        failed = self._metrics.certificate_failures.inc
        self._tls = tls = ServerTls(settings.tls, on_failure=failed) if settings.tls is not None else None
        self._server = _Server(
            uvicorn.Config(
                self._gate,
                http=self._protection.connections(),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=BACKLOG,
                timeout_keep_alive=limits.idle_s,
                timeout_graceful_shutdown=limits.drain_s,
                ssl_context_factory=(lambda _config, _default: tls.context) if tls is not None else None,
            )
        )
        self._plan_changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._draining = False

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until `stop`. Raises what ended the control link, if it ends by itself (Superseded)."""
        helpers = [
            asyncio.create_task(self._link.run(), name="control link"),
            asyncio.create_task(self._protection.keep_current(), name="credentials"),
            asyncio.create_task(self._read_ahead(), name="read-ahead"),
            asyncio.create_task(self._sweep(), name="sweep"),
            asyncio.create_task(self._engines.run(), name="engines"),
            *([asyncio.create_task(self._renew(self._tls), name="certificate")] if self._tls is not None else []),
        ]
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]), name="http")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            done, _ = await asyncio.wait([serving, stopping, *helpers], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            await self._drain(serving)
            for task in done:
                task.result()
        finally:
            stopping.cancel()
            await self._close(helpers)

    async def _renew(self, tls: ServerTls) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_LOOK_S)
            await asyncio.to_thread(tls.refresh)

    def stop(self) -> None:
        """Take no new requests, answer those under way, then end `run`."""
        self._stopping.set()
        self._draining = True

    def reload(self) -> None:
        """Open the audit log anew, and read the files of keys and allowances again."""
        self._protection.reload()

    async def _drain(self, serving: "asyncio.Task[None]") -> None:
        """Keep the port open, to say that nothing new is taken, until nothing is under way or the time is over."""
        began = boottime()
        limits = self._settings.limits
        while not serving.done():
            passed = boottime() - began
            if passed >= limits.drain_s or (passed >= limits.drain_notice_s and not self._gate.under_way):
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        self._server.config.timeout_graceful_shutdown = max(int(limits.drain_s - (boottime() - began)), 1)
        self._server.should_exit = True
        await serving

    async def _close(self, helpers: list["asyncio.Task[None]"]) -> None:
        if not helpers[0].done():
            await self._link.close()
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        await self._fleet.close()
        self._assembling.close()
        await asyncio.to_thread(self._protection.close)
        self._context.destroy(0)
        await asyncio.to_thread(self._tracing.close)

    @property
    def draining(self) -> bool:
        return self._draining

    def not_ready_reason(self) -> str | None:
        """Why no request should come here now; None if all is well."""
        directory = self._board.current
        if self._draining:
            return "draining"
        if directory is EMPTY:
            return "no plan from the operator yet"
        if not self._fleet.ready:
            return "no node is connected"
        if directory.namespaces and not any(model.generation for model in directory.models()):
            return "no model is ready on the nodes yet"
        return None

    # -- control ---------------------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(
            member=self._settings.member,
            role=GATEWAY,
            boot=self._boot,
            namespace_uids=sorted(namespace.uid for namespace in self._board.current.namespaces),
            public_key=self._key.public,
        )

    def _namespace_of(self, identity: Identity, model: str) -> str | None:
        return self._board.current.name_of(identity, model)

    def _on_plan(self, plan: NodePlan) -> None:
        gone = {namespace.name for namespace in self._board.current.namespaces}
        directory = Directory.of(plan)
        self._board.publish(directory)
        self._counts.keep((uid, each) for uid, found in _beside(directory).items() for each in found)
        self._assembling.follow(directory)
        for uid, erasure in self._erasures.carry_out(plan):
            self._protection.audit.record("erase", namespace_uid=uid, erasure=erasure or None)
        self._fleet.follow(plan.nodes)
        self._bodies.retain(directory.body_digests())
        gone -= {namespace.name for namespace in directory.namespaces}
        self._metrics.forget(gone)
        self._assembling.forget(gone)
        self._metrics.savings.follow(directory.namespaces)
        self._plan_changed.set()
        log.info(
            "plan %d.%d: %d namespaces, %d models, %d nodes",
            *(plan.revision.term, plan.revision.n, len(plan.namespaces), len(plan.models), len(plan.nodes)),
        )

    def _report(self, report_id: int) -> NodeReport:
        directory = self._board.current
        beside = _beside(directory)
        return NodeReport(
            report_id=report_id,
            applied=directory.revision,
            namespaces=[
                NamespaceReport(
                    uid=each.uid,
                    fence=each.fence,
                    purge_counter=each.purge.counter,
                    generations=self._counts.reports(each.uid, beside.get(each.uid, [])),
                )
                for each in directory.namespaces
            ],
            receipts=self._erasures.receipts(),
        )

    def _make_link(self, endpoint: NodeEndpoint, residency: NodeResidency) -> NodeLink:
        return NodeLink(
            self._context,
            endpoint,
            member=self._settings.member,
            boot=self._boot,
            residency=residency,
            limits=self._settings.limits,
            metrics=self._metrics,
            clock=boottime,
            random=self._random,
            keys=self._settings.link_keys,
        )

    # -- beside requests -------------------------------------------------------------------------------------------

    async def _read_ahead(self) -> None:
        """Fetch texts and tokenizers of a new plan before a request has to wait for them; again until all are here."""
        while True:
            await self._plan_changed.wait()
            self._plan_changed.clear()
            directory = self._board.current
            await self._bodies.prefetch(directory.body_digests())
            missing = False
            for model in directory.models():
                try:
                    if model.tokenizer_bundle:
                        await self._assembling.tokenizers.get(model.tokenizer_bundle)
                except ApiError:
                    missing = True
            if missing:
                with suppress(TimeoutError):
                    async with asyncio.timeout(READ_AHEAD_RETRY_S):
                        await self._plan_changed.wait()
                self._plan_changed.set()

    async def _sweep(self) -> None:
        """Take what closed slots left behind out of the index, a little at a time."""
        while True:  # noqa: ASYNC110 - paced on purpose: it must never take the loop for long
            await asyncio.sleep(0 if self._fleet.index.sweep() else SWEEP_S)

    def _refresh_metrics(self) -> None:
        metrics, directory, now = self._metrics, self._board.current, boottime()
        self._engines.show()
        self._protection.refresh_figures()
        metrics.imbalance.set(self._fleet.imbalance())
        metrics.index_blocks.set(len(self._fleet.index))
        metrics.index_dropped.set(self._fleet.index.dropped)
        metrics.plan_term.set(directory.revision.term)
        metrics.plan_number.set(directory.revision.n)
        for state, count in self._fleet.states().items():
            metrics.nodes.labels(state).set(count)
        for state, count in self._fleet.sources().items():
            metrics.sources.labels(state).set(count)
        for namespace in directory.namespaces:
            metrics.lease_seconds.labels(namespace.name).set(self._leases.remaining(namespace.uid, now))


def _beside(directory: Directory) -> dict[str, list[bytes]]:
    """Namespace UID -> its generations, where there are several."""
    offers = {each.uid: directory.offers(each) for each in directory.namespaces if each.generations}
    return {uid: [offer.model.generation for offer in found] for uid, found in offers.items() if len(found) > 1}


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: the process has one owner of signals, `__main__`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
