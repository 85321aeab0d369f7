"""Blocks that one node says it is computing, for whomever, noted in the index until it says that they are not.

Role: a cold prefix that another gateway's request is building already is found by this gateway's. Beside it `builds`
notes what this gateway sent and the node has not told yet; both count copies, so neither takes the other's note away.
Invariants: at most `MAX_BUILDS` builds of `MAX_BUILD_KEYS` blocks; more is left out and counted (I11); every note runs
out by itself, after what the node said and at most `LONGEST_S`. Must not know: links, requests. Pure: time is given.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kvgrove_gateway.router.index import BUILDING, BlockIndex
from kvgrove_protocol.events import MAX_BUILD_KEYS, MAX_BUILDS, Build
from kvgrove_protocol.identity import DIGEST_BYTES

LONGEST_S: Final = 120.0


class _Note(NamedTuple):
    keys: bytes
    until: float


class HeardBuilds:
    """Of one node, in one slot of the index at a time."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._notes: dict[int, _Note] = {}
        self.heard = 0
        """Builds noted so far."""
        self.left_out = 0
        """Builds that were not noted, for want of room."""

    def __len__(self) -> int:
        """Builds noted now."""
        return len(self._notes)

    def begin(self, slot: int, builds: Iterable[Build], now: float) -> None:
        """Note them. One that is noted already (a replay, a snapshot) stays as it is."""
        for build in builds:
            if build.number in self._notes:
                continue
            if len(self._notes) >= MAX_BUILDS:
                self.left_out += 1
                continue
            keys = build.keys[: MAX_BUILD_KEYS * DIGEST_BYTES]
            self._index.store(slot, keys, BUILDING, counted=True)
            self._notes[build.number] = _Note(keys, now + min(LONGEST_S, build.seconds))
            self.heard += 1

    def end(self, slot: int, numbers: Iterable[int]) -> None:
        """They are over. Unknown numbers are no matter."""
        for number in numbers:
            note = self._notes.pop(number, None)
            if note is not None:
                self._index.remove(slot, note.keys, BUILDING)

    def expire(self, slot: int, now: float) -> None:
        """Take out what has run out."""
        self.end(slot, [number for number, note in self._notes.items() if note.until <= now])

    def forget(self) -> None:
        """The slot was closed, and took what is noted in it along."""
        self._notes.clear()
