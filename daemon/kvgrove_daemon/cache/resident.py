"""What lies in the pool, how it gets in, and how it leaves.

Role: keep index, slots, leases and eviction policy in step; every change of residency happens here. Invariants: each
slot is free, resident, or private to one build; only READY, childless, unleased blocks are evicted (I5, I6); a request
for room is answered at once (MEM-02); residency events leave in the order of the changes.
Must not know: requests, fences, keys' origin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from kvgrove_daemon.cache.ages import Ages, Clock
from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.branches import Branches
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.contributors import Group, owner
from kvgrove_daemon.cache.eviction import EvictionPolicy
from kvgrove_daemon.cache.eviction.by_namespace import PolicyByNamespace
from kvgrove_daemon.cache.eviction.policy import Wanted
from kvgrove_daemon.cache.history import Ghosts, RemovalCause
from kvgrove_daemon.cache.incoming import NewBlocks
from kvgrove_daemon.cache.index import BlockIndex, Ints
from kvgrove_daemon.cache.leases import NO_BLOCK, LeaseTable
from kvgrove_daemon.cache.outcomes import Admitted, Dropped, NoRoom
from kvgrove_daemon.cache.quarantine import Quarantine
from kvgrove_daemon.cache.rooms import UNLIMITED, NamespaceRoom, Rooms
from kvgrove_daemon.cache.runs import Run, RunAllocator
from kvgrove_protocol.reasons import BypassReason

__all__ = ["Admitted", "Dropped", "NoRoom", "ResidencySink", "ResidentBlocks", "SilentSink", "timeless"]


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


def timeless() -> float:
    """The clock of a pool in which nothing expires."""
    return 0.0


class ResidentBlocks:
    """The resident blocks of one pool. Mutable, single-threaded."""

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

    # -- getting in ----------------------------------------------------------------------------------------------------

    def allocate(
        self, count: int, *, spare: int = 0, after: int | None = None, namespace: str | None = None
    ) -> list[int] | NoRoom:
        """``count`` slots, directly behind slot ``after`` if possible. Evicts what is missing, or changes nothing.

        ``namespace``: who asks. Others give way down to their floors, then it gives up its own. None: nobody has one.
        """
        if count == 0:
            return []
        if after is not None and (run := self.pool.extend(Run(after, 1), count)) is not None:
            self.quarantine.written([run])
            return list(run.slots())
        missing = count - self.pool.free_count
        if missing > 0:
            evictable = self.evictable_for(namespace)
            if missing > evictable:
                self.no_room += 1
                return NoRoom(count, self.pool.free_count, evictable)
            self.evicted_for_requests += self.relieve_pressure(missing, namespace)
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
        self._renew(tail, at, new)
        if at == len(new):
            return Admitted(tail, at, 0)
        if not index.none_listed(new.keys[at:]):
            self.collisions += 1
            return Admitted(tail, at, 0, BypassReason.COLD)
        count = self._within_room(new.part(at, len(new)), tail)
        refused = BypassReason.QUOTA if count < len(new) - at else None
        if count:
            stored = new.part(at, at + count)
            tail = index.insert(tail, stored)
            ids = index.last_ids(tail, count)
            self.ages.computed(ids, new.computed_at)
            self.branches.added(int(ids[0]))
            self.policy.admitted(ids.tolist(), stored.keys)
            self.ghosts.discard(stored.keys)
            self._sink.on_stored(stored.keys)
        return Admitted(tail, at, count, refused)

    def _renew(self, tail: int, duplicates: int, new: NewBlocks) -> None:
        """What was there already was computed again: its time begins anew, and it may hold text of these contributors.

        Along a chain tags only shrink, so what comes from another tier is noted on its ancestors too.
        """
        if tail == NO_BLOCK:
            return
        if duplicates:
            ids = self.index.last_ids(tail, duplicates)
            self.ages.computed(ids, new.computed_at)
            for first, stop, tag in new.tag_runs():
                if first < duplicates:
                    last = int(ids[min(stop, duplicates) - 1])
                    self.index.contribute(last, self.index.depth[int(ids[first])], tag)
        self.index.contribute_above(tail, new.tag_at(duplicates))

    def _within_room(self, new: NewBlocks, tail: int) -> int:
        """How many of ``new`` may be added: over its ceiling, share or branches, it is its own oldest that give way."""
        room = self.rooms.of(new.namespace)
        if room is UNLIMITED:
            return len(new)
        with self.leases.take(tail):  # what they are to follow must not give way to them
            if not self._may_branch(new, tail, room.max_branches):
                return 0
            over = self.rooms.over_ceiling(new.namespace, len(new))
            count = len(new) - max(0, over - self._make_way(over, self.rooms.groups_of(new.namespace)))
            group = Group(new.namespace, owner(new.tag_at(len(new) - 1)).tenant)
            private = sum(min(stop, count) - first for first, stop, tag in new.tag_runs() if tag and first < count)
            over = self.rooms.over_share(group, private)
            return max(0, count - max(0, over - self._make_way(over, self.rooms.groups_of(*group))))

    def _make_way(self, over: int, wanted: Wanted) -> int:
        evicted = self._evict(over, RemovalCause.QUOTA, wanted)
        self.evicted_for_requests += evicted
        return evicted

    def _may_branch(self, new: NewBlocks, tail: int, most: int | None) -> bool:
        """Whether ``new`` may follow ``tail``, after its contributor's coldest branches there have given way."""
        tag = new.tag_at(0)
        if most is None or not tag:
            return True
        siblings = self.branches.built_by(tail, tag)
        while len(siblings) >= most:
            coldest = self.branches.coldest(siblings, tag)
            if coldest is None:  # all of them are others' too
                return False
            self.retire(coldest, RemovalCause.BRANCHES)
            siblings.remove(coldest)
        return True

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
        slots: list[int] = []
        if count > 0:
            for block in self.policy.victims(self._is_evictable, wanted):
                keys.append(self.index.unlist(block))
                self._remove(block, slots, keys[-1])
                if len(keys) == count:
                    break
        self._gone(keys, slots, cause)
        return len(keys)

    def expire(self, limit: int) -> int:
        """Retire up to ``limit`` blocks that have outlived their time, with all below them; how many. O(capacity)."""
        rooms = {known: self.rooms.of(labels[0]) for known, _, labels in self.index.roots.items()}
        if all(room.ttl_s is None for room in rooms.values()):
            return 0
        expired = self.index.below(self.ages.expired(self.index.root_column, rooms))
        keys, slots = self._retire(expired[:limit].tolist())  # deepest first: what is left is rooted
        self._gone(keys, slots, RemovalCause.TTL)
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
