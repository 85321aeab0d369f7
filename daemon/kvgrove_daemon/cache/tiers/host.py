"""Host memory under a device pool, as a tier.

Role: the `Medium` over a `SharedMemoryArena`. Invariants: `read` answers only bytes whose digest was taken when they
were written for the same key (ISO-12); `erase` overwrites and reads back; nothing survives the process, so there is
nothing to adopt. Must not know: indexes, policies, devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kvgrove_daemon.cache.arena import Arena
from kvgrove_daemon.cache.tiers.medium import Entry, Facts, MediumCorrupt, MediumFailed
from kvgrove_protocol.events import HOST


class HostMedium:
    """Blocks in ``arena``, which is this medium's alone."""

    name = HOST

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._digests: dict[int, bytes] = {}  # slot -> digest of key and bytes

    @property
    def num_slots(self) -> int:
        return self._arena.num_slots

    def write_many(self, blocks: Sequence[Entry]) -> None:
        """See `Medium`. Memory that was reserved is there: raises MediumFailed for a body of another size only."""
        for slot, facts, body in blocks:
            if len(body) != self._arena.layout.block_bytes:
                raise MediumFailed(
                    f"host: a block has {self._arena.layout.block_bytes} bytes, not {len(body)}", field="body"
                )
            self._arena.write_block(slot, bytes(body))
            self._digests[slot] = _digest(facts, body)

    def read(self, slot: int, facts: Facts) -> bytes:
        """See `Medium`. Raises MediumCorrupt."""
        body = self._arena.read_block(slot)
        if self._digests.get(slot) != _digest(facts, body):
            self._digests.pop(slot, None)
            raise MediumCorrupt("host: the bytes are not those that were written for this block", field="slot")
        return body

    def release(self, slots: Sequence[int]) -> None:
        """See `Medium`. Overwritten all the same: nothing is sealed here, and no erasure could tell whose it was."""
        for slot in slots:
            self._digests.pop(slot, None)
        self._arena.wipe(slots)

    def erase(self, slots: Sequence[int]) -> int:
        """See `Medium`. Raises MediumFailed where a slot does not read back empty."""
        self.release(slots)
        for slot in slots:
            body = self._arena.read_block(slot)
            if body.count(0) != len(body):
                raise MediumFailed(f"host: slot {slot} is not empty after it was overwritten", field="slots")
        return len(slots)

    def close(self) -> None:
        self._digests.clear()
        self._arena.close()


def _digest(facts: Facts, body: bytes | memoryview) -> bytes:
    state = hashlib.sha256(facts.key)
    state.update(body)
    return state.digest()
