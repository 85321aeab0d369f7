"""Block key -> the nodes that hold it.

One integer per key is a bit set over (slot, tier); a slot is one boot of one node, so what an earlier boot held can
never be taken for the new one's (ROU-06). Residency is rooted (I6): if a node holds block i it holds all before it, so
the longest match is found by bisection, not by a walk. The index only advises: a wrong entry costs a worse choice of
node, never a wrong answer, because nodes compute keys themselves. That is also why 60 bits of a key may stand for it:
they are of a SHA-256, and whoever makes two of them meet gains a worse node for himself (ISO-02).

Bounds: at `capacity` keys, those that were stored or used longest ago give way, a sixteenth of a shard at a time, and
are counted; what they stood for looks absent. Children go before their parents, so a chain is forgotten from its end.
Use is noted by `used` once the index is three quarters full: before that, nobody gives way soon. A slot that ended is
masked at once and its bits are swept out shard by shard, so that no step is long.

Not thread-safe: lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from kvgrove_protocol.events import DEVICE, DISK, HOST
from kvgrove_protocol.identity import DIGEST_BYTES

BUILDING: Final = "building"
"""Beside the tiers of events: blocks that a node is computing, as far as this gateway knows."""
TIER_WEIGHTS: Final[Mapping[str, float]] = {DEVICE: 1.0, HOST: 0.98, DISK: 0.7, BUILDING: 0.98}
"""What a block is worth of the prefill that it saves, nearest tier first. The rest is what fetching it costs, or the
chance that the build comes to nothing."""

_TIERS: Final = tuple(TIER_WEIGHTS)
_POSITION: Final = {tier: position for position, tier in enumerate(_TIERS)}
_WIDTH: Final = len(_TIERS)
_WEIGHTS: Final = tuple(TIER_WEIGHTS.values())
_BUILDING: Final = _POSITION[BUILDING]
_RESIDENT: Final = (1 << _BUILDING) - 1
_ALL_TIERS: Final = (1 << _WIDTH) - 1

_HEAD_MASK: Final = (1 << 60) - 1  # two digits of a Python int: 32 bytes instead of 36, which are given 48
_SHARDS: Final = 256
_SHARD_MASK: Final = _SHARDS - 1
_SHARED_MASKS: Final = 65_536
_GIVE_WAY: Final = 16


class Match(NamedTuple):
    """What one node has of a prompt, in leading blocks."""

    blocks: int
    """Resident, on whatever tier."""
    building: int
    """Being computed right behind those."""
    worth: float
    """Blocks of prefill saved, tiers and builds weighed; at most ``blocks + building``."""


NOTHING: Final = Match(0, 0, 0.0)


class BlockIndex:
    """Which slots hold which blocks. Slots are handed out by `open_slot` and end with `close_slot`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._shards: list[dict[int, int]] = [{} for _ in range(_SHARDS)]  # each: oldest first
        self._masks: dict[int, int] = {}  # equal masks share one int object: 8 bytes an entry instead of about 60
        self._copies: dict[tuple[int, int], int] = {}  # (head, bit) -> copies beyond the first, where they are counted
        self._tiers: list[int] = []  # positions of those that were ever seen, nearest first
        self._open: set[int] = set()
        self._free: list[int] = []
        self._births: list[int] = []  # by slot: how often it was handed out
        self._retired: list[int] = []  # closed slots whose bits may still be in the shards
        self._sweeping: list[int] = []  # those the sweep under way removes
        self._sweep_keep = 0
        self._sweep_shard = 0
        self._size = 0
        self.dropped = 0
        """Keys that gave way to others, and copies that were not counted, for want of room."""

    def __len__(self) -> int:
        """Keys known, those of closed slots that are not swept yet included."""
        return self._size

    # -- slots ---------------------------------------------------------------------------------------------------------

    def open_slot(self) -> int:
        """A slot that holds nothing."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._births)
            self._births.append(0)
        self._births[slot] += 1
        self._open.add(slot)
        return slot

    def birth(self, slot: int) -> int:
        """Tells apart those who have ``slot`` one after the other. It stays until the slot is handed out again."""
        return self._births[slot]

    def close_slot(self, slot: int) -> None:
        """Forget all that ``slot`` holds. The number is not handed out again before its bits are gone."""
        if slot in self._open:
            self._open.remove(slot)
            self._retired.append(slot)

    def sweep(self) -> bool:
        """Clean one shard of the bits of closed slots; True while there is more to do. Call it often: it is short."""
        if not self._sweeping:
            if not self._retired:
                return False
            self._sweeping, self._retired = self._retired, []
            bits = 0
            for slot in self._sweeping:
                bits |= _ALL_TIERS << (slot * _WIDTH)
            self._sweep_keep, self._sweep_shard = ~bits, 0
            gone = {slot * _WIDTH + position for slot in self._sweeping for position in range(_WIDTH)}
            self._copies = {each: count for each, count in self._copies.items() if each[1] not in gone}
        keep, masks = self._sweep_keep, self._masks
        shard = self._shards[self._sweep_shard]
        kept: dict[int, int] = {}
        for head, old in shard.items():
            mask = old & keep
            if mask:
                kept[head] = masks.setdefault(mask, mask)
        self._size -= len(shard) - len(kept)
        self._shards[self._sweep_shard] = kept
        self._sweep_shard += 1
        if self._sweep_shard == _SHARDS:
            self._free += self._sweeping
            self._sweeping = []
        return bool(self._sweeping or self._retired)

    # -- intake --------------------------------------------------------------------------------------------------------

    def store(self, slot: int, keys: bytes, tier: str, *, counted: bool = False) -> None:
        """Keys (concatenated, parents first) that are on ``tier`` now. Unknown tiers count as the slowest.

        ``counted``: the node says it of every copy, and says so when each goes; a block is there until the last goes.
        """
        at, bit = self._bit(slot, tier)
        shards, masks, capacity = self._shards, self._masks, self._capacity
        if len(masks) > _SHARED_MASKS:
            masks.clear()
        alone = masks.setdefault(bit, bit)
        for head in reversed(_heads(keys)):
            shard = shards[head & _SHARD_MASK]
            old = shard.get(head)
            if old is None:
                if self._size >= capacity:
                    self._make_room(shard)
                self._size += 1
                shard[head] = alone
            elif not old & bit:
                mask = old | bit
                shard[head] = masks.setdefault(mask, mask)
            elif counted:
                self._add_copy(head, at)

    def remove(self, slot: int, keys: bytes, tier: str) -> None:
        """Keys (concatenated) of which a copy left ``tier``; unknown ones are no matter."""
        at, bit = self._bit(slot, tier)
        shards, masks, copies = self._shards, self._masks, self._copies
        for head in _heads(keys):
            shard = shards[head & _SHARD_MASK]
            old = shard.get(head)
            if old is None or (copies and old & bit and self._take_copy(head, at)):
                continue
            mask = old & ~bit
            if mask:
                shard[head] = masks.setdefault(mask, mask)
            else:
                del shard[head]
                self._size -= 1

    def used(self, keys: Sequence[bytes]) -> None:
        """A prompt that begins with these (parents first) was sent to one of the nodes that hold them."""
        if self._size < self._capacity * 3 // 4:
            return
        shards = self._shards
        for key in reversed(keys):
            head = _head(key)
            shard = shards[head & _SHARD_MASK]
            mask = shard.pop(head, None)
            if mask is not None:
                shard[head] = mask

    def _bit(self, slot: int, tier: str) -> tuple[int, int]:
        position = _POSITION.get(tier, _POSITION[DISK])
        if position not in self._tiers:
            self._tiers = sorted((*self._tiers, position))
        at = slot * _WIDTH + position
        return at, 1 << at

    def _make_room(self, shard: dict[int, int]) -> None:
        """Of the shard where room is needed: keys are spread evenly, so that its oldest are old."""
        if not shard:  # a bound far below the number of shards
            shard = max(self._shards, key=len)
        oldest = list(islice(shard, max(1, len(shard) // _GIVE_WAY)))
        for head in oldest:
            del shard[head]
        self._size -= len(oldest)
        self.dropped += len(oldest)

    def _add_copy(self, head: int, at: int) -> None:
        key = (head, at)
        if key in self._copies or len(self._copies) < self._capacity // _GIVE_WAY:
            self._copies[key] = self._copies.get(key, 0) + 1
        else:
            self.dropped += 1

    def _take_copy(self, head: int, at: int) -> bool:
        """Whether a copy beyond the first was there, which has gone now."""
        key = (head, at)
        count = self._copies.get(key, 0)
        if count > 1:
            self._copies[key] = count - 1
        elif count:
            del self._copies[key]
        return count > 0

    # -- look-up -------------------------------------------------------------------------------------------------------

    def holds(self, slot: int, key: bytes) -> bool:
        """Whether the block is resident there: one that is being built is not."""
        head = _head(key)
        mask = self._shards[head & _SHARD_MASK].get(head, 0)
        return slot in self._open and bool(mask >> (slot * _WIDTH) & _RESIDENT)

    def longest_matches(
        self, slots: Mapping[str, int], keys: Sequence[bytes], *, late: Callable[[], bool] = lambda: False
    ) -> dict[str, int] | None:
        """Node -> leading blocks of ``keys`` resident there, for the nodes in ``slots``; None once ``late()``."""
        matches = self.weighed_matches(slots, keys, late=late)
        return None if matches is None else {node: match.blocks for node, match in matches.items()}

    def weighed_matches(
        self, slots: Mapping[str, int], keys: Sequence[bytes], *, late: Callable[[], bool] = lambda: False
    ) -> dict[str, Match] | None:
        """Node -> what it has of ``keys``, for the nodes in ``slots``. None as soon as ``late()`` is true.

        Nodes are bisected together, and part where one holds the block in the middle and another does not: log2(blocks)
        look-ups for each *different* length, not for each node.
        """
        if late():
            return None
        group = 0
        for slot in slots.values():
            if slot in self._open:
                group |= 1 << (slot * _WIDTH)
        masks: dict[int, int] = {}
        lengths: list[dict[int, int]] = []
        for count in range(1, len(self._tiers) + 1):
            found = self._lengths(keys, group, self._tiers[:count], masks, late)
            if found is None:
                return None
            lengths.append(found)
        holders = lengths[-1] if lengths else {}  # with all tiers: whoever is in none of them holds nothing
        return {
            node: _weigh(self._tiers, [found.get(slot, 0) for found in lengths]) if slot in holders else NOTHING
            for node, slot in slots.items()
        }

    def _lengths(
        self,
        keys: Sequence[bytes],
        group: int,
        tiers: Sequence[int],
        masks: dict[int, int],
        late: Callable[[], bool],
    ) -> dict[int, int] | None:
        """Slot of ``group`` -> leading blocks on any of ``tiers``, where there are some.

        ``masks`` remembers what was looked up.
        """
        shards = self._shards
        lengths: dict[int, int] = {}
        open_ranges = [(0, len(keys), group)]
        while open_ranges:
            if late():
                return None
            low, high, members = open_ranges.pop()
            while low < high:
                middle = (low + high) // 2
                mask = masks.get(middle)
                if mask is None:
                    head = _head(keys[middle])
                    mask = masks[middle] = shards[head & _SHARD_MASK].get(head, 0)
                holders = 0
                for tier in tiers:
                    holders |= mask >> tier
                holders &= members
                if not holders:
                    high = middle
                elif holders == members:
                    low = middle + 1
                else:
                    open_ranges.append((low, middle, members ^ holders))
                    low, members = middle + 1, holders
            if low:
                for slot in _slots(members):
                    lengths[slot] = low
        return lengths


def _head(key: bytes) -> int:
    return int.from_bytes(key[:8], "little") & _HEAD_MASK


def _heads(keys: bytes) -> list[int]:
    words = np.frombuffer(keys, "<u8")[:: DIGEST_BYTES // 8]
    heads: list[int] = (words & np.uint64(_HEAD_MASK)).tolist()
    return heads


def _slots(members: int) -> Iterator[int]:
    while members:
        lowest = members & -members
        yield (lowest.bit_length() - 1) // _WIDTH
        members ^= lowest


def _weigh(tiers: Sequence[int], lengths: Sequence[int]) -> Match:
    """From leading blocks on ever more tiers: each is credited with what it adds to the nearer ones."""
    if not lengths or not lengths[-1]:
        return NOTHING
    worth, covered, resident = 0.0, 0, 0
    for tier, length in zip(tiers, lengths, strict=True):
        worth += _WEIGHTS[tier] * (length - covered)
        covered = length
        if tier != _BUILDING:
            resident = length
    return Match(resident, covered - resident, worth)
