"""Room made ahead of need, off the request path.

Role: bring a pool and its namespaces below their watermarks, and take what has expired. Invariants: each call is
bounded; a namespace over its own room gives way itself; the pool's pressure leaves each its floor. Once begun, relief
goes on to the low mark over as many calls as it takes, so that it does not begin anew with each block.
Must not know: who calls it, when; requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.resident import ResidentBlocks

_EXPIRY_EVERY_S: Final = 1.0


class Relief:
    """Of one pool. Mutable, single-threaded."""

    def __init__(self, resident: ResidentBlocks, low_free: int, high_free: int, clock: Callable[[], float]) -> None:
        """Fewer than ``low_free`` free slots start it, ``high_free`` end it. ``clock``: that of the pool's ages."""
        self._resident = resident
        self._low_free = low_free
        self._high_free = high_free
        self._clock = clock
        self._next_expiry = clock()
        self._pool_short = False
        self._relieving: set[str] = set()

    def run(self, limit: int) -> int:
        """Free at most ``limit`` blocks; answers how many. 0: nothing is to be done now."""
        freed = self._expired(limit)
        for namespace in list(self._resident.rooms.all()):
            freed += self._namespace(namespace, limit - freed)
        self._relieving &= self._resident.rooms.all().keys()
        return freed + self._pool(limit - freed)

    def _expired(self, limit: int) -> int:
        now = self._clock()
        if now < self._next_expiry:
            return 0
        expired = self._resident.expire(limit)
        if expired < limit:  # otherwise there may be more of them
            self._next_expiry = now + _EXPIRY_EVERY_S
        return expired

    def _namespace(self, namespace: str, limit: int) -> int:
        resident, rooms = self._resident, self._resident.rooms
        room, held = rooms.of(namespace), resident.index.per_namespace.get(namespace, 0)
        size, freed = rooms.size(namespace), 0
        if held * 100 > size * room.high_watermark:
            self._relieving.add(namespace)
        if namespace in self._relieving:
            over = held - size * room.low_watermark // 100
            cause = RemovalCause.QUOTA if room.ceiling is not None else RemovalCause.PRESSURE
            freed = resident.evict(min(over, limit), cause, namespace)
            if freed >= over or not freed:
                self._relieving.discard(namespace)
        if room.tenant_share < 100:
            for group in rooms.tenants_of(namespace):
                over = min(rooms.over_share(group), limit - freed)
                freed += resident.evict(over, RemovalCause.QUOTA, namespace, group.tenant)
        return freed

    def _pool(self, limit: int) -> int:
        pool = self._resident.pool
        if not self._pool_short and pool.free_count >= self._low_free:
            return 0
        freed = self._resident.relieve_pressure(min(self._high_free - pool.free_count, limit))
        self._pool_short = freed > 0 and pool.free_count < self._high_free
        return freed
