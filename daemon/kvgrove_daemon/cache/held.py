"""Blocks of one pool from when they are there to when they are gone.

Role: keep index, slots, leases, ages, branches and eviction policy in step while blocks are read and leave. Invariants:
only READY, childless, unleased blocks are evicted (I5, I6); pressure leaves each namespace its floor; what is dropped
is unreadable at once, and its slot comes back with its last reader; residency events leave in the order of the changes.
Must not know: requests, fences, keys' origin, how blocks get in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from kvgrove_daemon.cache.ages import Ages, Clock
from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.branches import Branches
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import Group
from kvgrove_daemon.cache.eviction import EvictionPolicy
from kvgrove_daemon.cache.eviction.by_namespace import PolicyByNamespace
from kvgrove_daemon.cache.eviction.policy import Wanted
from kvgrove_daemon.cache.history import REMEMBERED, Ghosts, RemovalCause
from kvgrove_daemon.cache.index import BlockIndex, Ints
from kvgrove_daemon.cache.leases import NO_BLOCK, LeaseTable
from kvgrove_daemon.cache.outcomes import Dropped
from kvgrove_daemon.cache.quarantine import Quarantine
from kvgrove_daemon.cache.rooms import NamespaceRoom, Rooms
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.sinks import ResidencySink, timeless


class HeldBlocks:
    """Mutable, single-threaded. Blocks get in by `ResidentBlocks`."""

    def __init__(
        self,
        pool: RunAllocator,
        block_size: int,
        policy: EvictionPolicy,
        sink: ResidencySink,
        ghosts: Ghosts,
        *,
        clock: Clock = timeless,
    ) -> None:
        """``policy`` serves namespaces that choose none. ``clock``: seconds, for times to live."""
        self.pool = pool
        self.index = BlockIndex(pool.num_slots, block_size)
        self.leases = LeaseTable(self._idle)
        self.quarantine = Quarantine(pool)
        self.policy = PolicyByNamespace(pool.num_slots, policy, self.index.group)
        self.ages = Ages(pool.num_slots, clock)
        self.branches = Branches(self.index, self.ages)
        self.rooms = Rooms(pool.num_slots, self.index.per_namespace, self.index.per_group)
        self.ghosts = ghosts
        self.collisions = 0
        self.no_room = 0
        self.evicted_for_requests = 0
        """Blocks evicted while a request waited for their room."""
        self.removed: Counter[RemovalCause] = Counter()
        self._late: dict[int, frozenset[int]] = {}  # retired block that is still read -> erasures that mean it
        self._sink = sink

    @property
    def ceilings(self) -> Mapping[str, int]:
        """Namespace -> most blocks it may hold, where that is less than the pool."""
        return {name: room.ceiling for name, room in self.rooms.all().items() if room.ceiling is not None}

    def set_room(self, namespace: str, room: NamespaceRoom) -> None:
        """From now on; what is over it gives way by relief. Raises KeyError for an unknown policy."""
        if room.policy != self.rooms.of(namespace).policy:
            held = self.index.ids_of(namespace)
            self.policy.choose(namespace, room.policy, self._is_evictable, held)
        self.rooms.set(namespace, room)

    # -- reading -------------------------------------------------------------------------------------------------------

    def longest(self, chain: Chain, stop: int) -> tuple[int, int]:
        """``(blocks, tail)`` of the longest proven prefix of at most ``stop`` blocks. Changes nothing but a counter."""
        count = self.index.listed_prefix(chain.keys, stop)
        if not count:
            return 0, NO_BLOCK
        tail = self.index.find(chain.keys[count - 1])
        if tail is not None and self.index.proves(tail, count, chain.root, chain.tokens, chain.folds):
            return self._fresh(chain, count, tail)
        # Equal keys for unequal content. It takes a broken hash, so the slow walk may be slow.
        self.collisions += 1
        return self._fresh(chain, *self._walk(chain, count))

    def _fresh(self, chain: Chain, count: int, tail: int) -> tuple[int, int]:
        """The part before the first block that has outlived its time: relief takes the rest."""
        room = self.rooms.of(chain.namespace)
        fresh = self.ages.fresh(self.index.parts(tail), room) if room.ttl_s is not None else None
        if fresh is None:
            return count, tail
        return (fresh, int(self.index.chain_ids(tail)[fresh - 1])) if fresh else (0, NO_BLOCK)

    def used(self, tail: int) -> None:
        """A request reuses the chain that ends at ``tail``."""
        if tail != NO_BLOCK:
            chain = self.index.parts(tail)
            self.policy.touch(tail, chain)
            self.ages.touch(chain)

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
        return self.evictable_for(None)

    def evictable_for(self, namespace: str | None) -> int:
        """The same for a request of ``namespace``: others' blocks only down to their floors."""
        floors = self.rooms.floors and namespace is not None
        if not floors and not len(self.leases):
            return len(self.index)
        protected = np.zeros(self.index.capacity, dtype=np.bool_)
        for tail in self.leases:
            for low, high in self.index.stretches(tail):
                protected[low:high] = True
        if not floors:
            return len(self.index) - self.index.count_ready(protected)
        free = self.index.ready_by_namespace(~protected)
        return sum(
            count if name == namespace else min(count, self.rooms.above_floor(name)) for name, count in free.items()
        )

    # -- getting out ---------------------------------------------------------------------------------------------------

    def evict(self, count: int, cause: RemovalCause, namespace: str | None = None, tenant: bytes | None = None) -> int:
        """Free up to ``count`` blocks of one namespace, of one tenant of it, or of all, leaves first; how many."""
        wanted = self.rooms.groups_of(namespace, tenant) if namespace is not None else None
        return self._evict(count, cause, wanted)

    def relieve_pressure(self, count: int, namespace: str | None = None) -> int:
        """Free up to ``count`` blocks of whoever is above their floor, then of ``namespace`` itself; how many."""
        if not self.rooms.floors:
            return self._evict(count, RemovalCause.PRESSURE, None)
        evicted = self._evict(count, RemovalCause.PRESSURE, self.rooms.may_be_taken)
        if namespace is not None and evicted < count:
            evicted += self.evict(count - evicted, RemovalCause.PRESSURE, namespace)
        return evicted

    def _evict(self, count: int, cause: RemovalCause, wanted: Wanted | None) -> int:
        keys: list[bytes] = []
        groups: list[Group] = []
        slots: list[int] = []
        if count > 0:
            for block in self.policy.victims(self._is_evictable, wanted):
                groups.append(self.index.group(block))
                keys.append(self.index.unlist(block))
                self._remove(block, slots, keys[-1])
                if len(keys) == count:
                    break
        self._gone(keys, slots, cause, groups)
        return len(keys)

    def expire(self, limit: int) -> int:
        """Retire up to ``limit`` blocks that have outlived their time, with all below them; how many. O(capacity)."""
        rooms = {known: self.rooms.of(labels[0]) for known, _, labels in self.index.roots.items()}
        if all(room.ttl_s is None for room in rooms.values()):
            return 0
        expired = self.index.below(self.ages.expired(self.index.root_column, rooms))
        blocks = expired[:limit].tolist()
        groups = self._groups(blocks, RemovalCause.TTL)
        keys, slots = self._retire(blocks)  # deepest first: what is left is rooted
        self._gone(keys, slots, RemovalCause.TTL, groups)
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
        blocks = self.index.subtree_ids(roots, folds, tags).tolist()
        groups = self._groups(blocks, cause)
        keys, slots = self._retire(blocks)
        held = len(keys) - len(slots)
        if not erasure:
            self._gone(keys, slots, cause, groups)
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
        blocks = self.index.branch_ids(block).tolist()
        groups = self._groups(blocks, cause)
        keys, slots = self._retire(blocks)
        self._gone(keys, slots, cause, groups)
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
            self.policy.offer(block, self.index.group(block))

    def _remove(self, block: int, slots: list[int], evicted: bytes | None = None) -> int:
        """Take an EVICTING block out; its slot goes onto ``slots``. Answers its parent.

        ``evicted``: its key, when it gave way to others.
        """
        group = self.index.group(block)
        slots.append(self.index.slot[block])
        self.branches.removing(block)
        parent = self.index.remove(block)
        self.policy.removed(block, parent, group, evicted)
        if parent != NO_BLOCK and self._is_evictable(parent):
            self.policy.offer(parent, self.index.group(parent))
        return parent

    def _groups(self, blocks: Sequence[int], cause: RemovalCause) -> list[Group]:
        """Whose each of ``blocks`` is, where that is remembered of what goes for ``cause``."""
        return [self.index.group(block) for block in blocks] if cause in REMEMBERED else []

    def _gone(self, keys: Sequence[bytes], slots: Sequence[int], cause: RemovalCause, groups: Sequence[Group]) -> None:
        """``groups``: whose each of ``keys`` was."""
        self.free(slots)
        self.ghosts.record(keys, cause, groups)
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
