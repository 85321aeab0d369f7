"""One tier below the engine's pool: which blocks lie on its medium, by the same rules as in the pool.

Role: a `ResidentBlocks` over the medium's slots, so that leases, rootedness, quotas and drops are what they are above,
and the clearing of slots that were given back. Invariants: rooted in itself (I6); a slot is handed out only when the
medium has let go of what was in it; room is made ahead of need, never while a request waits. Belongs to the core
thread: the medium's blocking calls go to workers.
Must not know: which blocks are worth storing, requests, engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.eviction import EvictionPolicy
from kvgrove_daemon.cache.history import Ghosts, RemovalCause
from kvgrove_daemon.cache.index import BlockIndex
from kvgrove_daemon.cache.leases import NO_BLOCK, Lease
from kvgrove_daemon.cache.relief import Relief
from kvgrove_daemon.cache.resident import Dropped, ResidencySink, ResidentBlocks
from kvgrove_daemon.cache.rooms import NamespaceRoom
from kvgrove_daemon.cache.store import Usage
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.break_even import PRIORS, MeasuredSpeed
from kvgrove_daemon.cache.tiers.facts import batch_of
from kvgrove_daemon.cache.tiers.health import Health, HealthEvent, step
from kvgrove_daemon.cache.tiers.medium import Facts, Medium, MediumCorrupt, MediumFailed, MediumFull
from kvgrove_daemon.cache.tiers.slots import ClearedSlots, Clearing
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_protocol.errors import KvgroveError

AT_ONCE: Final = 256
"""Blocks that one call evicts, expires or has cleared at most."""
EXPIRY_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TierStats:
    """A copy of one tier's gauges and counters. Counters only grow. Blocks unless said otherwise."""

    tier: str
    slots: int
    free: int
    ready: int
    retiring: int
    private: int
    """Being written; ``free + ready + retiring + private + clearing = slots``."""
    clearing: int
    block_bytes: int
    """What one block takes."""
    suspended: str
    """Why it is not written to now; empty while it is well."""
    loaded: int
    written: int
    corrupt: int
    not_cleared: int
    """How often clearing failed, slots."""


class LowerTier:
    """See the module. ``policy`` is for ``medium.num_slots`` blocks and this tier's alone."""

    def __init__(
        self,
        medium: Medium,
        *,
        block_size: int,
        body_bytes: int,
        block_bytes: int,
        policy: EvictionPolicy,
        sink: ResidencySink,
        workers: Workers,
        clock: Callable[[], float],
    ) -> None:
        slots = ClearedSlots(medium.num_slots)
        self.name = medium.name
        self.medium = medium
        ghosts = Ghosts(max(1024, slots.num_slots // 4))
        self.resident = ResidentBlocks(slots, block_size, policy, sink, ghosts, clock=clock)
        self.body_bytes = body_bytes
        """Of a block as it is read and written."""
        self.block_bytes = block_bytes
        """What it takes on the medium: what quotas and usage count."""
        self.speed = MeasuredSpeed(PRIORS[medium.name])
        self.health = Health()
        self.loaded = 0
        """Blocks that requests took from here."""
        self.written = 0
        """Blocks that became READY here."""
        self.corrupt = 0
        self._slots = slots
        self._workers = workers
        self._clock = clock
        low_free, high_free = max(1, slots.num_slots // 50), max(1, slots.num_slots // 20)
        self._relief = Relief(self.resident, low_free, high_free, clock)
        self._expire_at = 0.0
        self._lacking = 0  # slots that were asked for in vain since room was last made
        self._clearing = False
        self._clear_again_at = 0.0
        self._not_cleared = 0
        self._erasures = 0

    @property
    def index(self) -> BlockIndex:
        return self.resident.index

    def read(self, slot: int, facts: Facts) -> bytes | memoryview:
        """The bytes of a READY block that is under a lease. Called by workers. Raises what a `Medium` raises."""
        return self.medium.read(slot, facts)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """Up to ``count`` empty slots, private to the caller. Fewer where there are fewer: room is made for later."""
        have = min(count, self._slots.empty_count)
        self._lacking = max(self._lacking, min(count, self._slots.num_slots) - have)
        runs = self._slots.allocate(have) if have else None
        return [slot for run in runs for slot in run.slots()] if runs is not None else []

    def give_back(self, slots: Sequence[int]) -> None:
        """Private slots that did not become resident, whatever was written to them."""
        self.resident.free(slots)

    def relieve(self) -> None:
        """Between requests: take what has expired, make room ahead of need, have slots cleared; a little at a time."""
        if self._clock() >= self._expire_at and self.resident.expire(AT_ONCE) < AT_ONCE:
            self._expire_at = self._clock() + EXPIRY_EVERY_S  # before relief: what expired is erased, not just released
        with self._slots.evicting():
            self._relief.run(AT_ONCE)
            self.resident.relieve_pressure(min(self._lacking - self._slots.free_count, AT_ONCE))
        self._lacking = 0
        self._clear()

    def _clear(self) -> None:
        if self._clearing or not self._slots.uncleared or self._clock() < self._clear_again_at:
            return
        chosen, medium = self._slots.begin_clearing(AT_ONCE), self.medium
        self._clearing = True

        def work() -> MediumFailed | None:
            try:
                medium.release(chosen.release)
                medium.erase(chosen.erase)
            except MediumFailed as error:
                return error
            return None

        self._workers.submit("write", work, lambda failure: self._cleared(chosen, failure))

    def _cleared(self, chosen: Clearing, failure: MediumFailed | None) -> None:
        self._clearing = False
        slots = [*chosen.release, *chosen.erase]
        if failure is None:
            self._slots.cleared(slots)
            return
        self._not_cleared += len(slots)
        self._slots.not_erased(slots)
        self.broke(failure)
        self._clear_again_at = self.health.until

    # -- blocks --------------------------------------------------------------------------------------------------------

    def find(self, chain: Chain, stop: int) -> tuple[int, int]:
        """``(blocks, tail)`` of the longest proven prefix of ``chain`` of at most ``stop`` blocks."""
        return self.resident.longest(chain, stop)

    def held(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """``(blocks, tail)`` of the listed prefix of a chain's ``keys``: of those of a READY chain above."""
        count = self.index.listed_prefix(keys, len(keys))
        tail = self.index.find(keys[count - 1]) if count else None
        return (count, tail) if tail is not None else (0, NO_BLOCK)

    def admit(self, parent: Lease, facts: Sequence[Facts], slots: Sequence[int], computed_at: float) -> int:
        """Make blocks READY that follow the block under ``parent`` and were written to ``slots``; how many are now.

        ``computed_at``: when the oldest of them was computed, by this tier's clock. The lease moves to the last of
        them. Slots of blocks that did not become READY are given back.
        """
        if not facts:
            self.give_back(slots)
            return 0
        admitted = self.resident.admit(parent.tail, batch_of(facts, slots[: len(facts)], computed_at))
        parent.move(admitted.tail)
        first, stop = admitted.duplicates, admitted.duplicates + admitted.stored
        self.give_back([*slots[:first], *slots[stop:]])
        self.written += admitted.stored
        return stop

    def drop(self, cause: RemovalCause, subject: Subject) -> Dropped:
        """Make what ``subject`` means unreadable now, and have its bytes erased; see `BlockStore.drop`.

        Bytes that are being read are erased when their readers have gone.
        """
        self._erasures += cause is RemovalCause.ERASE
        erasure = self._erasures if cause is RemovalCause.ERASE else 0
        return self.resident.drop(*subject.ids_in(self.index), cause, erasure)

    def touch(self, tail: int) -> None:
        """The chain that ends at READY block ``tail`` was used, here or above."""
        self.resident.used(tail)

    def set_room(self, namespace: str, room: NamespaceRoom) -> None:
        """How much ``namespace`` may fill, is promised, and for how long. Raises KeyError for an unknown policy."""
        self.resident.set_room(namespace, room)

    def rooms(self) -> Mapping[str, NamespaceRoom]:
        """Those that were set, by namespace UID."""
        return self.resident.rooms.all()

    # -- trouble -------------------------------------------------------------------------------------------------------

    @property
    def may_write(self) -> bool:
        return self.health.may_write(self._clock())

    def broke(self, error: MediumFull | MediumFailed) -> None:
        """Leave the medium alone for a while."""
        event = HealthEvent.FULL if isinstance(error, MediumFull) else HealthEvent.FAILED
        self.health = step(self.health, event, error.code, self._clock())

    def worked(self) -> None:
        """Something was written: the tier is well."""
        self.health = step(self.health, HealthEvent.WORKED, "", self._clock())

    def unreadable(self, block: int, error: KvgroveError) -> None:
        """Reading ``block``, which is under a lease, ended in ``error``: what cannot be read is not offered again."""
        if isinstance(error, MediumFailed):
            self.broke(error)
        elif isinstance(error, MediumCorrupt):
            self.corrupt += 1
        else:
            return  # not now, and the slot is as it was
        self.resident.retire(block, RemovalCause.UNREADABLE)

    # -- looking -------------------------------------------------------------------------------------------------------

    def usage(self) -> dict[str, Usage]:
        """By namespace UID; only those that hold anything."""
        held = self.index.per_namespace
        return {namespace: Usage(blocks, blocks * self.block_bytes) for namespace, blocks in held.items()}

    def stats(self) -> TierStats:
        index, slots = self.index, self._slots
        return TierStats(
            tier=self.name,
            slots=slots.num_slots,
            free=slots.empty_count,
            ready=len(index),
            retiring=index.held - len(index),
            private=slots.used_count - slots.uncleared - index.held,
            clearing=slots.uncleared,
            block_bytes=self.block_bytes,
            suspended=self.health.reason,
            loaded=self.loaded,
            written=self.written,
            corrupt=self.corrupt,
            not_cleared=self._not_cleared,
        )
