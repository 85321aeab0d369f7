"""Payloads of vLLM and SGLang -> events. Pure.

A batch is an array ``[seconds, events, data-parallel rank?]``. Its events are maps with their class name under ``type``
(vLLM from 0.24 on, SGLang), or arrays that begin with it (vLLM before; older releases write fewer items). Fields that
are not needed here are skipped, so that new ones do no harm; so are kinds of events that are not known, and counted.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from kvgrove_protocol.errors import Malformed

TokenId = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
BlockHash = int | bytes
"""An engine's own name of a block: never proof of its content."""


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored", tag_field="type"):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = None
    token_ids: list[TokenId] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    cache_salt: str | None = None
    """SGLang; vLLM has it among ``extra_keys`` of a prompt's first block."""


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved", tag_field="type"):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared", tag_field="type"):
    pass


class _StoredRow(msgspec.Struct, frozen=True, array_like=True, tag="BlockStored"):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None = None
    token_ids: list[TokenId] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None


class _RemovedRow(msgspec.Struct, frozen=True, array_like=True, tag="BlockRemoved"):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedRow(msgspec.Struct, frozen=True, array_like=True, tag="AllBlocksCleared"):
    pass


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _MapBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _RowBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[_StoredRow | _RemovedRow | _ClearedRow]
    data_parallel_rank: int | None = None


class _RawBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


_MAPS = msgspec.msgpack.Decoder(_MapBatch)
_ROWS = msgspec.msgpack.Decoder(_RowBatch)
_RAW = msgspec.msgpack.Decoder(_RawBatch)
_ONE_MAP: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_ONE_ROW: msgspec.msgpack.Decoder[_StoredRow | _RemovedRow | _ClearedRow] = msgspec.msgpack.Decoder(
    _StoredRow | _RemovedRow | _ClearedRow
)
_ANY = msgspec.msgpack.Decoder()
_KNOWN = {"BlockStored", "BlockRemoved", "AllBlocksCleared"}


class Batch(msgspec.Struct, frozen=True):
    events: Sequence[Event]
    rank: int
    skipped: int
    """Events of kinds that are not known."""


def decode(payload: bytes) -> Batch:
    """Raises Malformed where it is no batch, or an event of a known kind is not what it should be."""
    try:
        maps = _MAPS.decode(payload)
        return Batch(maps.events, maps.data_parallel_rank or 0, 0)
    except msgspec.MsgspecError:
        pass  # not maps, or not only of kinds that are known
    try:
        rows = _ROWS.decode(payload)
        return Batch([_named(row) for row in rows.events], rows.data_parallel_rank or 0, 0)
    except msgspec.MsgspecError:
        return _one_by_one(payload)


def _one_by_one(payload: bytes) -> Batch:
    events: list[Event] = []
    skipped = 0
    try:
        raw = _RAW.decode(payload)
        for each in raw.events:
            plain = _ANY.decode(each)
            kind = plain.get("type") if isinstance(plain, dict) else plain[0] if isinstance(plain, list) else None
            if kind not in _KNOWN:
                skipped += 1
            elif isinstance(plain, dict):
                events.append(_ONE_MAP.decode(each))
            else:
                events.append(_named(_ONE_ROW.decode(each)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
        # msgspec names paths and types, never values.
        raise Malformed("payload", str(error)) from None
    return Batch(events, raw.data_parallel_rank or 0, skipped)


def _named(row: _StoredRow | _RemovedRow | _ClearedRow) -> Event:
    match row:
        case _StoredRow():
            return BlockStored(
                row.block_hashes,
                row.parent_block_hash,
                row.token_ids,
                row.block_size,
                row.lora_id,
                row.medium,
                row.lora_name,
                row.extra_keys,
                row.group_idx,
            )
        case _RemovedRow():
            return BlockRemoved(row.block_hashes, row.medium, row.group_idx)
        case _ClearedRow():
            return AllBlocksCleared()
