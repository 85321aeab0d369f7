"""A task's place: what it reuses, what it waits for, and slots for the rest (DESIGN section 5, point 5).

Role: match, then either join a flight, or wait for room, or begin a build. Invariant: whoever is to wait holds nothing
of the store afterwards; it is matched again when its turn comes, and only that outcome is reported.
Must not know: gateways, engines, how requests end.
"""

from collections.abc import Callable
from enum import Enum

from kvgrove_daemon.accounting import reusable_limit
from kvgrove_daemon.active import Work
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.flights import Flights, Pace, Wanted
from kvgrove_daemon.cache.match import Match
from kvgrove_daemon.cache.resident import NoRoom
from kvgrove_daemon.cache.store import Build
from kvgrove_daemon.judging import Task
from kvgrove_daemon.prompts import cached_prompt, chain_of
from kvgrove_daemon.restorer import Restore, Restorer
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_protocol.reasons import BypassReason, MissReason


class Wait(Enum):
    """Why a task has no place yet."""

    FLIGHT = "flight"
    TURN = "turn"
    """Somebody who came before waits for room."""
    ROOM = "room"


class Placer:
    """Gives tasks their place. ``pace`` says how long this node takes now."""

    def __init__(self, around: Surroundings, flights: Flights, restorer: Restorer, pace: Callable[[], Pace]) -> None:
        self._around = around
        self._flights = flights
        self._restorer = restorer
        self._pace = pace

    def place(self, request_id: str, task: Task, *, behind: bool, may_wait: bool = True) -> Work | Wait:
        """``behind``: others come first if it needs room. Without ``may_wait`` it joins no flight."""
        if task.cold is not None:
            return self._place_cold(task, behind=behind)
        store = task.model.pool.store
        prompt = cached_prompt(
            task.namespace,
            task.caller,
            task.tokens,
            task.spans,
            block_size=store.block_size,
            throwaway=self._around.throwaway,
        )
        chain = chain_of(store, prompt, task.tokens)
        stop = reusable_limit(chain.token_count, store.block_size) // store.block_size
        match = store.match(chain)
        wanted = Wanted(task.party, chain.keys, match.blocks, stop, store.block_size)
        if may_wait and self._flights.join(request_id, wanted, self._around.clock(), self._pace()):
            match.release()
            return Wait.FLIGHT
        if behind:
            match.release()
            return Wait.TURN
        restore = self._restorer.find(store, chain, match.blocks, stop)
        why = self._why(request_id, chain, restore)
        build = self._build(task, match)
        if restore is not None and (build is None or restore.upto <= match.blocks):
            restore.release()
            restore = None
        if build is None:
            return Wait.ROOM
        self._flights.lead(request_id, task.party, chain.keys, match.blocks)
        reused = {task.model.pool.tier: match.reused_tokens}
        return Work(task, build, restore, why, prompt.zones, reused, prompt.private_realm)

    def _place_cold(self, task: Task, *, behind: bool) -> Work | Wait:
        """A chain without keys: nothing can be found under it, and nothing stored."""
        if behind:
            return Wait.TURN
        store = task.model.pool.store
        chain = Chain(task.namespace.plan.uid, self._around.throwaway(), task.tokens, [], store.block_size)
        build = self._build(task, store.skip(chain), BypassReason.COLD)
        return Work(task, build, None, {}, [], {}) if build is not None else Wait.ROOM

    @staticmethod
    def _build(task: Task, match: Match, bypass: BypassReason | None = None) -> Build | None:
        """None where there is no room: the match is released then."""
        build = task.model.pool.store.begin(match, spare_tokens=task.max_new_tokens, bypass=bypass)
        if isinstance(build, NoRoom):
            match.release()
            return None
        return build

    def _why(self, request_id: str, chain: Chain, restore: Restore | None) -> dict[bytes, MissReason]:
        why: dict[bytes, MissReason] = {}
        if restore is not None:
            for key in chain.keys[restore.upto : restore.upto + restore.declined]:
                why[key] = MissReason.NOT_WORTH_LOADING
        for block in self._flights.ran_out(request_id):
            why[chain.keys[block]] = MissReason.BUILDING
        return why
