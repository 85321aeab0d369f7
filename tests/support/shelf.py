"""A slower tier for tests: it keeps real blocks by key, and loads when the test says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner_rig import RunnerRig

from kvgrove_daemon.cache.store import BlockStore, Chain
from kvgrove_daemon.commands import Restored
from kvgrove_daemon.restorer import Restore
from kvgrove_protocol.events import DISK


@dataclass
class Shelved:
    keys: list[bytes]
    upto: int
    declined: int
    released: int = 0

    def by_tier(self, blocks: int) -> Mapping[str, int]:
        return {DISK: blocks} if blocks else {}

    def release(self) -> None:
        self.released += 1


@dataclass
class Shelf:
    blocks: dict[bytes, bytes] = field(default_factory=dict)
    decline_from: int = 1 << 30
    found: list[Shelved] = field(default_factory=list)
    loading: dict[str, tuple[Shelved, Sequence[int]]] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    def find(self, store: BlockStore, chain: Chain, matched: int, stop: int) -> Restore | None:
        del store
        held = matched
        while held < stop and chain.keys[held] in self.blocks:
            held += 1
        if held == matched:
            return None
        upto = max(matched, min(held, self.decline_from))
        self.found.append(Shelved(chain.keys[matched:upto], upto, held - upto))
        return self.found[-1]

    def start(self, request_id: str, restore: Restore, slots: Sequence[int]) -> None:
        assert isinstance(restore, Shelved)
        self.loading[request_id] = (restore, slots)

    def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)

    def holds(self, store: BlockStore) -> bool:
        del store
        return False

    def fill_from(self, rig: RunnerRig) -> None:
        """Take a copy of all that is resident, and let the pool forget it."""
        index = rig.store._resident.index
        for block in index.ready_ids().tolist():
            self.blocks[index.key(block)] = rig.model.pool.arena.read_block(index.slot[block])
        rig.store.clear()

    def bring(self, rig: RunnerRig, count: int = 1 << 30) -> None:
        """What a worker does: write at most ``count`` blocks of the oldest load, and say so."""
        request_id, (restore, slots) = next(iter(self.loading.items()))
        del self.loading[request_id]
        brought = list(zip(restore.keys, slots, strict=True))[:count]
        for key, slot in brought:
            rig.model.pool.arena.write_block(slot, self.blocks[key])
        rig.runner.on_restored(Restored(request_id, restore.upto - len(restore.keys) + len(brought)))
