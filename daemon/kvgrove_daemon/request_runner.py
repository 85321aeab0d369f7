"""All requests of a node, from arrival to end: the effects around `request_life` (DESIGN section 5).

Role: carry out what the table says: judge, place, load, compute, commit, account, give back. Invariants: every change
of a request's state goes through `_step`, which gives back what is no longer held, once; where the cache may not be
used the request is computed cold, never failed (I7); every wait has a bound (I11). Belongs to the core thread.
"""

from collections import deque
from collections.abc import Callable

from kvgrove_daemon.active import Active, Work
from kvgrove_daemon.beacons import BuildBeacons
from kvgrove_daemon.cache.backoff import Backoff
from kvgrove_daemon.cache.flight_life import Wake
from kvgrove_daemon.cache.flights import Flights, Pace
from kvgrove_daemon.cache.resident import NoRoom
from kvgrove_daemon.commands import Restored, Start
from kvgrove_daemon.computing import end_build, engine_request, explain, remember, take_loaded
from kvgrove_daemon.engine.loop import BlocksComputed, EngineEvent, EngineLoop, Failed, Finished, PromptScored, TokenOut
from kvgrove_daemon.history import ReuseHistory
from kvgrove_daemon.hot_chains import HotChains
from kvgrove_daemon.judging import Task, is_fresh, judge
from kvgrove_daemon.placing import Placer, Wait
from kvgrove_daemon.refusals import NEVER_ROOM, NO_ROOM_IN_TIME, QUEUE_FULL, Refusal
from kvgrove_daemon.replies import Replies
from kvgrove_daemon.request_life import Held, RequestEvent, RequestState, step
from kvgrove_daemon.restorer import Restorer
from kvgrove_daemon.roster import Roster
from kvgrove_daemon.served_models import ServedModels
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_daemon.waiting_room import WaitingRoom, WaitLimits
from kvgrove_protocol.errors import KvgroveError


class RequestRunner:
    """All requests of a node, of all its models. ``jitter``: uniform in [0, 1)."""

    def __init__(
        self,
        around: Surroundings,
        engine: EngineLoop,
        restorer: Restorer,
        *,
        beacons: BuildBeacons,
        limits: WaitLimits,
        jitter: Callable[[], float],
    ) -> None:
        self._around = around
        self._engine = engine
        self._engine.draw_slots_from(self)
        self._restorer = restorer
        self._beacons = beacons
        self._limits = limits
        self.models = ServedModels(engine)
        backoff = Backoff(base_s=limits.retry_base_s, max_s=limits.retry_max_s, jitter=jitter)
        self.flights = Flights(max_wait_s=limits.flight_s, backoff=backoff)
        self._placer = Placer(around, self.flights, restorer, self._pace)
        self._room = WaitingRoom()
        self._woken: deque[Wake] = deque()
        self.hot = HotChains()
        self.history = ReuseHistory()
        self._replies = Replies(around)
        self.roster = Roster()

    # -- what there is -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not len(self.roster)

    @property
    def waiting_for_room(self) -> int:
        return len(self._room)

    @property
    def next_deadline(self) -> float | None:
        """When `advance` has something to do, whatever the engine does; None while nobody waits."""
        deadlines = [self.flights.next_deadline, self._room.next_deadline]
        return min((at for at in deadlines if at is not None), default=None)

    def let_go(self) -> None:
        """Free the weights of retired models that nobody uses any more."""
        self.models.let_go(self.roster.generations())

    # -- from gateways -------------------------------------------------------------------------------------------------

    def start(self, command: Start) -> None:
        """Begin ``command``, or let it wait for room or for another's blocks, or refuse it."""
        self._decide(self.roster.take_in(command, command.request.namespace_uid, command.arrived))

    def warm(self, task: Task) -> None:
        """Compute ``task`` for nobody, if there is room now."""
        active = self.roster.take_in(None, task.namespace.plan.uid, self._around.clock())
        placed = self._placer.place(active.id, task, behind=False, may_wait=False)
        if isinstance(placed, Wait):
            self._step(active, RequestEvent.CANCEL)
        else:
            self._begin(active, placed)

    def stop(self, peer: bytes, request_id: str) -> None:
        """The caller has gone. An unknown id is a no-op: the answer may have crossed the cancel."""
        for active in self.roster.of(peer, request_id):
            self._cancel(active)

    def stop_all_of(self, peer: bytes) -> None:
        for active in self.roster.of(peer):
            self._cancel(active)

    def _cancel(self, active: Active) -> None:
        if active.state is RequestState.LETTING_GO:
            return
        self._replies.cancelled(active)
        if self._step(active, RequestEvent.CANCEL) is RequestState.LETTING_GO:
            self._restorer.stop(active.id)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Between engine steps: go on with those who were woken, have waited long enough, or whose turn has come."""
        now = self._around.clock()
        self._woken += self.flights.tick(now, self._pace().tokens_per_s)
        for number in self._room.overdue(now):
            if (overdue := self.roster.get(str(number))) is not None:
                self._refuse(overdue, NO_ROOM_IN_TIME)
        while True:
            self._call_woken()
            self._call_lines()
            if not self._woken:  # else somebody began, failed at once, and was waited for
                return

    def _call_woken(self) -> None:
        while self._woken:
            active = self.roster.get(self._woken.popleft().waiter)
            if active is not None and active.state is RequestState.WAITING_FLIGHT:
                self._retry(active)

    def _call_lines(self) -> None:
        for pool in self._room.pools():
            while (first := self._room.first(pool)) is not None:
                active = self.roster.get(str(first))
                if active is None or self._retry(active) is RequestState.WAITING_ROOM:
                    break

    def _retry(self, active: Active) -> RequestState:
        self._step(active, RequestEvent.RETRY)
        self._decide(active)
        return active.state

    # -- from arrival to the engine ------------------------------------------------------------------------------------

    def _decide(self, active: Active) -> None:
        """Judge and place an ARRIVED request, by what is true now."""
        if active.start is None:
            raise ValueError("warm-up is placed or dropped, and decides nothing")
        request = active.start.request
        lease_valid = self._around.lease_valid(request.namespace_uid)
        task = judge(request, self._around.table(), self.models.usable, lease_valid=lease_valid)
        if isinstance(task, Refusal):
            self._refuse(active, task)
            return
        began, store = self._around.clock(), task.model.pool.store
        placed = self._placer.place(active.id, task, behind=self._room.is_behind(store, active.number))
        match placed:
            case Work():
                self._around.metrics.lookup_seconds.observe(self._around.clock() - began)
                self._begin(active, placed)
            case Wait.ROOM if not self.roster.works_in(store) and not self._restorer.holds(store):
                self._refuse(active, NEVER_ROOM)  # nobody is there whose end would make room
            case _ if self._no_place_for(task):
                self._refuse(active, QUEUE_FULL)
            case Wait.FLIGHT:
                self._step(active, RequestEvent.AWAIT_FLIGHT)
            case _:
                if active.room_until is None:
                    active.room_until = began + self._limits.room_s
                self._room.enter(store, active.number, active.room_until)
                self._step(active, RequestEvent.AWAIT_ROOM)

    def _no_place_for(self, task: Task) -> bool:
        limits, roster = self._limits, self.roster
        return roster.waiting >= limits.places or roster.waiting_of(task.caller.tenant) >= limits.places_per_tenant

    def _begin(self, active: Active, work: Work) -> None:
        active.work = work
        active.began = self._around.clock()
        self._tell_of(active, work)
        if work.restore is None:
            self._run(active, work)
            return
        first, upto = work.build.reused_blocks, work.restore.upto
        self._step(active, RequestEvent.LOAD)
        self._restorer.start(active.id, work.restore, work.build.slots[first:upto])

    def _tell_of(self, active: Active, work: Work) -> None:
        """Gateways send others who want the same prefix here, to wait for it."""
        build, pace = work.build, self._pace()
        if build.bypass is not None:
            return
        tokens = pace.queued_tokens + work.task.model.pool.store.block_size * (len(build.keys) - build.reused_blocks)
        expected_s = tokens / pace.tokens_per_s if pace.tokens_per_s > 0 else None
        self._beacons.begin(active.id, build.keys, build.reused_blocks, expected_s)

    def on_restored(self, command: Restored) -> None:
        """A worker has let go of the slots that it loaded into. One for a request that has ended is a no-op."""
        active = self.roster.get(command.request_id)
        if active is None or (work := active.work) is None or work.restore is None:
            return
        if active.state is RequestState.LETTING_GO:
            self._step(active, RequestEvent.LOADED)
        elif not self._is_fresh(work):  # the load took its time, and the plan moved on: nothing of it may be read
            self._retry(active)
        else:
            self._around.metrics.restore_seconds.observe(self._around.clock() - active.began)
            self._commit(active, work, take_loaded(work, command.upto_block))
            self._run(active, work)

    def _run(self, active: Active, work: Work) -> None:
        """Hand a placed request to the engine."""
        active.ran = self._around.clock()
        work.missed = explain(work, self.history)
        self._step(active, RequestEvent.RUN)
        self._replies.started(active, work)
        try:
            self._engine.add(engine_request(active.id, work))
        except KvgroveError as error:
            self._fail(active, error)

    def _pace(self) -> Pace:
        load = self._engine.load()
        return Pace(load.queued_prefill_tokens, load.prefill_tokens_per_s)

    # -- from the engine -----------------------------------------------------------------------------------------------

    def extend(self, request_id: str, blocks: int) -> list[int] | None:
        """More slots for a sequence that decodes; None when there is no room (the engine's `SlotSource`)."""
        active = self.roster.get(request_id)
        taken = active.work.build.extend(blocks) if active is not None and active.work is not None else None
        return None if isinstance(taken, NoRoom) else taken

    def on_event(self, event: EngineEvent) -> None:
        """Carry one event of the engine on to cache and caller. One for a request that has ended is a no-op."""
        active = self.roster.get(event.request_id)
        if active is None or (work := active.work) is None:
            return
        match event:
            case BlocksComputed():
                self._commit(active, work, event.upto_block)
            case PromptScored():
                self._replies.scored(active, event)
            case TokenOut():
                work.said.append(event.token_id)
                work.build.add_tokens([event.token_id])
                self._replies.token(active, work, event)
            case Finished():
                remember(work, self.history)
                if work.build.bypass is None and active.start is not None:
                    self.hot.note(work.task, work.build.chain, work.task.prompt_tokens)
                self._replies.finished(active, work, event.reason)
                self._step(active, RequestEvent.FINISH)
            case Failed():
                self._fail(active, event.error)

    def _commit(self, active: Active, work: Work, upto: int) -> None:
        work.build.commit(upto, lambda: self._is_fresh(work))
        if work.build.bypass is None:
            self._woken += self.flights.progress(active.id, upto)
            self._beacons.progress(active.id, upto)
        else:  # nothing more of it becomes READY: who waits for that need not wait any longer
            self._beacons.end(active.id)
            self._woken += self.flights.end(active.id, self._around.clock())

    def _is_fresh(self, work: Work) -> bool:
        """Whether what ``work`` computed or loaded may be stored: asked at every commit."""
        lease_valid = self._around.lease_valid(work.task.namespace.plan.uid)
        return is_fresh(work.task, self._around.table(), lease_valid=lease_valid)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _refuse(self, active: Active, refusal: Refusal) -> None:
        self._replies.refused(active, refusal)
        self._step(active, RequestEvent.REFUSE)

    def _fail(self, active: Active, error: KvgroveError) -> None:
        self._replies.failed(active, error)
        self._step(active, RequestEvent.FAIL)

    def _step(self, active: Active, event: RequestEvent) -> RequestState:
        """Change the state of ``active``, give back what it no longer holds, and answer the new state."""
        active.state, lost = step(active.state, event)
        for held in lost:
            self._give_back(active, held, event)
        if active.state is RequestState.ENDED:
            self.roster.remove(active)
        return active.state

    def _give_back(self, active: Active, held: Held, event: RequestEvent) -> None:
        match held:
            case Held.ENGINE:
                self._engine.cancel(active.id)  # no-op where the engine ended it
            case Held.LEAD:
                failed = event is RequestEvent.FAIL
                self._beacons.end(active.id)
                self._woken += self.flights.end(active.id, self._around.clock(), failed=failed)
            case Held.BUILD if active.work is not None:
                end_build(active.work.build, event)
                active.work = None
            case Held.WAIT:
                self.flights.settle(active.id)
            case Held.PLACE:
                self._room.leave(active.number)
            case _:
                pass
