"""Copies blocks from one tier to the next slower one, behind the requests' backs.

Role: decide what is copied when, read it in a worker thread and list it below. Invariants:

- Parents first: a batch continues the chain where the lower tier's own listing ends, and is stored whole or not at all.
  A batch that failed leaves its children without a parent, so they are not stored either (CON-10).
- What is being read is under a lease until the worker has acknowledged (CON-01), and so is the block below that it is
  to follow.
- It is listed only if, at that moment, the block above is still READY (not dropped meanwhile) and the namespace's
  fence and lease hold (`Fresh`); otherwise its bytes are erased and nobody ever finds them.
- At most ``limit_bytes``, and a quarter of the tier above, are on their way and `MAX_WANTED` chains wait; what goes
  beyond is counted and dropped (I11). A medium that is full or fails suspends the tier's writing, under a named
  reason; no request ever waits here (I7).

Must not know: requests, media, plans.

What is copied, and when. *At once*: what was reused or is declared to be shared, since it has shown that it will be
asked for again. *When the tier above is short of room* (a quarter free or less): everything else, oldest first, while
there are bytes to spare. So a node whose pool is large enough writes hardly anything, and one under pressure writes
each block once, before eviction gets to it. Blocks that were never reused are worth that: in conversations the first
reuse of a turn's blocks is the next turn, and that comes after the pool has moved on. Who evicts goes by its own order,
so a block may be gone before its turn: `WriteStats.missed` counts those. *When the process is to end*
(`hand_over`): everything, so that whoever comes after it begins warm.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, overload

from kvgrove_daemon.cache.blocks import BlockState
from kvgrove_daemon.cache.index import BlockIndex, Ints
from kvgrove_daemon.cache.leases import Lease
from kvgrove_daemon.cache.resident import ResidentBlocks
from kvgrove_daemon.cache.tiers.facts import facts_of
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Entry, Facts, MediumFailed, MediumFull
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_protocol.errors import KvgroveError

LIMIT_BYTES: Final = 64 << 20
BATCH_BYTES: Final = 8 << 20
MAX_WANTED: Final = 1024
_SHORT: Final = 4  # one part in so many free, or less
_PINNED: Final = 4  # one part in so many of the tier above is under leases of batches, at most

Fresh = Callable[[str, bytes], bool]
"""Whether blocks of this namespace (UID) under this root may be listed at this moment."""


class Above(Protocol):
    """The tier that blocks are copied from."""

    @property
    def resident(self) -> ResidentBlocks: ...

    def read(self, slot: int, facts: Facts) -> bytes | memoryview:
        """The bytes of a READY block that is under a lease. Called by workers. May raise a Medium's errors."""


@dataclass(frozen=True, slots=True)
class WriteStats:
    """A copy of gauges and counters. Counters only grow."""

    tier: str
    bytes_in_flight: int
    waiting: int
    """Chains that are to be copied and wait for their turn."""
    dropped: Mapping[str, int]
    """Blocks that were not copied although they should have been, by reason."""
    missed: int
    """Blocks that went from above, for whatever cause, before they were copied."""


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    blocks: Sequence[int]
    """Ids above, each the parent of the next."""
    facts: Sequence[Facts]
    slots: Sequence[int]
    """Below, private to this batch."""
    source: Lease
    parent: Lease
    wanted: bytes
    """Key of the chain's end that was asked for."""


class WriteBack:
    """From ``above`` to ``below``. Belongs to the core thread."""

    def __init__(
        self, above: Above, below: LowerTier, workers: Workers, fresh: Fresh, *, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._above = above
        self._below = below
        self._workers = workers
        self._fresh = fresh
        pinned = above.resident.pool.num_slots // _PINNED * below.body_bytes
        self._limit = max(min(limit_bytes, pinned), below.body_bytes)
        self._wanted: OrderedDict[bytes, None] = OrderedDict()
        """Keys of the ends of chains to copy at once."""
        self._uncopied: OrderedDict[bytes, None] = OrderedDict()
        """READY above and not below, in the order in which they were stored."""
        self._under_way: set[bytes] = set()
        self._in_flight = 0
        self._dropped: Counter[str] = Counter()
        self._missed = 0
        self._handing_over = False

    # -- what happens around it ----------------------------------------------------------------------------------------

    def stored_above(self, keys: Sequence[bytes]) -> None:
        """READY above from now on."""
        self._uncopied.update((key, None) for key in keys if key not in self._below.index)

    def removed_above(self, keys: Sequence[bytes]) -> None:
        """Gone from above."""
        self._missed += sum(self._uncopied.pop(key, self) is None for key in keys)

    def removed_below(self, keys: Sequence[bytes]) -> None:
        """Gone from below: to be copied again when the tier above is short of room, if they are still there."""
        above = self._above.resident.index
        self._uncopied.update((key, None) for key in keys if key in above)

    def soon(self, tail: int) -> None:
        """Copy the chain that ends at block ``tail`` above, as far as it is not below: it was reused or is declared."""
        key = self._above.resident.index.key(tail)
        if key in self._wanted:
            return
        if len(self._wanted) >= MAX_WANTED:
            self._dropped["overflow"] += 1
            return
        self._wanted[key] = None

    def hand_over(self) -> None:
        """Copy everything from now on, whatever room there is above."""
        self._handing_over = True

    @property
    def left(self) -> int:
        """Blocks above that a tier in working order would still be given."""
        return len(self._uncopied) if self._below.may_write else 0

    @property
    def busy(self) -> bool:
        """Whether blocks above are under a lease of a batch."""
        return self._in_flight > 0

    # -- work ----------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Between steps: start as many batches as there is room for. Costs little where there is nothing to do."""
        if not self._below.may_write:
            return
        for key in list(self._wanted):
            if self._in_flight >= self._limit:
                return
            tail = self._above.resident.index.find(key)
            if tail is None or self._start(tail):
                self._wanted.pop(key, None)
        if self._is_short:
            for tail in self._oldest_uncopied():
                if self._in_flight >= self._limit or not self._start(tail):
                    return

    @property
    def _is_short(self) -> bool:
        pool = self._above.resident.pool
        return bool(self._uncopied) and (self._handing_over or pool.free_count * _SHORT <= pool.num_slots)

    def _oldest_uncopied(self) -> Iterator[int]:
        """Ends of stretches that were stored together and are not under way, oldest first."""
        index = self._above.resident.index
        tail: int | None = None
        length = 0
        for key in [key for key in self._uncopied if key not in self._under_way][: 8 * self._batch_blocks]:
            block = index.find(key)
            if block is None:
                continue
            if tail is not None and (index.parent[block] != tail or length == self._batch_blocks):
                yield tail
                length = 0
            tail, length = block, length + 1
        if tail is not None:
            yield tail

    @property
    def _batch_blocks(self) -> int:
        return max(1, BATCH_BYTES // self._below.body_bytes)

    def _start(self, tail: int) -> bool:
        """Copy the next blocks of the chain that ends at ``tail``; False where that must be tried again later."""
        above, below = self._above.resident, self._below
        index = above.index
        ids = index.chain_ids(tail)
        keys = _Keys(index, ids)
        held, parent = below.held(keys)
        if held == len(ids):
            below.touch(parent)
            return True
        if keys[held] in self._under_way:
            return False  # its parent's batch has to end first
        namespace, root = index.namespace(tail), index.roots.value(index.root[tail])
        if not self._fresh(namespace, root):
            self._drop("not_fresh", keys[held:])
            return True
        room = (self._limit - self._in_flight) // below.body_bytes
        if room <= 0:
            return False
        slots = below.take(min(len(ids) - held, self._batch_blocks, room))
        if not slots:
            below.relieve()
            return False
        chosen = ids[held : held + len(slots)].tolist()
        batch = _Batch(
            blocks=chosen,
            facts=[facts_of(index, block) for block in chosen],
            slots=slots,
            source=above.leases.take(chosen[-1]),
            parent=below.resident.leases.take(parent),
            wanted=index.key(tail),
        )
        self._submit(batch)
        return True

    def _submit(self, batch: _Batch) -> None:
        read, medium = self._above.read, self._below.medium
        sources = [self._above.resident.index.slot[block] for block in batch.blocks]
        self._in_flight += len(batch.blocks) * self._below.body_bytes
        self._under_way.update(facts.key for facts in batch.facts)

        def work() -> KvgroveError | None:
            try:
                entries: list[Entry] = [
                    (slot, facts, read(source, facts))
                    for slot, facts, source in zip(batch.slots, batch.facts, sources, strict=True)
                ]
                medium.write_many(entries)
            except KvgroveError as error:
                return error
            return None

        self._workers.submit("write", work, lambda error: self._conclude(batch, error))

    def _conclude(self, batch: _Batch, error: KvgroveError | None) -> None:
        keys = [facts.key for facts in batch.facts]
        self._in_flight -= len(batch.blocks) * self._below.body_bytes
        self._under_way.difference_update(keys)
        admitted = 0
        if error is not None:
            if isinstance(error, MediumFull | MediumFailed):
                self._below.broke(error)
            self._drop(error.code, keys)
            self._below.give_back(batch.slots)
        else:
            self._below.worked()
            current = self._current(batch)
            blocks, above = batch.blocks[:current], self._above.resident
            facts = [facts_of(above.index, block) for block in blocks]  # more may have contributed since
            computed_at = min((above.ages.born(block) for block in blocks), default=0.0)
            admitted = self._below.admit(batch.parent, facts, batch.slots, computed_at)
            for key in keys[:admitted]:
                self._uncopied.pop(key, None)
            if admitted < len(keys):
                self._drop("not_fresh" if admitted == current else "quota", keys[admitted:])
        batch.parent.release()
        batch.source.release()
        index = self._above.resident.index
        if admitted == len(keys) and keys[-1] != batch.wanted and (tail := index.find(batch.wanted)) is not None:
            self.soon(tail)  # the rest of a chain that was longer than a batch

    def _current(self, batch: _Batch) -> int:
        """How many leading blocks of ``batch`` may be listed now."""
        state = self._above.resident.index.state
        if not self._fresh(batch.facts[0].namespace, batch.facts[0].root):
            return 0
        return next(
            (at for at, block in enumerate(batch.blocks) if state[block] != BlockState.READY), len(batch.blocks)
        )

    def _drop(self, reason: str, keys: Sequence[bytes]) -> None:
        """Give up on copying these, until they are reused once more."""
        self._dropped[reason] += len(keys)
        for key in keys:
            self._uncopied.pop(key, None)

    def stats(self) -> WriteStats:
        return WriteStats(self._below.name, self._in_flight, len(self._wanted), Counter(self._dropped), self._missed)


class _Keys(Sequence[bytes]):
    """Keys of blocks ``ids``, looked up one by one: a bisection needs few of them."""

    def __init__(self, index: BlockIndex, ids: Ints) -> None:
        self._index = index
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return [self._index.key(block) for block in self._ids[at].tolist()]
        return self._index.key(int(self._ids[at]))
