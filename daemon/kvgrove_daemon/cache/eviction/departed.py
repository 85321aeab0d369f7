"""A short memory of blocks that gave way: which, and when they were last used.

Role: let a policy know a block again. Invariants: of fixed size, O(1), and only of the last ``capacity`` departures
(I11); a hint only, nothing is proven by it. Keys are SHA-256, so their first bytes serve as the hash: the same in every
process. Must not know: blocks, policies.
"""

from __future__ import annotations

from array import array


class Departed:
    """The last ``capacity`` departures, less the few whose place was taken by a later one. 24 bytes for each place."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        size = 1 << max(capacity - 1, 1).bit_length()
        self._mask = size - 1
        self._tags = array("Q", bytes(8 * size))
        self._values = array("q", bytes(8 * size))
        self._serials = array("q", bytes(8 * size))
        self._serial = 0

    def note(self, key: bytes, value: int) -> None:
        """Remember a positive ``value`` for ``key``."""
        tag = int.from_bytes(key[:8], "little")
        at = tag & self._mask
        self._serial += 1
        self._tags[at], self._values[at], self._serials[at] = tag, value, self._serial

    def take(self, key: bytes) -> int:
        """The value of ``key``, which is forgotten; 0 where nothing is known."""
        tag = int.from_bytes(key[:8], "little")
        at = tag & self._mask
        if self._tags[at] != tag or self._serials[at] <= self._serial - self._capacity:
            return 0
        value = self._values[at]
        self._values[at] = 0
        return value

    def clear(self) -> None:
        """Forget all: their places are overwritten."""
        for column in (self._tags, self._values, self._serials):
            column[:] = array(column.typecode, bytes(8 * len(column)))
        self._serial = 0
