"""Blocks that nodes are computing for this gateway's requests, noted until they are resident.

Role: steer whoever asks for a cold prefix to the node that is building it already; there the node's own flight lets one
compute and the others wait. A note lies beside the index, under the first key that the node lacks: a prompt that shares
more than the node holds has this key at the same place, and how much further it goes along is found by bisection. So
sending a prompt costs one entry, not one for each block.
Invariants: a note is a hint that runs out by itself, at the latest after `LONGEST_S`, whatever became of the request,
and that a slot's next holder never inherits (ROU-06); at most `capacity` blocks are noted, beyond that none are and it
is counted (I11). Must not know: requests, links. Pure: time is given.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kvgrove_gateway.router.index import BUILDING, NOTHING, TIER_WEIGHTS, BlockIndex, Match

SLACK: Final = 1.5
"""Times the expected duration: estimates are rough, and the node's event is still to come."""
GRACE_S: Final = 1.0
LONGEST_S: Final = 120.0
NOTED_BLOCKS: Final = 256
"""Of one prompt: what prompts have in common lies at their beginning."""

LOOKED_AT: Final = 64
"""Notes under one key, newest first: a crowd that asks for one prefix must not make each decision dearer (I11)."""


class _Note(NamedTuple):
    slot: int
    birth: int
    """Of the slot, see `BlockIndex.birth`."""
    start: int
    """Place of the first key in its prompt."""
    keys: Sequence[bytes]


class Builds:
    """Notes by their first key, and by the time at which they run out."""

    def __init__(self, index: BlockIndex, capacity: int) -> None:
        self._index = index
        self._capacity = capacity
        self._due: list[tuple[float, int, _Note]] = []  # a heap of (until, serial, note)
        self._notes: dict[bytes, list[_Note]] = {}
        self._starts: Counter[int] = Counter()
        self._serial = 0
        self._blocks = 0
        self.overflows = 0
        """Prompts that were not noted, for want of room."""

    def __len__(self) -> int:
        """Blocks noted."""
        return self._blocks

    def begin(self, slot: int, keys: Sequence[bytes], held: int, expected_s: float, now: float) -> None:
        """``slot`` was sent a prompt of ``keys``, of which it holds the first ``held``; it is expected to take so long.

        Only the first `NOTED_BLOCKS` that it lacks are noted.
        """
        missing = keys[held : held + NOTED_BLOCKS]
        if not missing:
            return
        if self._blocks + len(missing) > self._capacity:
            self.overflows += 1
            return
        note = _Note(slot, self._index.birth(slot), held, missing)
        self._notes.setdefault(missing[0], []).append(note)
        self._starts[held] += 1
        self._blocks += len(missing)
        self._serial += 1
        heapq.heappush(self._due, (now + min(expected_s * SLACK + GRACE_S, LONGEST_S), self._serial, note))

    def expire(self, now: float) -> None:
        """Take out what has run out."""
        while self._due and self._due[0][0] <= now:
            _, _, note = heapq.heappop(self._due)
            notes = self._notes[note.keys[0]]
            notes.remove(note)
            if not notes:
                del self._notes[note.keys[0]]
            self._starts[note.start] -= 1
            if not self._starts[note.start]:
                del self._starts[note.start]
            self._blocks -= len(note.keys)

    def credit(self, matches: dict[str, Match], slots: Mapping[str, int], keys: Sequence[bytes]) -> None:
        """Add to ``matches`` what the nodes in ``slots`` are computing of ``keys`` right behind what they have."""
        ends: dict[int, list[tuple[int, int]]] = {}
        for start in self._starts:
            for note in self._notes.get(keys[start], ())[-LOOKED_AT:] if start < len(keys) else ():
                if note.start == start and note.birth == self._index.birth(note.slot):
                    ends.setdefault(note.slot, []).append((start, start + _common(note.keys, keys, start)))
        if not ends:
            return
        for name, slot in slots.items():
            if slot in ends:
                matches[name] = _longer(matches.get(name, NOTHING), ends[slot])


def _common(noted: Sequence[bytes], keys: Sequence[bytes], start: int) -> int:
    """How many leading keys are equal: keys are chained, so that none is after the first that is not."""
    low, high = 1, min(len(noted), len(keys) - start)
    while low < high:
        middle = (low + high + 1) // 2
        if noted[middle - 1] == keys[start + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _longer(match: Match, ranges: list[tuple[int, int]]) -> Match:
    covered = match.blocks + match.building
    worth = match.worth
    for start, end in sorted(ranges):
        if start <= covered < end:
            worth += TIER_WEIGHTS[BUILDING] * (end - covered)
            covered = end
    return Match(match.blocks, covered - match.blocks, worth)
