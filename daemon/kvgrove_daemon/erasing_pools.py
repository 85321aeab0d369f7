"""A pool with all its tiers, as erasures see it.

Role: one handle for what `PoolWiper`, `TierErasure` and the disk do of one erasure, with counts by place. Invariants:
those of its parts. Belongs to the core thread. Must not know: plans, receipts' outcomes, what is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.adopting import Adoption
from kvgrove_daemon.cache.tiers.disk import DiskMedium
from kvgrove_daemon.cache.tiers.erasing import TierErasure
from kvgrove_daemon.cache.tiers.stack import TierStack
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_daemon.cache.wiping import PoolWiper, residue_in
from kvgrove_daemon.node_pools import NodePool, NodePools
from kvgrove_protocol.errors import KvgroveError
from kvgrove_protocol.receipts import EraseFault, Place

log = logging.getLogger(__name__)


@dataclass
class _Files:
    """All that is on disk of a namespace, adopted or not."""

    namespace: str
    done: bool = False
    failed: bool = False
    erased: int = 0


@dataclass
class PoolErasure:
    """One erasure in one pool."""

    number: int
    place: Place
    builds: int
    _wiper: PoolWiper
    below: list[TierErasure] = field(default_factory=list)
    files: _Files | None = None

    def pending(self) -> Mapping[Place, int]:
        """Slots and readers that are waited for, by place."""
        counts = {self.place: self._wiper.pending(self.number)}
        for tier in self.below:
            counts[Place(tier.place)] = tier.pending
        if self.files is not None and not self.files.done:
            counts[Place.DISK] = counts.get(Place.DISK, 0) + 1
        return counts

    def wiped(self) -> Mapping[Place, int]:
        """What was overwritten and read back, by place; copies and builds that were under way as transfers."""
        counts = {self.place: self._wiper.wiped(self.number), Place.TRANSFERS: self.builds}
        for tier in self.below:
            counts[Place(tier.place)] = tier.blocks
        if self.files is not None:
            counts[Place.DISK] = max(counts.get(Place.DISK, 0), self.files.erased)
        return counts

    @property
    def fault(self) -> EraseFault | None:
        """What refuses to be wiped."""
        if self._wiper.failed(self.number):
            return EraseFault.NOT_EMPTY
        if any(tier.failed for tier in self.below) or (self.files is not None and self.files.failed):
            return EraseFault.TIER_FAILED
        return None


class ErasingPools:
    """The pools of a node, each as the same `ErasingPool` always."""

    def __init__(self, pools: NodePools) -> None:
        self._pools = pools
        self._known: dict[int, ErasingPool] = {}

    def __call__(self) -> list[ErasingPool]:
        return [self._of(pool) for pool in self._pools.all()]

    def _of(self, pool: NodePool) -> ErasingPool:
        known = self._known.get(id(pool))
        if known is None:
            known = self._known[id(pool)] = ErasingPool(
                PoolWiper(pool.store, residue_in(pool.arena), block_bytes=pool.store.block_bytes),
                Place(pool.tier),
                stack=pool.stack,
                disk=pool.disk,
                adoption=pool.adoption,
                workers=self._pools.surface.workers,
            )
        return known


class ErasingPool:
    """See the module. ``place``: where the pool itself lies. ``disk``: the lowest tier's medium, if there is one."""

    def __init__(
        self,
        wiper: PoolWiper,
        place: Place,
        *,
        stack: TierStack | None = None,
        disk: DiskMedium | None = None,
        adoption: Adoption | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._wiper = wiper
        self._place = place
        self._stack = stack
        self._disk = disk
        self._adoption = adoption
        self._workers = workers

    @property
    def idle(self) -> bool:
        return self._wiper.idle

    def turn(self) -> None:
        """Wipe a bounded part of what waits."""
        self._wiper.turn()

    def cut(self, subject: Subject, *, whole: bool) -> PoolErasure:
        """Make what ``subject`` means unreadable in every tier, and have it wiped.

        ``whole``: it is a whole namespace, so that what of it was never adopted goes too.
        """
        uid = subject.namespace
        if self._adoption is not None and uid is not None and self.is_adopting(uid):
            self._adoption.give_up(uid)  # what an earlier boot left may hold the subject, and is adopted no more
        cut = self._wiper.cut(subject)
        erasure = PoolErasure(cut.number, self._place, cut.builds, self._wiper)
        if self._stack is not None and self._workers is not None:
            dropped = self._stack.drop(RemovalCause.ERASE, subject)
            erasure.below = [
                TierErasure(tier, each, self._workers) for tier, each in zip(self._stack.lower, dropped, strict=True)
            ]
        if whole and uid is not None and self._disk is not None:
            erasure.files = _Files(uid)
            self._erase_files(erasure.files)
        return erasure

    def retry(self, erasure: PoolErasure) -> None:
        """Try again what refused to be wiped; lower tiers do so by themselves."""
        self._wiper.retry(erasure.number)
        if erasure.files is not None and erasure.files.failed:
            erasure.files.failed = False
            self._erase_files(erasure.files)

    def forget(self, erasure: PoolErasure) -> None:
        self._wiper.forget(erasure.number)

    @property
    def sealed(self) -> bool:
        """Whether blocks are kept wrapped by a secret."""
        return self._disk is not None

    def is_adopting(self, namespace: str) -> bool:
        """Whether something that an earlier boot left of it may still be adopted."""
        return self._adoption is not None and not self._adoption.is_settled(namespace)

    def rewrap(self, namespace: str, old: bytes, new: bytes, ended: Callable[[bool], None]) -> None:
        """Wrap what survives of ``namespace`` anew; ``ended(whether all of it is)`` is called in the core thread."""
        disk, workers = self._disk, self._workers
        if disk is None or workers is None:
            raise ValueError("nothing is wrapped here")

        def work() -> bool:
            try:
                disk.rewrap(namespace, old, new)
            except KvgroveError as error:
                log.warning("survivors of an erasure are not all wrapped anew: %s", error)
                return False
            return True

        workers.submit("write", work, ended)

    def _erase_files(self, files: _Files) -> None:
        disk, workers = self._disk, self._workers
        if disk is None or workers is None:
            raise ValueError("nothing is on disk here")

        def work() -> int | None:
            try:
                return disk.erase_namespace(files.namespace)
            except KvgroveError as error:
                log.warning("a namespace is not erased from disk yet: %s", error)
                return None

        def conclude(erased: int | None) -> None:
            files.done, files.failed = erased is not None, erased is None
            files.erased += erased or 0

        workers.submit("write", work, conclude)
