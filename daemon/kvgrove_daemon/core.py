"""The core thread: cache and engines of one node, one thing at a time.

Commands are carried out between engine steps, so that neither index nor pool ever needs a lock, and a cancel frees the
node within one prefill chunk or decode step. The plan table is read anew at each admission and each commit: whoever
swaps it may acknowledge it at once (I3).
Must not know: sockets, the control link.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from kvgrove_daemon.cache.store import Usage
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.commands import (
    Command,
    Concluded,
    Drop,
    Erase,
    Follow,
    HandOver,
    Host,
    Look,
    PeerLost,
    Restored,
    Start,
    Stop,
    Unhost,
    Warm,
    WarmFence,
)
from kvgrove_daemon.engine.loop import EngineLoop, Finished
from kvgrove_daemon.eraser import Eraser
from kvgrove_daemon.explaining import Explainer
from kvgrove_daemon.followers import Followers
from kvgrove_daemon.namespaces import PlanProblem
from kvgrove_daemon.node_pools import NodePools
from kvgrove_daemon.node_tiers import NodeTiers
from kvgrove_daemon.quotas import RoomPlan
from kvgrove_daemon.request_runner import RequestRunner
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_daemon.waiting_room import WaitLimits
from kvgrove_daemon.warm_set import Warmth
from kvgrove_daemon.warmer import Warmer
from kvgrove_daemon.warmup import Served
from kvgrove_protocol.events import NodeLoad
from kvgrove_protocol.receipts import Receipt

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
MAX_COMMANDS = 4096
MOST_RELIEVED = 256
MOST_RELIEVED_BETWEEN_STEPS = 64
"""Blocks that may give way before the next step: a fraction of a millisecond."""


@dataclass(frozen=True)
class Published:
    """A copy of the core's figures for other threads, made between steps."""

    warmth: Mapping[Served, Warmth] = field(default_factory=dict)
    warm_fences: Mapping[Served, WarmFence] = field(default_factory=dict)
    """What each warm set was resolved under."""
    usage: Mapping[str, Usage] = field(default_factory=dict)
    receipts: Sequence[Receipt] = ()
    """How far everything is that the plan wants erased; unsigned."""
    quota_problems: Mapping[str, PlanProblem] = field(default_factory=dict)
    """Namespace UID -> why it is on its last good quota."""
    left: int | None = None
    """Requests under way, and blocks to be handed over, before the process may end; None: it is not to end."""


class Core:
    """Runs in a thread of its own from `start` to `stop`. Only `submit` and `published` are for other threads."""

    def __init__(
        self,
        around: Surroundings,
        engine: EngineLoop,
        pools: NodePools,
        followers: Followers,
        eraser: Eraser,
        *,
        threads: int,
        jitter: Callable[[], float],
        changed: Callable[[], None],
        died: Callable[[BaseException], None],
    ) -> None:
        """``jitter``: uniform in [0, 1). ``changed``: `published` has news worth a report.

        ``died``: the thread ended by an error.
        """
        self._around = around
        self._engine = engine
        self._pools = pools
        self._followers = followers
        self._eraser = eraser
        self._threads = threads
        self._changed = changed
        self._died = died
        self._commands: queue.Queue[Command | None] = queue.Queue(MAX_COMMANDS)
        self._tiers = NodeTiers(
            pools,
            prefill_tokens_per_s=lambda: engine.load().prefill_tokens_per_s,
            clock=around.clock,
            restored=self._on_restored,
        )
        self._runner = RequestRunner(
            around, engine, self._tiers, beacons=followers.beacons, limits=WaitLimits(), jitter=jitter
        )
        self._explainer = Explainer(around, self._runner.models, self._runner.history, self._tiers.look)
        self._warmer = Warmer(around, self._runner)
        self._thread = threading.Thread(target=self._main, name="kvgrove-core", daemon=True)
        self._next_heartbeat = 0.0
        self._warm_fences: Mapping[Served, WarmFence] = {}
        self._quota_problems: Mapping[str, PlanProblem] = {}
        self._ending = False
        self.published = Published()

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> bool:
        """Queue ``command``; False if the queue is full."""
        try:
            self._commands.put_nowait(command)
        except queue.Full:
            return False
        return True

    def stop(self, timeout: float) -> bool:
        """End the thread after the step under way; False if it did not end in ``timeout`` seconds."""
        self._commands.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)  # counts for the calling thread only
        try:
            while self._take_commands():
                self._turn()
        except BaseException as error:
            log.exception("the core thread ended by an error")
            self._died(error)
            raise

    def _take_commands(self) -> bool:
        """Carry out what is queued; while there is nothing to compute, wait for something or for the next heartbeat."""
        wait = 0.0
        if not self._engine.has_work and not self._eraser.busy:
            deadlines = (self._next_heartbeat, self._runner.next_deadline, self._tiers.next_deadline)
            until = min(at for at in deadlines if at is not None)
            wait = max(0.0, until - self._around.clock())
        try:
            command = self._commands.get(timeout=wait) if wait else self._commands.get_nowait()
            while True:
                if command is None:
                    return False
                self._carry_out(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return True

    def _carry_out(self, command: Command) -> None:
        match command:
            case Start():
                self._runner.start(command)
            case Look():
                self._around.send(command.peer, self._explainer.answer(command.request))
            case Stop():
                self._runner.stop(command.peer, command.request_id)
            case PeerLost():
                self._runner.stop_all_of(command.peer)
                self._followers.remove(command.peer)
            case Follow():
                if command.on:
                    ready = self._tiers.snapshot()
                    self._followers.add(command.peer, ready, self._load(), boot=command.boot, after=command.after)
                else:
                    self._followers.remove(command.peer)
            case Host():
                self._runner.models.host(command.model)
            case Unhost():
                self._runner.models.retire(command.generation)
            case Warm():
                self._set_warm(command)
            case Drop():
                self._drop(command)
            case Erase():
                for order in command.orders:
                    self._runner.hot.forget(order.subject)
                self._eraser.follow(command.orders, settled=command.settled)
                self._publish()
            case Restored():
                self._on_restored(command)
            case Concluded():
                pass  # its work is done with the next turn
            case HandOver():
                self._ending = True
                self._tiers.hand_over()

    def _on_restored(self, command: Restored) -> None:
        self._runner.on_restored(command)

    def _set_warm(self, command: Warm) -> None:
        self._warmer.targets.replace([*command.targets, *self._runner.hot.targets(self._around.table())])
        self._set_rooms(command.rooms)
        self._warm_fences = command.fences
        self._publish()

    def _set_rooms(self, rooms: Mapping[str, RoomPlan]) -> None:
        problems: dict[str, PlanProblem] = {}
        for pool in self._pools.all():
            served = self._runner.models.usable.items()
            generations = {generation for generation, model in served if model.pool is pool}
            for quotas in pool.quotas:
                problems |= quotas.apply(rooms, generations)
        self._quota_problems = problems

    def _drop(self, command: Drop) -> None:
        self._runner.hot.forget(Subject(command.namespace_uid, command.root, command.document))
        for pool in self._pools.all():
            pool.drop(command.cause, Subject(command.namespace_uid, command.root, command.document))
        self._publish()

    def _turn(self) -> None:
        """One engine step and what belongs around it."""
        if self._engine.has_work:
            if self._followers.beacons.news:  # before the chunk, which takes long: the next request may be on its way
                self._followers.flush(self._load())
            for event in self._engine.step():
                self._runner.on_event(event)
                if isinstance(event, Finished):
                    self._publish()
        self._eraser.turn()
        self._tiers.keep(self._around.table(), self._runner.models.usable, self._around.lease_valid)
        self._tiers.tend()
        self._runner.advance()
        for pool in self._pools.all():
            pool.store.relieve(MOST_RELIEVED if self._runner.idle else MOST_RELIEVED_BETWEEN_STEPS)
        if not self._ending:
            self._warmer.next()
        self._runner.let_go()
        now = self._around.clock()
        due = now >= self._next_heartbeat
        if due:
            self._next_heartbeat = now + HEARTBEAT_S
        if due or self._ending or self._eraser.receipts() != self.published.receipts:
            self._publish()
        self._followers.flush(self._load(), heartbeat=due)

    def _publish(self) -> None:
        usage: dict[str, Usage] = {}
        for pool in self._pools.all():
            for uid, held in pool.store.usage().items():
                before = usage.get(uid, Usage(0, 0))
                usage[uid] = Usage(before.blocks + held.blocks, before.bytes + held.bytes)
        old, new = (
            self.published,
            Published(
                self._warmer.warmth(),
                self._warm_fences,
                usage,
                self._eraser.receipts(),
                self._quota_problems,
                len(self._runner.roster) + self._tiers.left if self._ending else None,
            ),
        )
        self.published = new
        if replace(old, usage=usage, left=new.left) != new:
            self._changed()
        names = {uid: each.plan.name for uid, each in self._around.table().namespaces.items()}
        self._around.metrics.held.show(self._tiers.held(names), names.values(), self._around.clock())
        self._around.metrics.show_stores([pool.store.stats() for pool in self._pools.all()])
        self._around.metrics.tiers.show(self._tiers.seen())
        self._around.metrics.show_waiting(self._runner.flights.stats(), self._runner.waiting_for_room)
        self._around.metrics.show_beacons(self._followers.beacons.untold)

    def _load(self) -> NodeLoad:
        stats = self._engine.load()
        free = sum(pool.store.free_slots for pool in self._pools.all())
        return NodeLoad(
            queued_prefill_tokens=stats.queued_prefill_tokens + self._runner.roster.waiting_tokens,
            running=stats.running,
            prefill_tokens_per_s=stats.prefill_tokens_per_s,
            decode_steps_per_s=stats.decode_steps_per_s,
            free_blocks=free,
            blocks=sum(pool.store.resident.pool.num_slots for pool in self._pools.all()),
        )
