"""From an engine's own block hashes to our keys, by the tokens that its events carry (ROU-09).

Engines hash as they like: the algorithm, the seed and the version decide. So nothing is computed from their hashes:
the key of a block follows from the key of its parent and its tokens, as everywhere (I9), and the engine's hash only
names it from then on. A block whose parent or tokens are not known cannot be named; it is counted, and the engine
looks emptier than it is.

Copies: an engine may hold a block twice and say so once for each; it is gone when all are. One engine's blocks of one
data-parallel rank make one `Translator`.
"""

import array
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvgrove_gateway.kv_events.wire import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvgrove_protocol.canonical import Canonical, encode
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.events import DEVICE, DISK, HOST

TIERS = {None: DEVICE, "GPU": DEVICE, "CPU": HOST, "CPU_PINNED": HOST}
"""By medium; whatever else there may be counts as the slowest."""

Roots = Callable[[str | None, str | None], bytes]
"""(LoRA name, cache salt) -> where the chains of such prompts begin; equal for requests and for events."""


class Incompatible(Terminal):
    """The engine's events cannot be used: it is placed by load alone. ``code``: ``block_size`` or ``no_tokens``."""

    code = "incompatible"


@dataclass(frozen=True)
class Store:
    keys: Sequence[bytes]
    tier: str


@dataclass(frozen=True)
class Remove:
    keys: Sequence[bytes]
    tier: str


@dataclass(frozen=True)
class Clear:
    pass


Change = Store | Remove | Clear


class Translator:
    """Mutable. Knows at most ``capacity`` blocks; beyond, further ones are counted as ``unmapped``."""

    def __init__(self, roots: Roots, *, block_size: int, capacity: int, count_copies: bool = True) -> None:
        """``count_copies`` False: for engines whose callers ask for full reports, which name blocks again and again."""
        self._roots = roots
        self._block_size = block_size
        self._capacity = capacity
        self._count_copies = count_copies
        self._keys: dict[BlockHash, bytes] = {}
        self._copies: dict[tuple[str, BlockHash], int] = {}
        self.unmapped: Counter[str] = Counter()
        """Blocks that could not be named, by why: ``parent tokens capacity``."""

    def __len__(self) -> int:
        return len(self._keys)

    def clear(self) -> None:
        self._keys.clear()
        self._copies.clear()

    def changes(self, events: Iterable[Event]) -> list[Change]:
        """What they mean for the index, in order. Raises Incompatible."""
        found: list[Change] = []
        for event in events:
            match event:
                case BlockStored() if not event.group_idx:
                    keys = self._stored(event)
                    if keys:
                        found.append(Store(keys, TIERS.get(event.medium, DISK)))
                case BlockRemoved() if not event.group_idx:
                    keys = self._removed(event)
                    if keys:
                        found.append(Remove(keys, TIERS.get(event.medium, DISK)))
                case AllBlocksCleared():
                    self.clear()
                    found.append(Clear())
                case _:
                    continue  # other KV groups of a hybrid model: a prefix counts where its attention blocks are
        return found

    def _stored(self, event: BlockStored) -> list[bytes]:
        hashes = event.block_hashes
        known = self._keys
        if event.token_ids:
            keys = self._keys_of(event)
            if keys is None:
                self.unmapped["parent"] += len(hashes)
                return []
        else:  # a slower tier that names blocks which the engine's memory has told before
            if event.parent_block_hash is None and event.medium in (None, "GPU") and not known:
                raise Incompatible("its events carry no token ids: switch them on at the engine", code="no_tokens")
            pairs = [(each, known[each]) for each in hashes if each in known]
            self.unmapped["tokens"] += len(hashes) - len(pairs)
            hashes, keys = [each for each, _ in pairs], [key for _, key in pairs]
        tier = TIERS.get(event.medium, DISK)
        new: list[bytes] = []
        for block, key in zip(hashes, keys, strict=True):
            if block not in known and len(known) >= self._capacity:
                self.unmapped["capacity"] += 1
                continue
            known[block] = key
            copies = self._copies.get((tier, block), 0)
            if not copies:
                new.append(key)
            self._copies[tier, block] = copies + 1 if self._count_copies else 1
        return new

    def _keys_of(self, event: BlockStored) -> list[bytes] | None:
        if event.block_size != self._block_size or len(event.token_ids) != self._block_size * len(event.block_hashes):
            raise Incompatible(
                f"its blocks have {event.block_size} tokens, the router's {self._block_size}: start both with the same",
                code="block_size",
            )
        extra = event.extra_keys or []
        parent: bytes | None
        if event.parent_block_hash is None:
            salt = event.cache_salt or _salt(extra[0] if extra else None, event.lora_name)
            parent = self._roots(event.lora_name, salt)
        else:
            parent = self._keys.get(event.parent_block_hash)
        if parent is None:
            return None
        tokens = array.array("I", event.token_ids)
        if sys.byteorder == "big":
            tokens.byteswap()
        first = event.parent_block_hash is None
        folds = {
            at: encode(_canonical(each))
            for at, each in enumerate(extra)
            if each and not (at == 0 and first and _is_salt_only(each, event.lora_name))
        }
        return block_keys(parent, tokens.tobytes(), folds, block_size=self._block_size)

    def _removed(self, event: BlockRemoved) -> list[bytes]:
        tier = TIERS.get(event.medium, DISK)
        gone: list[bytes] = []
        for block in event.block_hashes:
            copies = self._copies.get((tier, block), 0)
            if not copies:
                continue
            if copies > 1:
                self._copies[tier, block] = copies - 1
                continue
            del self._copies[tier, block]
            gone.append(self._keys[block])
            if not any((other, block) in self._copies for other in (DEVICE, HOST, DISK)):
                del self._keys[block]
        return gone


def _named(extra: Any, lora_name: str | None) -> list[Any]:
    """Extra keys of one block but for the adapter's name, which leads them where there is one."""
    values = list(extra) if isinstance(extra, list | tuple) else [extra]
    return values[1:] if values and lora_name is not None and values[0] == lora_name else values


def _is_salt_only(extra: Any, lora_name: str | None) -> bool:
    values = _named(extra, lora_name)
    return not values or (len(values) == 1 and isinstance(values[0], str))


def _salt(extra: Any, lora_name: str | None) -> str | None:
    values = [value for value in _named(extra, lora_name) if isinstance(value, str)] if extra else []
    return values[-1] if values else None


def _canonical(value: Any) -> Canonical:
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    return value if isinstance(value, str | bytes | int) or value is None else repr(value)
