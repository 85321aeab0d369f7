"""The tiers of one pool, fastest first: the engine's own blocks on top, slower media below.

Role: tie them together, so that a block keeps its meaning wherever it lies. Invariants: a drop means every tier at
once; whose text a block may hold is known in each tier that has it, so that an erasure finds all copies (I8); each tier
is rooted in itself, hence so is what they have together. Belongs to the core thread; nothing here waits.
Must not know: requests, plans, sockets, media.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvgrove_daemon.cache.arena import Arena
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.history import RemovalCause
from kvgrove_daemon.cache.interned import NOTHING
from kvgrove_daemon.cache.leases import NO_BLOCK
from kvgrove_daemon.cache.resident import Dropped, ResidentBlocks
from kvgrove_daemon.cache.subjects import Subject
from kvgrove_daemon.cache.tiers.break_even import Probes
from kvgrove_daemon.cache.tiers.lower import LowerTier
from kvgrove_daemon.cache.tiers.medium import Facts
from kvgrove_daemon.cache.tiers.restore import Below, Span, weigh, worth_loading
from kvgrove_daemon.cache.tiers.workers import Workers
from kvgrove_daemon.cache.tiers.write_back import Above, Fresh, WriteBack


@dataclass(frozen=True, slots=True)
class Lying:
    """What lower tiers hold of one chain beyond the pool's match, in blocks."""

    parts: Sequence[tuple[str, int, int]]
    """Tier and the blocks ``[first, stop)`` that it adds, in order."""
    worth_until: int
    """Blocks below are loaded; computing those behind is quicker."""


class TopTier:
    """The engine's pool, as the tier that others are copied from."""

    def __init__(self, resident: ResidentBlocks, arena: Arena) -> None:
        self.resident = resident
        self._arena = arena

    def read(self, slot: int, facts: Facts) -> bytes:
        """A copy of one READY block."""
        del facts
        return self._arena.read_block(slot)

    def write(self, slot: int, body: bytes) -> None:
        """Fill a slot that is private to a request."""
        self._arena.write_block(slot, body)


class TierSink:
    """What one tier tells the stack: a `ResidencySink` that is tied to it once both exist."""

    def __init__(self) -> None:
        self.stored: list[Callable[[Sequence[bytes]], None]] = []
        self.removed: list[Callable[[Sequence[bytes]], None]] = []

    def on_stored(self, keys: Sequence[bytes]) -> None:
        for listener in self.stored:
            listener(keys)

    def on_removed(self, keys: Sequence[bytes]) -> None:
        for listener in self.removed:
            listener(keys)


class TierStack:
    """See the module. ``sinks``: of each tier, the top one first."""

    def __init__(
        self,
        top: TopTier,
        lower: Sequence[LowerTier],
        sinks: Sequence[TierSink],
        *,
        workers: Workers,
        fresh: Fresh,
    ) -> None:
        self.top = top
        self.lower = lower
        above: list[Above] = [top, *lower]
        self.writes = [WriteBack(*pair, workers, fresh) for pair in zip(above, lower, strict=False)]
        self._probes = Probes()
        self._stored: list[bytes] = []
        if lower:
            sinks[0].stored.append(self._note)
        for number, write in enumerate(self.writes):
            sinks[number].stored.append(write.stored_above)
            sinks[number].removed.append(write.removed_above)
            sinks[number + 1].removed.append(write.removed_below)

    # -- a request's way -----------------------------------------------------------------------------------------------

    def find(self, chain: Chain, matched: int, stop: int, *, prefill_tokens_per_s: float) -> Below | None:
        """What follows the ``matched`` blocks of ``chain`` in lower tiers, below block ``stop``; None: nothing.

        Whoever asks may come to use all that is found: from now on it is theirs too.
        """
        spans: list[Span] = []
        at = matched
        for number, tier in enumerate(self.lower, 1):
            count, tail = tier.find(chain, stop)
            if count:
                tier.touch(tail)
            if count and number < len(self.writes):
                self.writes[number].soon(tail)
            if count > chain.writer.private_from:
                tier.index.contribute(tail, chain.writer.private_from, chain.writer.tag)
            if count > at:
                spans.append((tier, at, count, tail))
                at = count
        if not self.lower:
            return None
        if matched and (tail_above := self.top.resident.index.find(chain.keys[matched - 1])) is not None:
            self.writes[0].soon(tail_above)
        if not spans:
            return None
        return weigh(
            spans,
            matched,
            self.top.write,
            block_tokens=chain.block_size,
            prefill_tokens_per_s=prefill_tokens_per_s,
            probes=self._probes,
        )

    def look(self, chain: Chain, matched: int, stop: int, *, prefill_tokens_per_s: float) -> Lying:
        """What `find` would find now. Takes no lease, is no use of a block, and makes nobody its contributor."""
        spans: list[Span] = []
        at = matched
        for tier in self.lower:
            count, tail = tier.find(chain, stop)
            if count > at:
                spans.append((tier, at, count, tail))
                at = count
        worth = worth_loading(spans, block_tokens=chain.block_size, prefill_tokens_per_s=prefill_tokens_per_s)
        return Lying([(tier.name, begin, end) for tier, begin, end, _ in spans], matched + worth)

    def drop(self, cause: RemovalCause, subject: Subject) -> list[Dropped]:
        """Drop the copies in all lower tiers, in their order; the pool's own blocks are `BlockStore.drop`'s.

        What is being copied at this moment is not listed: its source is dropped before this.
        """
        self._take_note()  # who contributed to what was stored just now
        return [tier.drop(cause, subject) for tier in self.lower]

    # -- between requests ----------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Note what was stored, copy what is worth it, make room ahead of need."""
        self._take_note()
        for write in self.writes:
            write.pump()
        for tier in self.lower:
            tier.relieve()

    def hand_over(self) -> None:
        """The process is to end: let the slowest tier have all that is worth keeping, tier by tier."""
        for write in self.writes:
            write.hand_over()

    @property
    def left(self) -> int:
        """Blocks that `hand_over` has not brought down a tier yet."""
        return sum(write.left for write in self.writes)

    def _note(self, keys: Sequence[bytes]) -> None:
        self._stored += keys

    def _take_note(self) -> None:
        """What has become READY on top: it agrees with its copies, and declared text is copied."""
        stored, self._stored = self._stored, []
        index = self.top.resident.index
        declared = NO_BLOCK
        for key in stored:
            block = index.find(key)
            if block is None:
                continue
            for tier in self.lower:
                if (copy := tier.index.find(key)) is not None:
                    _agree(self.top.resident, block, tier.resident, copy)
            if index.tag[block] == NOTHING:
                if declared not in (NO_BLOCK, index.parent[block]):
                    self.writes[0].soon(declared)
                declared = block
        if declared != NO_BLOCK:
            self.writes[0].soon(declared)


def _agree(one: ResidentBlocks, block: int, other: ResidentBlocks, copy: int) -> None:
    """Let the same block on two tiers be as old as the older of the two, and everybody's who contributed to either."""
    here, there = one.index.tag_of(block), other.index.tag_of(copy)
    if here != there:
        one.index.contribute_above(block, there)
        other.index.contribute_above(copy, here)
    born = other.ages.born(copy)
    if born < one.ages.born(block):
        one.ages.computed(np.array([block], dtype=np.int32), born)
        one.ages.touch([slice(block, block + 1)])
