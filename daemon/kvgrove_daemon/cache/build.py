"""One request's own blocks: from slots, through computing, to READY or to nothing.

Role: the scope in which a request writes KV. Invariants: it writes only to slots that are private to it (COR-13); a
block becomes READY after its parent, whole, and only while the fence holds (I3, I4, I6); however the build ends, what
is not READY leaves nothing behind: slots go back, the lease ends. Ending twice is a no-op.
Must not know: engines, sockets, what a fence is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np

from kvgrove_daemon.cache.blocks import BlockEvent, BlockState, step
from kvgrove_daemon.cache.chains import KeyFunction, KnownChains
from kvgrove_daemon.cache.incoming import NewBlocks, Tokens
from kvgrove_daemon.cache.match import Match
from kvgrove_daemon.cache.resident import NoRoom, ResidentBlocks
from kvgrove_protocol.chain import TOKEN_BYTES
from kvgrove_protocol.reasons import BypassReason


@dataclass(slots=True)
class BuildCounters:
    """Of all builds of a store; blocks unless said otherwise."""

    stored: int = 0
    duplicates: int = 0
    """Computed here although another request stored them first."""
    bypassed: Counter[BypassReason] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    """Builds by outcome."""


@dataclass(frozen=True, slots=True)
class BuildScope:
    """What builds of one store have in common."""

    resident: ResidentBlocks
    chains: KnownChains
    live: set[Build]
    counters: BuildCounters
    key_function: KeyFunction


class Build:
    """Made by `BlockStore.begin`. A context manager: leaving it by an error fails it, otherwise finishes it."""

    def __init__(
        self,
        scope: BuildScope,
        match: Match,
        own_slots: list[int],
        bypass: BypassReason | None,
        erasures: frozenset[int] = frozenset(),
    ) -> None:
        """Takes over the match's lease, and slots that were allocated for this build.

        ``erasures``: those that mean its chain, which was handed out before them.
        """
        chain, reused = match.chain, match.blocks
        self.chain = chain
        self.reused_blocks = reused
        self.slots = match.slots + own_slots
        """The block table: reused slots, then own ones. Grows by `extend`; nobody else may change it."""
        self.bypass = bypass
        """Why nothing (more) of this build is stored, or None."""
        self.state = step(BlockState.ABSENT, BlockEvent.CLAIM)
        """Of all its blocks that are not READY."""
        self._scope = scope
        self._erasures = frozenset[int]()
        self._lease = match.take_lease()
        self._private = bytearray(reused) + bytearray(b"\1") * len(own_slots)  # by block: is the slot ours?
        self._considered = reused  # blocks below were committed, found stored, or bypassed
        self._keys: list[bytes] = list(chain.keys)
        self._prompt_blocks = len(chain.keys)
        self._suffix = bytearray(chain.tokens[self._prompt_blocks * self._width :])  # from the last partial block on
        scope.live.add(self)
        for erasure in erasures:
            self.erase(erasure)

    # -- while computing -----------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """How many tokens the slots hold."""
        return len(self.slots) * self.chain.block_size

    @property
    def keys(self) -> Sequence[bytes]:
        """Of all full blocks known so far, generated ones included."""
        return self._keys

    def private_slots(self) -> list[int]:
        """Slots that belong to this build alone."""
        return [slot for slot, own in zip(self.slots, self._private, strict=True) if own]

    def extend(self, blocks: int = 1) -> list[int] | NoRoom:
        """Slots for ``blocks`` more blocks, behind the last one if possible; they are in `slots` already."""
        self._require_open()
        after = self.slots[-1] if self.slots and self._private[-1] else None
        taken = self._scope.resident.allocate(blocks, after=after, namespace=self.chain.namespace)
        if isinstance(taken, NoRoom):
            return taken
        self.slots += taken
        self._private += b"\1" * len(taken)
        return taken

    def add_tokens(self, tokens: Iterable[int]) -> None:
        """Append generated tokens: blocks that they fill get keys, and may be committed once their KV is computed.

        Their fold is the one of `marks` for the block where private text begins.
        """
        self._require_open()
        if self.bypass is not None:
            return  # keys would serve nobody
        self._suffix += np.fromiter(tokens, dtype="<u4").tobytes()
        first = len(self._keys)
        start = (first - self._prompt_blocks) * self._width
        count = (len(self._suffix) - start) // self._width
        if count:
            parent = self._keys[-1] if self._keys else self.chain.root
            self._keys += self._scope.key_function(
                parent,
                bytes(self._suffix[start : start + count * self._width]),
                self.chain.folds,
                block_size=self.chain.block_size,
                first_block=first,
            )

    def commit(self, upto_block: int, fence_ok: Callable[[], bool]) -> list[bytes]:
        """Make blocks below ``upto_block`` READY, whose KV must be computed; answers the keys stored by this call.

        ``fence_ok`` is asked once, now. Blocks that another request stored first are not stored again. A build that
        was refused once stores nothing more: later blocks would have no parent. Raises ValueError for missing slots.
        """
        self._require_open()
        if upto_block > len(self.slots):
            raise ValueError(f"block {upto_block - 1} has no slot: {len(self.slots)} are held")
        first = self._considered
        # Without a key only a bypassed block has its place here: it is counted and that is all.
        stop = min(upto_block, len(self._keys)) if self.bypass is None else upto_block
        if stop <= first:
            return []
        if self.bypass is None and not fence_ok():
            self.seal(BypassReason.FENCE_MOVED)
        self._considered = stop
        if self.bypass is not None:
            self._scope.counters.bypassed[self.bypass] += stop - first
            return []
        return self._admit(first, stop)

    def _admit(self, first: int, stop: int) -> list[bytes]:
        chain, counters = self.chain, self._scope.counters
        new = NewBlocks(
            chain.namespace,
            chain.root,
            self._keys[first:stop],
            self._tokens(first, stop),
            self.slots[first:stop],
            self._folds(first, stop),
            chain.writer.tags(first, stop),
        )
        admitted = self._scope.resident.admit(self._lease.tail, new)
        self._lease.move(admitted.tail)
        begin = first + admitted.duplicates
        end = begin + admitted.stored
        self._private[begin:end] = bytes(admitted.stored)
        counters.duplicates += admitted.duplicates
        counters.stored += admitted.stored
        if admitted.refused is not None:
            counters.bypassed[admitted.refused] += stop - end
            self.seal(admitted.refused)
        return self._keys[begin:end]

    def seal(self, reason: BypassReason) -> None:
        """Store nothing more. The computing goes on: a caller still waits for the answer (I7)."""
        if self.bypass is None:
            self.bypass = reason

    def erase(self, erasure: int) -> None:
        """Its text was erased meanwhile: store nothing more, and let its own slots be wiped when it ends."""
        self.seal(BypassReason.FENCE_MOVED)
        self.wipe_after(erasure)

    def wipe_after(self, erasure: int) -> None:
        """Let the slots that are its own when it ends be wiped: what it did not write in them may be erased text of
        whoever had them before."""
        self._erasures |= {erasure}
        self._scope.resident.quarantine.owe(erasure, 1)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The answer is complete."""
        if self.state is BlockState.BUILDING and self.bypass is None and len(self._keys) > self._prompt_blocks:
            generated = self._suffix[: (len(self._keys) - self._prompt_blocks) * self._width]
            prompt = self.chain.tokens[: self._prompt_blocks * self._width]
            self._scope.chains.remember(replace(self.chain, tokens=prompt + generated, keys=self._keys))
        self._end("finished")

    def fail(self) -> None:
        """Computing went wrong; nothing of this request is known to be right from the last commit on."""
        self._end("failed")

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._end("cancelled")

    def __enter__(self) -> Build:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.fail()

    def _end(self, outcome: str) -> None:
        if self.state is not BlockState.BUILDING:
            return
        self.state = step(self.state, BlockEvent.FAIL)
        private = self.private_slots()
        self._private = bytearray(len(self.slots))
        self._suffix.clear()
        if self._erasures:
            self._scope.resident.quarantine.leave(self._erasures, private)
        else:
            self._scope.resident.free(private)
        self._lease.release()
        self._scope.live.discard(self)
        self._scope.counters.ended[outcome] += 1
        self.state = step(self.state, BlockEvent.FREE)

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return self.chain.block_size * TOKEN_BYTES

    def _require_open(self) -> None:
        if self.state is not BlockState.BUILDING:
            raise ValueError("this build has ended: begin another one")

    def _tokens(self, first: int, stop: int) -> Tokens:
        """Of full blocks ``[first, stop)``, which may span prompt and answer."""
        border = self._prompt_blocks
        if stop <= border:
            return self.chain.array(first, stop)
        start = max(first - border, 0) * self._width
        suffix = np.frombuffer(bytes(self._suffix[start : (stop - border) * self._width]), "<u4")
        return suffix if first >= border else np.concatenate([self.chain.array(first, border), suffix])

    def _folds(self, first: int, stop: int) -> Mapping[int, tuple[bytes, tuple[str, ...]]]:
        chain = self.chain
        return {
            block - first: (fold, chain.documents.get(block, ()))
            for block, fold in chain.folds.items()
            if fold and first <= block < stop
        }
