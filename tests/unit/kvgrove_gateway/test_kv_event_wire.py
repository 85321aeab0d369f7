"""Payloads of engines that are not ours: both encodings, made by hand here, and captured from a real engine elsewhere.

``KVGROVE_KV_EVENTS`` names a folder of captured payloads (``<run>-seq<number>.msgpack``); without it those tests are
skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvgrove_gateway.kv_events.translate import Clear, Incompatible, Remove, Store, Translator
from kvgrove_gateway.kv_events.wire import AllBlocksCleared, BlockRemoved, BlockStored, decode
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.errors import Malformed

BLOCK = 4
TOKENS = list(range(100, 100 + 2 * BLOCK))


def pack(*events: Any, rank: int | None = None, short: bool = False) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events)] if short else [1.5, list(events), rank])


def stored(**changes: Any) -> dict[str, Any]:
    """As vLLM writes it from 0.24 on."""
    return {
        "type": "BlockStored", "block_hashes": [11, 12], "parent_block_hash": None, "token_ids": TOKENS,
        "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
    } | changes  # fmt: skip


def root(lora: str | None, salt: str | None) -> bytes:
    return digest("test-root", [lora, salt])


def translator(**options: Any) -> Translator:
    return Translator(root, **({"block_size": BLOCK, "capacity": 1000} | options))


def keys(tokens: list[int], at: bytes | None = None) -> list[bytes]:
    return block_keys(at if at is not None else root(None, None), msgspec_tokens(tokens), block_size=BLOCK)


def msgspec_tokens(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def test_the_map_encoding_with_fields_left_out_and_fields_that_are_new() -> None:
    batch = decode(pack(stored(lookahead_token_ids=[1], group_idx=0), {"type": "BlockRemoved", "block_hashes": [11]}))
    assert batch.events == [
        BlockStored([11, 12], None, TOKENS, BLOCK, None, "GPU", None, None, 0),
        BlockRemoved([11], None, None),
    ]
    assert batch.rank == 0
    assert decode(pack({"type": "AllBlocksCleared"}, rank=3)).rank == 3


@pytest.mark.parametrize("length", [6, 8, 9, 12])
def test_the_array_encoding_of_older_releases_long_and_short(length: int) -> None:
    row = ["BlockStored", [11, 12], None, TOKENS, BLOCK, None, "GPU", None, None, 0, "full_attention", None]
    batch = decode(pack(row[:length], ["BlockRemoved", [11]], ["BlockRemoved", [12], "GPU", 0], ["AllBlocksCleared"]))
    first = batch.events[0]
    assert isinstance(first, BlockStored)
    assert (first.block_hashes, first.token_ids, first.block_size) == ([11, 12], TOKENS, BLOCK)
    assert first.medium == ("GPU" if length > 6 else None)
    assert batch.events[1:] == [BlockRemoved([11]), BlockRemoved([12], "GPU", 0), AllBlocksCleared()]


def test_sglang_says_less_and_has_its_salt_in_a_field() -> None:
    event = {"type": "BlockStored", "block_hashes": [-5], "parent_block_hash": None, "token_ids": TOKENS[:BLOCK],
             "block_size": BLOCK, "medium": "CPU_PINNED", "cache_salt": "t7", "session_id": "s"}  # fmt: skip
    (change,) = translator().changes(decode(pack(event, short=True)).events)
    assert change == Store(keys(TOKENS[:BLOCK], root(None, "t7")), "host")


def test_hashes_may_be_large_numbers_or_bytes() -> None:
    for hashes in ([2**64 - 1, 2**63], [b"a" * 32, b"b" * 32]):
        known = translator()
        known.changes(decode(pack(stored(block_hashes=hashes))).events)
        more = decode(pack(stored(block_hashes=[7], parent_block_hash=hashes[1], token_ids=[1] * BLOCK))).events
        assert known.changes(more) == [Store(keys(TOKENS + [1] * BLOCK)[2:], "device")]


def test_kinds_that_are_not_known_are_skipped_and_counted() -> None:
    batch = decode(pack({"type": "BlockMoved", "to": 1}, stored(), {"type": "BlockRemoved", "block_hashes": [11]}))
    assert (len(batch.events), batch.skipped) == (2, 1)
    assert decode(pack(["BlockMoved", 1], ["AllBlocksCleared"])).skipped == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 9,
        msgspec.msgpack.encode({"ts": 1}),
        pack({"type": "BlockStored", "block_hashes": "x"}),
        pack(stored(token_ids=[-1])),
        pack(stored(token_ids=[2**32])),
        pack([]),
    ],
)
def test_iso_13_what_is_no_batch_is_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed):
        decode(payload)


def test_copies_are_counted_and_the_last_one_counts() -> None:
    known = translator()
    first = known.changes(decode(pack(stored(), stored())).events)
    assert first == [Store(keys(TOKENS), "device")]
    removal = decode(pack({"type": "BlockRemoved", "block_hashes": [12], "medium": "GPU"})).events
    assert known.changes(removal) == []
    assert known.changes(removal) == [Remove(keys(TOKENS)[1:], "device")]
    assert known.changes(removal) == []
    reports = translator(count_copies=False)
    reports.changes(decode(pack(stored(), stored())).events)
    assert reports.changes(removal) == [Remove(keys(TOKENS)[1:], "device")]


def test_a_slower_tier_names_blocks_that_were_told_before() -> None:
    known = translator()
    slower = stored(block_hashes=[12, 99], token_ids=[], medium="STORAGE")
    assert known.changes(decode(pack(stored(), slower)).events)[1] == Store(keys(TOKENS)[1:], "disk")
    assert known.unmapped["tokens"] == 1
    gone = [{"type": "BlockRemoved", "block_hashes": [12], "medium": medium} for medium in ("GPU", "STORAGE")]
    assert [type(change) for change in known.changes(decode(pack(*gone)).events)] == [Remove, Remove]
    assert len(known) == 1


def test_salt_adapter_and_images_are_part_of_what_a_block_is() -> None:
    def of(**changes: Any) -> Store:
        (change,) = translator().changes(decode(pack(stored(**changes))).events)
        assert isinstance(change, Store)
        return change

    plain = of()
    assert list(plain.keys) == keys(TOKENS)
    salted = of(extra_keys=[["tenant-7"], None])
    assert list(salted.keys) == keys(TOKENS, root(None, "tenant-7"))
    adapted = of(lora_name="sql", extra_keys=[["sql"], ["sql"]])
    assert adapted.keys[0] == keys(TOKENS, root("sql", None))[0]
    image = of(extra_keys=[None, [["image", 3]]])
    assert image.keys[0] == plain.keys[0]
    assert image.keys[1] != plain.keys[1]
    both = of(lora_name="sql", extra_keys=[["sql", "tenant-7"], None])
    assert both.keys[0] == keys(TOKENS, root("sql", "tenant-7"))[0]


def test_rou_09_an_unknown_parent_or_missing_tokens_credit_nothing_and_are_counted() -> None:
    known = translator()
    assert known.changes(decode(pack(stored(parent_block_hash=5))).events) == []
    assert known.unmapped["parent"] == 2
    with pytest.raises(Incompatible) as refused:
        translator().changes(decode(pack(stored(token_ids=[]))).events)
    assert refused.value.code == "no_tokens"


@pytest.mark.parametrize("size", [2, 8, 64])
def test_rou_10_another_block_size_is_refused_by_name(size: int) -> None:
    with pytest.raises(Incompatible, match=f"{size} tokens") as refused:
        translator().changes(decode(pack(stored(block_size=size))).events)
    assert refused.value.code == "block_size"


def test_what_is_known_is_bounded() -> None:
    known = translator(capacity=1)
    assert known.changes(decode(pack(stored())).events) == [Store(keys(TOKENS)[:1], "device")]
    assert (known.unmapped["capacity"], len(known)) == (1, 1)


def test_other_groups_of_a_hybrid_model_are_left_out() -> None:
    assert translator().changes(decode(pack(stored(group_idx=1))).events) == []


# -- captured from a real engine ---------------------------------------------------------------------------------------


def captured(run: str) -> list[bytes]:
    folder = os.environ.get("KVGROVE_KV_EVENTS")
    if not folder:
        pytest.skip("KVGROVE_KV_EVENTS is not set: give the folder of captured payloads")
    found = sorted(Path(folder).glob(f"{run}-seq*.msgpack"))
    assert found, f"{folder} holds no {run}-seq*.msgpack"
    return [path.read_bytes() for path in found]


@pytest.mark.parametrize(("run", "kind"), [("ex", int), ("custom", bytes)])
def test_captured_payloads_are_read_whole_and_mapped_to_our_keys(run: str, kind: type) -> None:
    known = translator(block_size=32)
    resident: set[bytes] = set()
    counts: Counter[str] = Counter()
    cleared = 0
    for payload in captured(run):
        batch = decode(payload)
        assert batch.skipped == 0
        counts.update(type(event).__name__ for event in batch.events)
        assert all(isinstance(h, kind) for e in batch.events if isinstance(e, BlockStored) for h in e.block_hashes)
        for change in known.changes(batch.events):
            match change:
                case Store(keys=new, tier="device"):
                    resident |= set(new)
                case Remove(keys=gone, tier="device"):
                    resident -= set(gone)
                case Clear():
                    resident.clear()
                    cleared += 1
    assert counts["BlockStored"] >= 6
    assert counts["BlockRemoved"] > 0
    assert cleared == 1
    assert known.unmapped["parent"] == 0
    assert len(resident) == 9  # the prompt that came after the reset


@pytest.mark.parametrize("run", ["ex", "custom"])
def test_captured_salted_prompts_have_keys_of_their_own(run: str) -> None:
    plain, salted = (decode(payload).events for payload in captured(run)[:2])
    known = translator(block_size=32)
    first = [change for change in known.changes(plain) if isinstance(change, Store) and change.tier == "device"]
    second = [change for change in known.changes(salted) if isinstance(change, Store) and change.tier == "device"]
    stored_plain, stored_salted = plain[0], salted[0]
    assert isinstance(stored_plain, BlockStored)
    assert isinstance(stored_salted, BlockStored)
    assert stored_plain.token_ids == stored_salted.token_ids
    tokens = msgspec_tokens(stored_plain.token_ids)
    assert list(first[0].keys) == block_keys(root(None, None), tokens, block_size=32)
    assert list(second[0].keys) == block_keys(root(None, "tenant-7"), tokens, block_size=32)
