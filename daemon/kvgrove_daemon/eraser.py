"""Carries erasures out on one node, and says how far each is (I8).

Role: the shell around `cache.erase`: orders in, drops and wipes in every tier of every pool, receipts out. Invariants:
an order is cut within the call that brings it, so that no request admitted afterwards meets what it means; it is
carried out once, in whatever boots; survivors of a namespace are wrapped anew once for all its orders, when the last of
them is wiped; a receipt says PROVEN only in the state of that name. What nobody asks about any more is wiped to its end
all the same. Belongs to the core thread; what blocks goes to workers.
Must not know: sockets, keys that receipts are signed with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kvgrove_daemon.cache.erase import OUTCOMES, EraseEffect, EraseEvent, EraseState, step
from kvgrove_daemon.erase_orders import WHOLE, EraseOrder, Which
from kvgrove_daemon.erasing_pools import ErasingPool, PoolErasure
from kvgrove_protocol.receipts import EraseFault, EraseOutcome, Place, Receipt

RETRY_S: Final = 5.0
ADOPTION_S: Final = 30.0
"""So long a rewrap waits for what an earlier boot left to be adopted; what is not by then does not survive."""
LOOK_S: Final = 0.25
"""Between looks for what earlier boots left."""


class EraseMemory(Protocol):
    """What outlives a boot; durable on return. See `MemoryFile`."""

    def wiped(self, uid: str, erasure: str) -> bool: ...

    def note_wiped(self, uid: str, erasure: str) -> None: ...

    def forget(self, uid: str) -> None: ...


class EarlierMemory(Protocol):
    """See `EarlierSegments`."""

    @property
    def wiped(self) -> int: ...

    def look(self) -> int: ...


class EarlierFiles(Protocol):
    """See `EarlierDisks`."""

    def look(self, uid: str, *, settled: bool) -> int: ...


class NoEarlierFiles:
    """Of a node without a disk tier."""

    def look(self, uid: str, *, settled: bool) -> int:
        del uid, settled
        return 0


@dataclass
class _Erase:
    order: EraseOrder
    recalled: bool
    """An earlier boot wiped it: it is not cut again."""
    state: EraseState = EraseState.REQUESTED
    pools: dict[ErasingPool, PoolErasure] = field(default_factory=dict)
    """Those that were there when it was cut: what comes later holds nothing of before."""
    unseen: dict[Place, int] = field(default_factory=dict)
    """Segments and directories of earlier boots that could not be looked at yet."""
    fault: EraseFault | None = None
    wiped_at: float = 0.0
    retry_at: float = 0.0


class Eraser:
    """``pools()`` are those that there are now, each always as the same object.

    ``boots`` and ``files``: what earlier boots left in memory, and on disk outside of these pools.
    """

    def __init__(
        self,
        member: str,
        boot: str,
        pools: Callable[[], Iterable[ErasingPool]],
        memory: EraseMemory,
        *,
        boots: EarlierMemory,
        files: EarlierFiles,
        clock: Callable[[], float],
    ) -> None:
        self._member = member
        self._boot = boot
        self._pools = pools
        self._memory = memory
        self._boots = boots
        self._files = files
        self._clock = clock
        self._erases: dict[Which, _Erase] = {}
        self._known: set[ErasingPool] = set()
        self._settled = False
        self._look_at = 0.0
        self._rewrapping: dict[str, bytes] = {}
        """Namespace -> seal of the secret that a rewrap under way wraps under."""

    # -- orders --------------------------------------------------------------------------------------------------------

    def follow(self, orders: Sequence[EraseOrder], *, settled: bool) -> None:
        """``orders`` are all that is to be erased: begin what is new, forget what is done and asked for no more.

        ``settled``: every model that is planned is loaded, or failed.
        """
        self._settled = settled
        self._look_at = 0.0
        self._take_in_pools()
        asked = {order.which: order for order in orders}
        for which, erase in [*self._erases.items()]:
            if which not in asked and erase.state is EraseState.PROVEN:
                self._forget(which)
        for which, order in asked.items():
            known = self._erases.get(which)
            if known is None:
                self._begin(order)
                continue
            resealed = known.order.seal != order.seal
            known.order = order
            if resealed and known.state in (EraseState.PROVEN, EraseState.REWRAPPING, EraseState.INCOMPLETE):
                self._step(known, EraseEvent.RESEAL)
        self.turn()

    def _begin(self, order: EraseOrder) -> None:
        recalled = self._memory.wiped(*order.which)
        erase = self._erases[order.which] = _Erase(order, recalled)
        if recalled:
            self._step(erase, EraseEvent.RECALLED)
            return
        for pool in self._known:
            self._cut(erase, pool)
        self._step(erase, EraseEvent.CUT)

    def _take_in_pools(self) -> None:
        """A pool that has come since may have slower tiers with what an earlier boot left: cut it there too."""
        for pool in set(self._pools()) - self._known:
            self._known.add(pool)
            for erase in self._erases.values():
                unwiped = erase.state in (EraseState.UNREADABLE, EraseState.WIPING, EraseState.INCOMPLETE)
                if unwiped and not erase.recalled:
                    self._cut(erase, pool)

    @staticmethod
    def _cut(erase: _Erase, pool: ErasingPool) -> None:
        erase.pools[pool] = pool.cut(erase.order.subject, whole=erase.order.erasure == WHOLE)

    def _forget(self, which: Which) -> None:
        for pool, erasure in self._erases.pop(which).pools.items():
            pool.forget(erasure)

    # -- progress ------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether `turn` has something to do that waits for nobody."""
        return any(not pool.idle for pool in self._pools())

    def turn(self) -> None:
        """Between engine steps: wipe a bounded part of what waits, and see how far everything is."""
        self._take_in_pools()
        for pool in self._pools():
            pool.turn()
        for erase in [*self._erases.values()]:
            self._advance(erase)
        for uid in {erase.order.uid for erase in self._erases.values()}:
            self._seal(uid)

    def _advance(self, erase: _Erase) -> None:
        match erase.state:
            case EraseState.UNREADABLE:
                self._look(erase)
                if not erase.unseen:
                    self._step(erase, EraseEvent.SURVEYED)
                    self._advance(erase)
            case EraseState.WIPING:
                fault = next((fault for _, each in self._parts(erase) if (fault := each.fault) is not None), None)
                if fault is not None:
                    erase.fault, erase.retry_at = fault, self._clock() + RETRY_S
                    self._step(erase, EraseEvent.FAILED)
                elif not self._pending(erase):
                    self._step(erase, EraseEvent.EMPTIED)
            case EraseState.INCOMPLETE if self._clock() >= erase.retry_at:
                erase.fault = None
                for pool, each in self._parts(erase):
                    pool.retry(each)
                self._step(erase, EraseEvent.RETRY)

    def _look(self, erase: _Erase) -> None:
        """See whether anything that earlier boots left is out of sight still; not at every step."""
        if erase.unseen and self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_S
        found = {
            Place.DEAD_BOOTS: self._boots.look(),
            Place.DISK: self._files.look(erase.order.uid, settled=self._settled),
        }
        erase.unseen = {place: count for place, count in found.items() if count}

    def _step(self, erase: _Erase, event: EraseEvent) -> None:
        erase.state, effects = step(erase.state, event)
        if EraseEffect.REMEMBER in effects:
            erase.wiped_at = self._clock()
            uid, erasure = erase.order.which
            if erasure == WHOLE:
                self._memory.forget(uid)
            else:
                self._memory.note_wiped(uid, erasure)

    # -- sealing -------------------------------------------------------------------------------------------------------

    def _seal(self, uid: str) -> None:
        """Wrap survivors anew, once everything of the namespace that does not survive is wiped."""
        erases = [erase for (of, _), erase in self._erases.items() if of == uid]
        waiting = [erase for erase in erases if erase.state is EraseState.REWRAPPING]
        unwiped = any(erase.state not in (EraseState.REWRAPPING, EraseState.PROVEN) for erase in erases)
        if not waiting or unwiped or uid in self._rewrapping:
            return
        order = waiting[0].order
        pools = [pool for pool in self._known if pool.sealed]
        adopting = any(pool.is_adopting(uid) for pool in pools)
        if adopting and self._clock() < waiting[0].wiped_at + ADOPTION_S:
            return
        if not order.former_secret or not pools:
            for erase in waiting:
                self._step(erase, EraseEvent.SEALED)
            return
        self._rewrapping[uid] = order.seal
        left = len(pools)
        failed = False

        def ended(well: bool) -> None:
            nonlocal left, failed
            left, failed = left - 1, failed or not well
            if not left:
                self._sealed(uid, self._rewrapping.pop(uid), failed=failed)

        for pool in pools:
            pool.rewrap(uid, order.former_secret, order.secret, ended)

    def _sealed(self, uid: str, seal: bytes, *, failed: bool) -> None:
        for (of, _), erase in self._erases.items():
            if of != uid or erase.state is not EraseState.REWRAPPING or erase.order.seal != seal:
                continue
            if failed:
                erase.fault, erase.retry_at = EraseFault.REWRAP_FAILED, self._clock() + RETRY_S
            self._step(erase, EraseEvent.FAILED if failed else EraseEvent.SEALED)

    # -- evidence ------------------------------------------------------------------------------------------------------

    def receipts(self) -> tuple[Receipt, ...]:
        """Of all that is asked for, unsigned."""
        return tuple(self._receipt(erase) for erase in self._erases.values() if erase.order.asked)

    def _receipt(self, erase: _Erase) -> Receipt:
        places = Counter[Place]()
        for _, each in self._parts(erase):
            places.update(each.wiped())
        places[Place.DEAD_BOOTS] = self._boots.wiped
        outcome = OUTCOMES[erase.state]
        pending = self._pending(erase) if outcome is not EraseOutcome.PROVEN else {}
        return Receipt(
            uid=erase.order.uid,
            erasure=erase.order.erasure,
            member=self._member,
            boot=self._boot,
            outcome=outcome,
            places={place: count for place, count in places.items() if count},
            pending=dict(pending),
            reason=erase.fault if outcome is EraseOutcome.INCOMPLETE else None,
            seal=erase.order.seal if outcome is EraseOutcome.PROVEN else b"",
        )

    def _pending(self, erase: _Erase) -> Mapping[Place, int]:
        """What is still to be wiped; empty: nothing."""
        pending = Counter[Place]()
        for _, each in self._parts(erase):
            pending.update(each.pending())
        pending.update(erase.unseen)
        return {place: count for place, count in pending.items() if count}

    @staticmethod
    def _parts(erase: _Erase) -> list[tuple[ErasingPool, PoolErasure]]:
        return [*erase.pools.items()]
