"""What lies in the pool, how it gets in, and how it leaves.

Role: keep index, slots, leases and eviction policy in step; every change of residency happens here. Invariants: each
slot is free, resident, or private to one build; only READY, childless, unleased blocks are evicted (I5, I6); a request
for room is answered at once (MEM-02); residency events leave in the order of the changes.
Must not know: requests, fences, keys' origin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.eviction import EvictionPolicy
from kvgrove_daemon.cache.history import Ghosts, RemovalCause
from kvgrove_daemon.cache.incoming import NewBlocks
from kvgrove_daemon.cache.index import BlockIndex, Ints
from kvgrove_daemon.cache.leases import NO_BLOCK, LeaseTable
from kvgrove_daemon.cache.quarantine import Quarantine
from kvgrove_daemon.cache.runs import Run, RunAllocator
from kvgrove_protocol.reasons import BypassReason


class ResidencySink(Protocol):
    """Who is told of changes. Called from within the change: it must only note them down."""

    def on_stored(self, keys: Sequence[bytes]) -> None:
        """READY from now on; parents first."""

    def on_removed(self, keys: Sequence[bytes]) -> None:
        """Not READY any more; children first, so that a listener's view is rooted at each moment."""


class SilentSink:
    """For a pool that nobody listens to."""

    def on_stored(self, keys: Sequence[bytes]) -> None:
        del keys

    def on_removed(self, keys: Sequence[bytes]) -> None:
        del keys


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no room now, and waiting inside would not make any: serve cold elsewhere, queue, or try again later."""

    wanted: int
    free: int
    evictable: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """How far `ResidentBlocks.admit` got with blocks ``[0, n)`` of what it was given."""

    tail: int
    """Block id of the last one that is READY now, own or somebody else's."""
    duplicates: int
    """The first so many were READY already; the given slots stay the caller's."""
    stored: int
    """So many after them are READY now in the given slots."""
    refused: BypassReason | None = None
    """Why the rest was not stored."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """One drop: ``blocks`` became unreadable, ``held`` of them keep their slots until their readers have gone.

    An erasure has a number, and ``slots`` names what it freed: with a wiper (`Quarantine.wiper`) they are in quarantine
    until `release`. What ``held`` blocks and ``builds`` under way still use is named to the wiper when they end.
    """

    blocks: int
    held: int
    slots: tuple[int, ...] = ()
    erasure: int = 0
    builds: int = 0
    """Builds under way that hold text of the subject: they store nothing more."""


class ResidentBlocks:
    """The resident blocks of one pool. Mutable, single-threaded."""

    def __init__(
        self, pool: RunAllocator, block_size: int, policy: EvictionPolicy, sink: ResidencySink, ghosts: Ghosts
    ) -> None:
        self.pool = pool
        self.index = BlockIndex(pool.num_slots, block_size)
        self.leases = LeaseTable(self._idle)
        self.quarantine = Quarantine(pool)
        self.policy = policy
        self.ghosts = ghosts
        self.ceilings: dict[str, int] = {}
        """Namespace -> most blocks it may hold."""
        self.collisions = 0
        self.no_room = 0
        self.removed: Counter[RemovalCause] = Counter()
        self._late: dict[int, frozenset[int]] = {}  # retired block that is still read -> erasures that mean it
        self._sink = sink

    # -- reading -------------------------------------------------------------------------------------------------------

    def longest(self, chain: Chain, stop: int) -> tuple[int, int]:
        """``(blocks, tail)`` of the longest proven prefix of at most ``stop`` blocks. Changes nothing but a counter."""
        count = self.index.listed_prefix(chain.keys, stop)
        if not count:
            return 0, NO_BLOCK
        tail = self.index.find(chain.keys[count - 1])
        if tail is not None and self.index.proves(tail, count, chain.root, chain.tokens, chain.folds):
            return count, tail
        # Equal keys for unequal content. It takes a broken hash, so the slow walk may be slow.
        self.collisions += 1
        return self._walk(chain, count)

    def _walk(self, chain: Chain, stop: int) -> tuple[int, int]:
        tail = NO_BLOCK
        for at in range(stop):
            block = self.index.find(chain.keys[at])
            fold = chain.folds.get(at, b"")
            if block is None or not self.index.is_block(block, tail, chain.root, chain.array(at, at + 1), fold):
                return at, tail
            tail = block
        return stop, tail

    def slots(self, tail: int) -> Ints:
        return self.index.slots(tail)

    @property
    def evictable(self) -> int:
        """Blocks that eviction could free right now: READY and not under a lease, themselves or by a descendant."""
        if not len(self.leases):
            return len(self.index)
        protected = np.zeros(self.index.capacity, dtype=np.bool_)
        for tail in self.leases:
            for low, high in self.index.stretches(tail):
                protected[low:high] = True
        return len(self.index) - self.index.count_ready(protected)

    # -- getting in ----------------------------------------------------------------------------------------------------

    def allocate(self, count: int, *, spare: int = 0, after: int | None = None) -> list[int] | NoRoom:
        """``count`` slots, directly behind slot ``after`` if possible. Evicts what is missing, or changes nothing."""
        if count == 0:
            return []
        if after is not None and (run := self.pool.extend(Run(after, 1), count)) is not None:
            self.quarantine.written([run])
            return list(run.slots())
        missing = count - self.pool.free_count
        if missing > 0:
            if missing > self.evictable:
                self.no_room += 1
                return NoRoom(count, self.pool.free_count, self.evictable)
            self.evict(missing, RemovalCause.PRESSURE)
        runs = self.pool.allocate(count, spare=spare)
        if runs is None:
            raise RuntimeError(
                f"{self.pool.free_count} slots are free after room for {count} was made: accounting broke"
            )
        self.quarantine.written(runs)
        return [slot for run in runs for slot in run.slots()]

    def admit(self, parent: int, new: NewBlocks) -> Admitted:
        """Make blocks that follow ``parent`` READY, as far as that is right.

        The parent is under a lease of the caller, who moves it to the answered tail: what is stored here is offered to
        eviction only when that lease ends.
        """
        index = self.index
        if parent != NO_BLOCK and index.state[parent] != BlockState.READY:
            return Admitted(parent, 0, 0, BypassReason.FENCE_MOVED)  # dropped meanwhile
        tail, at = parent, 0
        while at < len(new) and (block := index.find(new.keys[at])) is not None:
            if not index.is_block(block, tail, new.root, new.tokens_of(at), new.fold_of(at)):
                self.collisions += 1
                return Admitted(tail, at, 0, BypassReason.COLD)
            tail, at = block, at + 1
        self._contribute(tail, at, new)
        if at == len(new):
            return Admitted(tail, at, 0)
        if not index.none_listed(new.keys[at:]):
            self.collisions += 1
            return Admitted(tail, at, 0, BypassReason.COLD)
        count = self._within_ceiling(new.namespace, len(new) - at, tail)
        refused = BypassReason.QUOTA if count < len(new) - at else None
        if count:
            stored = new.part(at, at + count)
            tail = index.insert(tail, stored)
            self.policy.admitted(index.last_ids(tail, count).tolist(), stored.keys)
            self.ghosts.discard(stored.keys)
            self._sink.on_stored(stored.keys)
        return Admitted(tail, at, count, refused)

    def _contribute(self, tail: int, duplicates: int, new: NewBlocks) -> None:
        """What was there already may hold text of these contributors too: along a chain tags only shrink."""
        if tail == NO_BLOCK:
            return
        ids = self.index.last_ids(tail, duplicates) if duplicates else ()
        for first, stop, tag in new.tag_runs():
            if first < duplicates:
                low, high = int(ids[first]), int(ids[min(stop, duplicates) - 1])
                self.index.contribute(high, self.index.depth[low], tag)
        self.index.contribute_above(tail, new.tag_at(duplicates))

    def _within_ceiling(self, namespace: str, wanted: int, tail: int) -> int:
        """How many of ``wanted`` blocks may be added: over its ceiling, a namespace gives up its own oldest."""
        ceiling = self.ceilings.get(namespace)
        if ceiling is None:
            return wanted
        over = self.index.per_namespace.get(namespace, 0) + wanted - ceiling
        if over <= 0:
            return wanted
        with self.leases.take(tail):  # what the new blocks are to follow must not give way to them
            return max(0, wanted - over + self.evict(over, RemovalCause.QUOTA, namespace))

    # -- getting out ---------------------------------------------------------------------------------------------------

    def evict(self, count: int, cause: RemovalCause, namespace: str | None = None) -> int:
        """Free up to ``count`` blocks of one namespace or of all, leaves first; answers how many."""
        keys: list[bytes] = []
        slots: list[int] = []
        if count > 0:
            for block in self.policy.victims(self._is_evictable, namespace):
                keys.append(self.index.unlist(block))
                self._remove(block, slots, keys[-1])
                if len(keys) == count:
                    break
        self._gone(keys, slots, cause)
        return len(keys)

    def drop(
        self,
        roots: Sequence[int],
        folds: Sequence[int] | None,
        tags: Sequence[int] | None,
        cause: RemovalCause,
        erasure: int = 0,
    ) -> Dropped:
        """Make all blocks under these roots (with ``folds``, ``tags``: that carry one of these) and below them
        unreadable.

        Slots of blocks that are still read come back when their readers have gone. With ``erasure``, its number, no
        trace of the blocks is left: their tokens and keys are overwritten, their history is forgotten.
        """
        keys, slots = self._retire(self.index.subtree_ids(roots, folds, tags).tolist())
        held = len(keys) - len(slots)
        if not erasure:
            self._gone(keys, slots, cause)
            return Dropped(len(keys), held, tuple(slots))
        late = self.index.subtree_ids(roots, folds, tags, state=BlockState.EVICTING).tolist()
        for block in late:  # also those that were retired before, and are read until now
            self._late[block] = self._late.get(block, frozenset()) | {erasure}
        self.quarantine.owe(erasure, len(late))
        self._count_removed(keys, cause)
        self._forget()
        return Dropped(len(keys), held, self.quarantine.enter(slots), erasure)

    def retire(self, block: int, cause: RemovalCause) -> int:
        """Make ``block`` and all below it unreadable; answers how many. Slots in use come back as after `drop`."""
        keys, slots = self._retire(self.index.branch_ids(block).tolist())
        self._gone(keys, slots, cause)
        return len(keys)

    def _retire(self, blocks: Sequence[int]) -> tuple[list[bytes], list[int]]:
        """Unlist READY blocks, children before parents; their keys, and the slots of those that nobody reads."""
        keys = [self.index.unlist(block) for block in blocks]
        slots: list[int] = []
        for block in blocks:
            if self._is_reapable(block):
                self._remove(block, slots)
        return keys, slots

    def _forget(self) -> None:
        """Keys and tokens of all that is not held any more: what gave way earlier cannot be told apart by subject."""
        self.index.scrub()
        self.ghosts.clear()
        self.policy.forget()

    def free(self, slots: Sequence[int]) -> None:
        """Give back slots that never became resident."""
        if slots:
            self.pool.free(slots)

    def _idle(self, block: int) -> None:
        """The last lease on ``block`` has ended."""
        slots: list[int] = []
        while block != NO_BLOCK and self._is_reapable(block):
            erasures = self._late.pop(block, None)
            at, block = block, self._remove(block, slots)
            if erasures is not None:
                self.index.scrub_row(at)
                self.quarantine.leave(erasures, [slots.pop()])
        self.free(slots)
        if block != NO_BLOCK and self._is_evictable(block):
            self.policy.offer(block, self.index.namespace(block))

    def _remove(self, block: int, slots: list[int], evicted: bytes | None = None) -> int:
        """Take an EVICTING block out; its slot goes onto ``slots``. Answers its parent.

        ``evicted``: its key, when it gave way to others.
        """
        namespace = self.index.namespace(block)
        slots.append(self.index.slot[block])
        parent = self.index.remove(block)
        self.policy.removed(block, parent, namespace, evicted)
        if parent != NO_BLOCK and self._is_evictable(parent):
            self.policy.offer(parent, namespace)
        return parent

    def _gone(self, keys: Sequence[bytes], slots: Sequence[int], cause: RemovalCause) -> None:
        self.free(slots)
        self.ghosts.record(keys, cause)
        self._count_removed(keys, cause)

    def _count_removed(self, keys: Sequence[bytes], cause: RemovalCause) -> None:
        if keys:
            self.removed[cause] += len(keys)
            self._sink.on_removed(keys)

    def _is_evictable(self, block: int) -> bool:
        index = self.index
        return index.state[block] == BlockState.READY and not index.children[block] and block not in self.leases

    def _is_reapable(self, block: int) -> bool:
        index = self.index
        return index.state[block] == BlockState.EVICTING and not index.children[block] and block not in self.leases
