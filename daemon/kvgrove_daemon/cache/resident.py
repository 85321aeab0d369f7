"""What lies in the pool, and how it gets in.

Role: slots for those who compute, and their blocks' way to READY; with `HeldBlocks` every change of residency.
Invariants: each slot is free, resident, in quarantine, or private to one build; a request for room is answered at once
(MEM-02); what is over its ceiling, share or branches makes way itself.
Must not know: requests, fences, keys' origin.
"""

from __future__ import annotations

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.contributors import Group, owner
from kvgrove_daemon.cache.eviction.policy import Wanted
from kvgrove_daemon.cache.held import HeldBlocks
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.incoming import NewBlocks
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.outcomes import Admitted, Dropped, NoRoom
from kvgrove_daemon.cache.rooms import UNLIMITED
from kvgrove_daemon.cache.runs import Run
from kvgrove_daemon.cache.sinks import ResidencySink, SilentSink, timeless
from kvgrove_protocol.reasons import BypassReason

__all__ = ["Admitted", "Dropped", "NoRoom", "ResidencySink", "ResidentBlocks", "SilentSink", "timeless"]


class ResidentBlocks(HeldBlocks):
    """The resident blocks of one pool. Mutable, single-threaded."""

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
