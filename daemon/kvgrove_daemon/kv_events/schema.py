"""The events as others read them: what vLLM 0.24 and later publish. Encoding only.

A batch is an array ``[unix seconds, events, data-parallel rank]``, an event a map with its class name under ``type``;
a field equal to its default is left out. There are no fields of our own: vllm-router drops batches that hold any.

A block's hash is the last 8 bytes of its key as an unsigned big-endian number, the form that vLLM uses by default. Like
there it is a hint for routing and no proof of content.
"""

import array
import sys
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from kvgrove_daemon.kv_events.blocks import Cleared, Gone, Listed, Note
from kvgrove_protocol.events import DEVICE, DISK, HOST

GPU, CPU, STORAGE = "GPU", "CPU", "STORAGE"
MEDIA = {DEVICE: GPU, HOST: CPU, DISK: STORAGE}
"""By tier, where the device tier is the one that the engine computes in."""
FULL_ATTENTION = "full_attention"


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag="BlockStored", tag_field="type", omit_defaults=True):
    """Blocks that follow each other, the first one ``parent_block_hash`` (None: it begins a prompt)."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    """Of all blocks: ``len(block_hashes) * block_size``."""
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    """By block, what else its hash depends on; None where that is nothing."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="BlockRemoved", tag_field="type", omit_defaults=True):
    block_hashes: list[int]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True, tag="AllBlocksCleared", tag_field="type"):
    pass


class Batch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def block_hash(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def fold_name(fold: bytes) -> str:
    """What stands for a fold: equal for equal ones, and telling nothing about the caller or document behind it."""
    return sha256(b"kvgrove/kv-events/fold" + fold).hexdigest()[:32]


class Encoder:
    """Notes of the cache -> the payload of one batch."""

    def __init__(self, nearest: str) -> None:
        """``nearest``: the tier that the engine computes in. Others call that GPU, also where it is none."""
        self._media = MEDIA | {nearest: GPU}
        self._encoder = msgspec.msgpack.Encoder()

    def _medium(self, tier: str) -> str:
        """A tier that came later counts as the slowest: it must not end the publisher."""
        return self._media.get(tier, STORAGE)

    def payload(self, notes: Sequence[Note], at: float) -> bytes:
        """``at``: seconds since 1970."""
        return self._encoder.encode(Batch(at, [self._event(note) for note in notes]))

    def _event(self, note: Note) -> BlockStored | BlockRemoved | AllBlocksCleared:
        match note:
            case Listed():
                folds: list[list[str] | None] = [[fold_name(fold)] if fold else None for fold in note.folds]
                return BlockStored(
                    block_hashes=[block_hash(key) for key in note.keys],
                    parent_block_hash=block_hash(note.parent) if note.parent is not None else None,
                    token_ids=_numbers(b"".join(note.tokens)),
                    block_size=note.block_size,
                    lora_id=None,
                    medium=self._medium(note.tier),
                    lora_name=None,
                    extra_keys=folds if any(note.folds) else None,
                    group_idx=0,
                    kv_cache_spec_kind=FULL_ATTENTION,
                )
            case Gone():
                hashes = [block_hash(key) for key in note.keys]
                return BlockRemoved(block_hashes=hashes, medium=self._medium(note.tier), group_idx=0)
            case Cleared():
                return AllBlocksCleared()


def _numbers(little_endian: bytes) -> list[int]:
    numbers = array.array("I", little_endian)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
