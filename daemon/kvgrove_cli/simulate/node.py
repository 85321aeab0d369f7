"""A node that is real up to its bytes and its clock.

Role: the node's own `BlockStore`, one queue, and a steady prefill rate. Invariants: prompts are served in the order in
which they were sent, so what one of them finds is settled when it is sent: all those before it will have been served.
What it changes is told in numbered event batches, from the store's own residency sink: what gives way when the prefill
starts, for that is when room is made, and what is stored when it ends.
Must not know: routers, policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvgrove_cli.trace.pool import Pool, Prompt
from kvgrove_protocol.events import Event, EventBatch, NodeLoad, Removed, SnapshotChunk, Stored


@dataclass(frozen=True, slots=True)
class Served:
    """One prompt, as it will have been served."""

    starts_s: float
    ends_s: float
    """When the prompt is computed and the first token is there."""
    hit_tokens: int
    prefilled_tokens: int
    events: list[Event]


class _Notes:
    """A residency sink that keeps what it was told, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_stored(self, keys: Sequence[bytes]) -> None:
        self.events.append(Stored(keys=b"".join(keys)))

    def on_removed(self, keys: Sequence[bytes]) -> None:
        self.events.append(Removed(keys=b"".join(keys)))


class SimulatedNode:
    """One boot after the other; ``name`` stays."""

    def __init__(self, name: str, slots: int, eviction: str, tokens_per_s: float) -> None:
        self.name = name
        self.tokens_per_s = tokens_per_s
        self.boots = 0
        self._slots, self._eviction = slots, eviction
        self._free_at = 0.0
        self._boot_anew()

    @property
    def boot(self) -> str:
        return f"{self.name}-{self.boots}"

    @property
    def cut(self) -> int:
        """Prompts of this boot that were longer than the cache."""
        return self._pool.cut

    @property
    def evictions(self) -> int:
        """Blocks of this boot that gave way to others."""
        return sum(self._pool.store.stats().removed.values())

    def restart(self, now: float) -> None:
        """Nothing is left of what was held; what was under way is lost."""
        self.boots += 1
        self._free_at = now
        self._boot_anew()

    def serve(self, prompt: Prompt, now: float) -> Served:
        """Take ``prompt`` in at the end of the queue."""
        hit = self._pool.serve(prompt)
        events, self._notes.events = self._notes.events, []
        prefilled = prompt.tokens - hit
        starts = max(self._free_at, now)
        self._free_at = starts + prefilled / self.tokens_per_s
        return Served(starts, self._free_at, hit, prefilled, events)

    def batch(self, events: list[Event], now: float) -> EventBatch:
        """The next batch of this boot."""
        self._sent += 1
        queued = int(max(self._free_at - now, 0.0) * self.tokens_per_s)
        load = NodeLoad(
            queued_prefill_tokens=queued,
            running=0,
            prefill_tokens_per_s=self.tokens_per_s,
            decode_steps_per_s=0.0,
            free_blocks=self._pool.store.free_slots,
            blocks=self._slots,
        )
        return EventBatch(boot=self.boot, seq=self._sent, events=events, load=load)

    def snapshot(self) -> SnapshotChunk:
        """All that is resident, as of the last batch."""
        keys = b"".join(self._pool.store.snapshot())
        return SnapshotChunk(boot=self.boot, seq=self._sent, index=0, last=True, keys=keys)

    def _boot_anew(self) -> None:
        self._notes = _Notes()
        self._pool = Pool(self._slots, self._eviction, self._notes)
        self._sent = -1
