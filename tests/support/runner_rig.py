"""A request runner over a real cache, engine and tiny model, one step at a time, with a clock in the test's hand."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.workers import TierWorkers
from kvgrove_daemon.commands import Start
from kvgrove_daemon.engine.loop import EngineEvent, EngineLoop
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.metrics import NodeMetrics
from kvgrove_daemon.model_host import HostedModel, load_model
from kvgrove_daemon.namespaces import HostedNamespace, PlanTable
from kvgrove_daemon.node_pools import NodePools, Surface
from kvgrove_daemon.request_life import RequestState
from kvgrove_daemon.request_runner import RequestRunner
from kvgrove_daemon.restorer import NoSlowerTier, Restorer
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_daemon.waiting_room import WaitLimits
from kvgrove_protocol.chain import Span, SpanKind
from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.data import Done, Error, Generate, Sampling, Started, ToGateway, Token
from kvgrove_protocol.events import HOST
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Caller, Purge

BLOCK = 16
PEER = b"gateway"
_numbers = itertools.count()


@dataclass
class Heard:
    """What a caller was told about one request."""

    started: Started | None = None
    token_ids: list[int] = field(default_factory=list)
    done: Done | None = None
    error: Error | None = None


class RunnerRig:
    def __init__(
        self,
        state: Path,
        model: Path,
        *,
        slots: int = 128,
        chunk: int = 32,
        limits: WaitLimits | None = None,
        restorer: Restorer | None = None,
    ) -> None:
        self.now = 0.0
        self.engine_seconds = 0.0
        """How long each forward seems to take: 0 leaves the rates unmeasured."""
        self.lease = True
        self.heard: dict[str, Heard] = {}
        self.peers: dict[str, bytes] = {}
        self.log = EventLog("boot")
        name = segment_name(f"runner{os.getpid()}", "0", next(_numbers))
        self.pools = NodePools(
            Surface(
                top=HOST,
                make_arena=lambda _tier, layout, count: SharedMemoryArena(layout, count, name),
                disk_dir=state / "disk",
                workers=TierWorkers(lambda: None),
                fresh=lambda _uid, _root: self.lease,
                clock=lambda: self.now,
                log=self.log,
            )
        )
        layout = open_model(model).shape.layout("float32", BLOCK)
        plan = ModelPlan(
            name="tiny",
            path=str(model),
            block_size=BLOCK,
            prefill_chunk=chunk,
            pool_bytes={"host": slots * layout.block_bytes},
        )
        self.model: HostedModel = load_model(plan, None, self.pools, state, default_dtype="float32")
        self.store = self.model.pool.store
        self.namespace = NamespacePlan(
            uid="uid", name="team/chat", model="tiny", purge=Purge(1, b"n" * 16), fence=Fence(1, 1, 1)
        )
        named = msgspec.structs.replace(plan, generation=self.model.generation, inputs=self.model.inputs)
        self.table = PlanTable(namespaces={"uid": HostedNamespace(self.namespace, named, {})})
        ticks = itertools.count()
        self.engine = EngineLoop(clock=lambda: next(ticks) * self.engine_seconds)
        self.around = around = Surroundings(
            table=lambda: self.table,
            lease_valid=lambda _uid: self.lease,
            send=self._hear,
            clock=lambda: self.now,
            throwaway=lambda: next(_numbers).to_bytes(32, "big"),
            metrics=NodeMetrics(),
        )
        self.runner = RequestRunner(
            around,
            self.engine,
            restorer if restorer is not None else NoSlowerTier(),
            beacons=self.log.beacons,
            limits=limits if limits is not None else WaitLimits(),
            jitter=lambda: 1.0,
        )
        self.runner.models.host(self.model)

    def _hear(self, peer: bytes, message: ToGateway) -> None:
        assert isinstance(message, Started | Token | Done | Error)
        assert peer == self.peers[message.request_id]
        heard = self.heard[message.request_id]
        assert heard.done is None, "nothing is said after the end"
        assert heard.error is None, "nothing is said after the end"
        match message:
            case Started():
                heard.started = message
            case Token():
                heard.token_ids += message.token_ids
            case Done():
                heard.done = message
            case Error():
                heard.error = message

    def move_fence(self) -> None:
        """A purge: what was resolved before is stale from now on."""
        moved = msgspec.structs.replace(self.namespace, purge=Purge(2, b"m" * 16), fence=Fence(2, 1, 1))
        hosted = self.table.namespaces["uid"]
        self.table = PlanTable(namespaces={"uid": replace(hosted, plan=moved)})

    def ask(
        self,
        name: str,
        tokens: list[int],
        *,
        shared: int = 0,
        tenant: str | None = "acme",
        new: int = 4,
        peer: bytes = PEER,
        spans: list[Span] | None = None,
    ) -> None:
        """Send a prompt whose first ``shared`` tokens are a declared prefix, or one of these ``spans``."""
        if spans is None:
            spans = [Span(SpanKind.PREFIX, 0, shared, name="p")] if shared else []
            spans.append(Span(SpanKind.PRIVATE, shared, len(tokens)))
        request = Generate(
            request_id=name,
            namespace_uid="uid",
            generation=self.model.generation,
            fence=self.namespace.fence,
            caller=Caller(tenant=tenant),
            tokens=struct.pack(f"<{len(tokens)}I", *tokens),
            spans=spans,
            sampling=Sampling(temperature=0.0),
            max_new_tokens=new,
        )
        self.heard[name], self.peers[name] = Heard(), peer
        self.runner.start(Start(peer, request, self.now))

    def cancel(self, name: str) -> None:
        self.runner.stop(PEER, name)

    def turn(self) -> list[EngineEvent]:
        """One turn of the core: a step of the engine, then those who wait."""
        events = self.engine.step() if self.engine.has_work else []
        for event in events:
            self.runner.on_event(event)
        self.runner.advance()
        return events

    def drain(self, limit: int = 2000) -> None:
        """Until nobody is left whom the engine can serve."""
        for _ in range(limit):
            self.turn()
            if not self.engine.has_work:
                return
        raise AssertionError(f"still work after {limit} turns")

    def state_of(self, name: str, peer: bytes = PEER) -> RequestState | None:
        found = self.runner.roster.of(peer, name)
        return found[0].state if found else None

    def answer(self, name: str) -> list[int]:
        """The whole answer; it must have ended well, and its prompt must be accounted for (I10)."""
        heard = self.heard[name]
        assert heard.error is None, heard.error
        assert heard.done is not None
        usage = heard.done.usage
        assert usage.reused + sum(usage.missed.values()) == usage.prompt
        return heard.token_ids

    def reused(self, name: str) -> int:
        heard = self.heard[name]
        assert heard.done is not None
        return heard.done.usage.reused

    def assert_nothing_is_held(self) -> None:
        stats = self.store.stats()
        assert (stats.private, stats.leases, stats.builds, stats.double_releases) == (0, 0, 0, 0)
        assert len(self.runner.roster) == 0
        assert self.runner.waiting_for_room == 0
        assert self.runner.flights.stats().waiting == 0
        assert self.runner.next_deadline is None


Make = Callable[..., RunnerRig]


@contextmanager
def rigs(state: Path, model: Path) -> Iterator[Make]:
    """A maker of rigs over one model; all are closed at the end."""
    made: list[RunnerRig] = []

    def make(**options: object) -> RunnerRig:
        made.append(RunnerRig(state, model, **options))  # type: ignore[arg-type]
        return made[-1]

    try:
        yield make
    finally:
        for rig in made:
            rig.pools.close()
