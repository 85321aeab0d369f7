"""Block key -> the nodes that hold it.

One integer per key is a bit set over (slot, tier); a slot is one boot of one node, so what an earlier boot held can
never be taken for the new one's (ROU-06). Residency is rooted (I6): if a node holds block i it holds all before it, so
the longest match is found by bisection, not by a walk. The index only advises: a wrong entry costs a worse choice of
node, never a wrong answer, because nodes compute keys themselves (ISO-02).

Bounds: at `capacity` keys, further ones are dropped and counted; those nodes then look emptier than they are. A slot
that ended is masked at once and its bits are swept out shard by shard, so that no step is long.

Not thread-safe: lives on the event loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from kvgrove_protocol.events import DEVICE, DISK, HOST

TIERS = (DEVICE, HOST, DISK)
_TIER_BITS = {tier: 1 << position for position, tier in enumerate(TIERS)}
_WIDTH = len(TIERS)
_ALL_TIERS = (1 << _WIDTH) - 1

_SHARDS = 256
_SHARED_MASKS = 65_536


class BlockIndex:
    """Which slots hold which blocks. Slots are handed out by `open_slot` and end with `close_slot`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._masks: dict[int, int] = {}  # equal masks share one int object: 8 bytes an entry instead of about 60
        self._open: set[int] = set()
        self._free: list[int] = []
        self._next_slot = 0
        self._retired: list[int] = []  # closed slots whose bits may still be in the shards
        self._sweeping: list[int] = []  # those the sweep under way removes
        self._sweep_keep = 0
        self._sweep_shard = 0
        self._size = 0
        self.dropped = 0
        """Keys that found no room."""

    def __len__(self) -> int:
        """Keys known, those of closed slots that are not swept yet included."""
        return self._size

    def open_slot(self) -> int:
        """A slot that holds nothing."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._next_slot
            self._next_slot += 1
        self._open.add(slot)
        return slot

    def close_slot(self, slot: int) -> None:
        """Forget all that ``slot`` holds. The number is not handed out again before its bits are gone."""
        if slot in self._open:
            self._open.remove(slot)
            self._retired.append(slot)

    def store(self, slot: int, keys: Iterable[bytes], tier: str) -> None:
        """Keys that became resident on ``tier``. Unknown tiers count as the slowest: better than not at all."""
        bit = _TIER_BITS.get(tier, _TIER_BITS[DISK]) << (slot * _WIDTH)
        shards, masks = self._shards, self._masks
        if len(masks) > _SHARED_MASKS:
            masks.clear()
        room = self._capacity - self._size
        for key in keys:
            shard = shards[key[0]]
            old = shard.get(key)
            if old is None:
                if room <= 0:
                    self.dropped += 1
                    continue
                room -= 1
                self._size += 1
                mask = bit
            else:
                mask = old | bit
            shard[key] = masks.setdefault(mask, mask)

    def remove(self, slot: int, keys: Iterable[bytes], tier: str) -> None:
        """Keys that left ``tier``; unknown ones are no matter."""
        keep = ~(_TIER_BITS.get(tier, _TIER_BITS[DISK]) << (slot * _WIDTH))
        shards, masks = self._shards, self._masks
        for key in keys:
            shard = shards[key[0]]
            old = shard.get(key)
            if old is None:
                continue
            mask = old & keep
            if mask:
                shard[key] = masks.setdefault(mask, mask)
            else:
                del shard[key]
                self._size -= 1

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
        keep, masks = self._sweep_keep, self._masks
        shard = self._shards[self._sweep_shard]
        kept: dict[bytes, int] = {}
        for key, old in shard.items():
            mask = old & keep
            if mask:
                kept[key] = masks.setdefault(mask, mask)
        self._size -= len(shard) - len(kept)
        self._shards[self._sweep_shard] = kept
        self._sweep_shard += 1
        if self._sweep_shard == _SHARDS:
            self._free += self._sweeping
            self._sweeping = []
        return bool(self._sweeping or self._retired)

    def holds(self, slot: int, key: bytes) -> bool:
        return slot in self._open and bool(self._shards[key[0]].get(key, 0) >> (slot * _WIDTH) & _ALL_TIERS)

    def longest_matches(
        self, slots: Mapping[str, int], keys: Sequence[bytes], *, late: Callable[[], bool] = lambda: False
    ) -> dict[str, int] | None:
        """Node -> leading blocks of ``keys`` it holds, for the nodes in ``slots``. None as soon as ``late()`` is true.

        Bisection over the rooted chain: about log2(len(keys)) look-ups a node, most of them shared between nodes.
        """
        masks: dict[int, int] = {}
        shards = self._shards

        def held(position: int) -> int:
            mask = masks.get(position)
            if mask is None:
                key = keys[position]
                mask = masks[position] = shards[key[0]].get(key, 0)
            return mask

        matches: dict[str, int] = {}
        for node, slot in slots.items():
            if late():
                return None
            if slot not in self._open:
                matches[node] = 0
                continue
            shift = slot * _WIDTH
            low, high = 0, len(keys)
            while low < high:
                middle = (low + high) // 2
                if held(middle) >> shift & _ALL_TIERS:
                    low = middle + 1
                else:
                    high = middle
            matches[node] = low
        return matches
