"""Blocks that nodes are computing for this gateway's requests, noted in the index until they are resident.

Role: steer whoever asks for a cold prefix to the node that is building it already; there the node's own flight lets one
compute and the others wait. Invariants: a note is a hint that runs out by itself, at the latest after `LONGEST_S`,
whatever became of the request; at most `capacity` blocks are noted, beyond that none are and it is counted (I11).
Must not know: requests, links. Pure: time is given.
"""

import heapq
from typing import Final

from kvgrove_gateway.router.index import BUILDING, BlockIndex
from kvgrove_protocol.identity import DIGEST_BYTES

SLACK: Final = 1.5
"""Times the expected duration: estimates are rough, and the node's event is still to come."""
GRACE_S: Final = 1.0
LONGEST_S: Final = 120.0
NOTED_BLOCKS: Final = 256
"""Of one prompt: what prompts have in common lies at their beginning."""


class Builds:
    """Notes by the time at which they run out."""

    def __init__(self, index: BlockIndex, capacity: int) -> None:
        self._index = index
        self._capacity = capacity
        self._due: list[tuple[float, int, int, bytes]] = []  # a heap of (until, serial, slot, keys)
        self._serial = 0
        self._blocks = 0
        self.overflows = 0
        """Prompts that were not noted, for want of room."""

    def __len__(self) -> int:
        """Blocks noted."""
        return self._blocks

    def begin(self, slot: int, keys: bytes, expected_s: float, now: float) -> None:
        """``slot`` was sent a prompt of which it computes ``keys`` (concatenated), expected to take so long.

        Only the first `NOTED_BLOCKS` are noted.
        """
        keys = keys[: NOTED_BLOCKS * DIGEST_BYTES]
        count = len(keys) // DIGEST_BYTES
        if not count:
            return
        if self._blocks + count > self._capacity:
            self.overflows += 1
            return
        self._index.store(slot, keys, BUILDING, counted=True)
        self._blocks += count
        self._serial += 1
        until = now + min(expected_s * SLACK + GRACE_S, LONGEST_S)
        heapq.heappush(self._due, (until, self._serial, slot, keys))

    def expire(self, now: float) -> None:
        """Take out what has run out."""
        while self._due and self._due[0][0] <= now:
            _, _, slot, keys = heapq.heappop(self._due)
            self._index.remove(slot, keys, BUILDING)
            self._blocks -= len(keys) // DIGEST_BYTES
