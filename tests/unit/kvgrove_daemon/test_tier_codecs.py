"""Codecs of the lower tiers: bounds of error, sizes, and what is refused rather than read wrongly."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from codec_bounds import HALF_STEP, error_over_bound, values_of
from disk_rig import BLOCK_SIZE, LAYOUT, SECRET, UID, adopt_all, chain

from kvgrove_daemon.cache.arena import TORCH_DTYPES, SharedMemoryArena
from kvgrove_daemon.cache.layout import DType, KVLayout
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.cache.tiers.codec import (
    LOSSY_CODECS,
    CodecName,
    CodecUnsupported,
    LossyCodec,
    NotEncodable,
    as_codec,
    decode,
    encode,
    encoded_bytes,
    require_codec,
)
from kvgrove_daemon.cache.tiers.codec_medium import CodecMedium
from kvgrove_daemon.cache.tiers.disk import DiskMedium
from kvgrove_daemon.cache.tiers.host import HostMedium
from kvgrove_daemon.cache.tiers.medium import Facts, MediumCorrupt
from kvgrove_protocol.chain import block_keys
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.identity import GenerationInputs, LayoutFingerprint, Purge, RealmInputs, generation


def layout_of(dtype: DType = "float32", **more: int) -> KVLayout:
    return KVLayout(**{"num_layers": 3, "num_kv_heads": 2, "head_dim": 16, "block_size": 8} | more, dtype=dtype)


def block(layout: KVLayout, seed: int = 0) -> torch.Tensor:
    """``(layers, 2, tokens, heads, dim)``: heads of very different size, with outliers and an empty one."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(layout.pool_shape(1), generator=random)
    values *= 10.0 ** torch.randint(-3, 3, (layout.num_layers, 2, 1, layout.num_kv_heads, 1), generator=random)
    values[0, 1, :, 0] = 0
    values[1, 0, 2, 1, 5] *= 60
    return values.to(TORCH_DTYPES[layout.dtype])


def raw(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("codec", LOSSY_CODECS)
@pytest.mark.parametrize("seed", range(5))
def test_no_value_is_farther_off_than_the_documented_bound(codec: LossyCodec, dtype: DType, seed: int) -> None:
    layout = layout_of(dtype)
    before = block(layout, seed)
    body = encode(layout, codec, raw(before))
    assert len(body) == encoded_bytes(layout, codec)
    after = values_of(decode(layout, codec, body), layout)
    off = error_over_bound(before.double(), after, codec, layout)
    assert off.max() <= 1
    assert off.max() > 0.8, "the bound is one that errors come near"
    assert not after[0, 1, :, 0].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("codec", LOSSY_CODECS)
@pytest.mark.parametrize("seed", range(3))
def test_a_block_that_goes_down_again_is_not_changed_again(codec: LossyCodec, dtype: DType, seed: int) -> None:
    """Errors of one way down do not add up over many."""
    layout = layout_of(dtype)
    once = decode(layout, codec, encode(layout, codec, raw(block(layout, seed))))
    often = once
    for _ in range(20):
        often = decode(layout, codec, encode(layout, codec, often))
    first, last = values_of(once, layout), values_of(often, layout)
    largest = first.abs().amax(dim=(2, 4), keepdim=True)
    assert bool(((last - first).abs() <= 4 * HALF_STEP[dtype] * largest).all())


@pytest.mark.parametrize(("codec", "most"), [("none", 1.0), ("int8", 0.251), ("fp8-e4m3", 0.251), ("int4", 0.126)])
def test_encoded_blocks_are_as_small_as_promised(codec: CodecName, most: float) -> None:
    layout = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64, dtype="float32", block_size=32)
    assert encoded_bytes(layout, codec) / layout.block_bytes <= most


@pytest.mark.parametrize(
    ("codec", "digest"),
    [
        ("int8", "5b16485da71436df"),
        ("fp8-e4m3", "f77fd8e2876e92d9"),
        ("int4", "a2dce1b51ada6b94"),
    ],
)
def test_what_an_extent_holds_never_changes(codec: LossyCodec, digest: str) -> None:
    """Blocks that an earlier release wrote are read by later ones of the same layout fingerprint."""
    layout = layout_of()
    values = (np.arange(layout.block_bytes // 4, dtype=np.float32) % 251 - 125) / 8
    assert hashlib.sha256(encode(layout, codec, values.tobytes())).hexdigest()[:16] == digest


def test_none_changes_nothing() -> None:
    layout = layout_of("bfloat16")
    before = raw(block(layout))
    assert decode(layout, "none", encode(layout, "none", before)) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_block_that_is_not_finite_is_refused(dtype: DType, bad: float) -> None:
    layout = layout_of(dtype)
    values = block(layout)
    values[2, 1, 3, 1, 7] = bad
    for codec in LOSSY_CODECS:
        with pytest.raises(NotEncodable, match="not finite"):
            encode(layout, codec, raw(values))


@pytest.mark.parametrize("codec", ["none", *LOSSY_CODECS])
def test_bytes_of_another_size_are_refused(codec: CodecName) -> None:
    layout = layout_of()
    with pytest.raises(ValueError, match="a block has"):
        encode(layout, codec, bytes(layout.block_bytes - 1))
    with pytest.raises(Malformed, match="body"):
        decode(layout, codec, bytes(encoded_bytes(layout, codec) + 1))


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0])
def test_a_scale_that_cannot_have_been_written_is_refused(scale: float) -> None:
    layout = layout_of()
    body = bytearray(encode(layout, "int4", raw(block(layout))))
    body[-4:] = np.float32(scale).tobytes()
    with pytest.raises(Malformed, match="scale"):
        decode(layout, "int4", bytes(body))


def test_codecs_and_layouts_that_do_not_go_together_are_refused_by_field_and_cure() -> None:
    for codec in ("none", *LOSSY_CODECS):
        assert as_codec(codec) == codec
    with pytest.raises(CodecUnsupported, match=r"spec\.kvFormat\.codec: must be one of none, int8"):
        as_codec("int2")
    odd = layout_of(head_dim=12)
    require_codec(odd, "none")
    with pytest.raises(CodecUnsupported, match="use none") as refused:
        require_codec(odd, "int8")
    assert refused.value.field == "spec.kvFormat.codec"


# -- as a medium -------------------------------------------------------------------------------------------------------

FACTS = Facts(namespace="ns", root=b"r" * 32, key=b"k" * 32, parent=b"r" * 32, depth=0, tokens=bytes(32))


def bytes_layout(block_bytes: int) -> KVLayout:
    """Of an arena whose blocks are so many bytes that mean nothing to it."""
    return KVLayout(num_layers=1, num_kv_heads=1, head_dim=block_bytes // 4, dtype="float16", block_size=1)


@pytest.fixture
def host() -> Iterator[HostMedium]:
    layout = bytes_layout(encoded_bytes(layout_of(), "int8"))
    medium = HostMedium(SharedMemoryArena(layout, 3, segment_name(f"codec-test-{os.getpid()}", "0", 0)))
    yield medium
    medium.close()


def test_a_medium_behind_a_codec_holds_whole_blocks_for_those_above(host: HostMedium) -> None:
    layout = layout_of()
    medium = CodecMedium(host, layout, "int8")
    assert (medium.name, medium.num_slots) == ("host", 3)
    assert medium.block_bytes == encoded_bytes(layout, "int8")
    before = raw(block(layout))
    medium.write_many([(2, FACTS, before), (0, FACTS, memoryview(before))])
    after = medium.read(2, FACTS)
    assert after == decode(layout, "int8", encode(layout, "int8", before)) == medium.read(0, FACTS)
    assert len(host.read(2, FACTS)) == medium.block_bytes
    medium.release([0])
    assert medium.erase([2]) == 1
    with pytest.raises(MediumCorrupt):
        medium.read(2, FACTS)


def test_iso_12_what_is_proven_and_does_not_decode_is_corrupt_and_never_read_again(host: HostMedium) -> None:
    layout = layout_of()
    medium = CodecMedium(host, layout, "int8")
    host.write_many([(1, FACTS, b"\xff" * medium.block_bytes)])  # scales of NaN
    with pytest.raises(MediumCorrupt, match="host: body: a scale"):
        medium.read(1, FACTS)
    with pytest.raises(MediumCorrupt, match="not those that were written"):
        medium.read(1, FACTS)


def test_a_block_that_cannot_be_encoded_leaves_the_whole_batch_unwritten(host: HostMedium) -> None:
    layout = layout_of()
    medium = CodecMedium(host, layout, "int8")
    bad = block(layout)
    bad[0, 0, 0, 0, 0] = float("nan")
    with pytest.raises(NotEncodable):
        medium.write_many([(0, FACTS, raw(block(layout))), (1, FACTS, raw(bad))])
    with pytest.raises(MediumCorrupt):
        medium.read(0, FACTS)


# -- an exact namespace and a lossy block ------------------------------------------------------------------------------


def test_i1_an_exact_namespace_meets_no_lossy_block_by_key_nor_by_layout() -> None:
    exact = GenerationInputs(
        weights="sha256:w", tokenizer="sha256:t", chat_template="sha256:c", kv_dtype="float32", block_size=8
    )
    keys, prints = set(), set()
    for codec in ("none", *LOSSY_CODECS):
        inputs = msgspec.structs.replace(exact, kv_codec=codec)
        realm = RealmInputs(
            generation=generation(inputs), namespace_uid="ns", purge=Purge(1, b"n" * 16), policy_version=1
        )
        keys.update(block_keys(realm.shared_realm(), bytes(4 * 16), {}, block_size=8))
        layout = LayoutFingerprint(
            abi="a/1", num_layers=3, num_kv_heads=2, head_dim=16, dtype="float32", block_size=8, kv_codec=codec
        )
        prints.add(layout.digest())
    assert len(keys) == 2 * 4, "the same tokens, two blocks, under four codecs"
    assert len(prints) == 4


@pytest.mark.parametrize(("wrote", "opens"), [("int8", "none"), ("none", "int8"), ("int8", "fp8-e4m3")])
def test_i1_a_start_under_another_codec_adopts_nothing_from_the_disk(
    tmp_path: Path, wrote: CodecName, opens: CodecName
) -> None:
    layout = layout_of()

    def open_as(codec: CodecName) -> DiskMedium:
        print_of = msgspec.structs.replace(LAYOUT, kv_codec=codec)
        size = encoded_bytes(layout, codec)
        room = 4 * layout.block_bytes + 100_000
        disk = DiskMedium.open(
            tmp_path, layout=print_of.digest(), block_size=BLOCK_SIZE, block_bytes=size, capacity_bytes=room
        )
        disk.set_secret(UID, SECRET)
        return disk

    (facts,) = chain(1)
    medium = CodecMedium(open_as(wrote), layout, wrote)
    medium.write_many([(0, facts, raw(block(layout)))])
    medium.close()
    again = open_as(wrote)
    assert adopt_all(again) == {0: facts}, "the same codec goes on where it was"
    expected = decode(layout, wrote, encode(layout, wrote, raw(block(layout))))
    assert CodecMedium(again, layout, wrote).read(0, facts) == expected
    again.close()
    other = open_as(opens)
    assert adopt_all(other) == {}
    other.close()
