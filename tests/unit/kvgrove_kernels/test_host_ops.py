"""The ops on host arrays: what each promises, and refusals that name the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvgrove_kernels import numbers, ops
from kvgrove_kernels.errors import BadArgument
from kvgrove_kernels.numbers import CODECS, LARGEST_CODE, Codec

LAYERS, SLOTS, BLOCK, HEADS, DIM = 2, 5, 4, 2, 16


def _pool(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((LAYERS, 2, SLOTS * BLOCK, HEADS, DIM), dtype=np.float32)


def _block(pool: Any, slot: int) -> Any:
    return pool[:, :, slot * BLOCK : (slot + 1) * BLOCK]


def test_mirror_holds_blocks_in_one_piece_and_gives_them_back() -> None:
    pool = _pool()
    mirror = np.zeros((3, LAYERS, 2, BLOCK, HEADS, DIM), np.int32)
    ops.copy_blocks(pool, [4, 1], mirror, [2, 0], block_size=BLOCK, to="mirror")
    assert mirror[2].tobytes() == _block(pool, 4).tobytes()
    assert not mirror[1].any()
    other = np.zeros_like(pool)
    ops.copy_blocks(other, [0, 1], mirror, [0, 2], block_size=BLOCK, to="pool")
    assert np.array_equal(_block(other, 0), _block(pool, 1))
    assert np.array_equal(_block(other, 1), _block(pool, 4))
    assert not _block(other, 2).any()


def test_checksum_tells_every_changed_word_and_every_moved_one() -> None:
    pool = _pool()
    digest = int(ops.checksum_blocks(pool, [1], block_size=BLOCK)[0])
    words = _block(pool, 1).reshape(-1).size
    for index in range(words):
        damaged = pool.copy()
        block = _block(damaged, 1)
        place = np.unravel_index(index, block.shape)
        block.view(np.uint32)[place] ^= np.uint32(1) << np.uint32(index % 32)
        assert int(ops.checksum_blocks(damaged, [1], block_size=BLOCK)[0]) != digest
    moved = pool.copy()
    moved[:, :, [4, 5]] = moved[:, :, [5, 4]]  # two tokens of block 1 change places
    assert int(ops.checksum_blocks(moved, [1], block_size=BLOCK)[0]) != digest
    moved = pool[::-1].copy()  # two layers change places
    assert int(ops.checksum_blocks(moved, [1], block_size=BLOCK)[0]) != digest


def test_checksum_vector() -> None:
    """Stored digests must be readable by later versions: this one never changes."""
    pool = np.arange(2 * 2 * 8 * 1 * 8, dtype=np.uint8).reshape(2, 2, 8, 1, 8)
    found = [f"{digest:016x}" for digest in ops.checksum_blocks(pool, [0, 1], block_size=4).tolist()]
    assert found == ["09553d0cba7dbdc6", "e46e2eb55d851695"]


def test_checksum_of_equal_blocks_is_equal_wherever_they_lie() -> None:
    pool = _pool()
    _block(pool, 3)[...] = _block(pool, 0)
    first, second, other = ops.checksum_blocks(pool, [0, 3, 1], block_size=BLOCK)
    assert first == second != other


def test_wipe_reports_nothing_left_and_touches_no_other_block() -> None:
    pool = _pool()
    before = pool.copy()
    assert ops.wipe_blocks(pool, [2, 0], block_size=BLOCK).tolist() == [0, 0]
    for slot in range(SLOTS):
        assert np.array_equal(_block(pool, slot), _block(before, slot) * (slot not in (0, 2)))


@pytest.mark.parametrize("codec", CODECS)
def test_quantising_keeps_its_stated_error(codec: Codec) -> None:
    pool, target = _pool(), np.zeros_like(_pool())
    ids = [3, 1]
    quantised = ops.quantize_blocks(pool, ids, block_size=BLOCK, codec=codec)
    assert quantised.codes.nbytes * 8 == 2 * _block(pool, 0).size * numbers.CODE_BITS[codec]
    ops.dequantize_blocks(quantised, target, ids, block_size=BLOCK)
    for place, slot in enumerate(ids):
        exact = _block(pool, slot)
        scale = quantised.scales[:, :, place, None, :, None]
        largest = np.abs(exact).max(axis=(2, 4), keepdims=True)
        assert np.allclose(scale * LARGEST_CODE[codec], largest, rtol=1e-6)
        bound = np.maximum(np.abs(exact) / 16, scale / 1024) if codec == "e4m3" else scale / 2
        assert (np.abs(_block(target, slot) - exact) <= bound * 1.0001).all()
    assert not _block(target, 0).any()


@pytest.mark.parametrize("interleaved", [False, True])
def test_shifting_there_and_back_again(interleaved: bool) -> None:
    pool = _pool()
    before = pool.copy()
    frequencies = 10_000.0 ** (-np.arange(8) / 8)
    ops.rope_shift(pool, [1, 2], [1000, -7], frequencies, block_size=BLOCK, interleaved=interleaved)
    assert np.abs(pool - before).max() > 0.5
    assert np.array_equal(pool[:, 1], before[:, 1])
    ops.rope_shift(pool, [1, 2], [-1000, 7], frequencies, block_size=BLOCK, interleaved=interleaved)
    assert np.abs(pool - before).max() < 1e-5


def test_shifted_keys_are_those_that_the_model_would_have_made() -> None:
    """RoPE as transformers writes it, at the old positions and at the new."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    frequencies = 10_000.0 ** (-np.arange(DIM // 2) / (DIM // 2))
    keys = torch.from_numpy(_pool()[:1, 0, :BLOCK].transpose(0, 2, 1, 3).copy())  # (1, heads, tokens, dim)

    def at(first: int) -> torch.Tensor:
        angles = torch.outer(torch.arange(first, first + BLOCK, dtype=torch.float64), torch.from_numpy(frequencies))
        both = torch.cat([angles, angles], dim=-1)[None]
        _, rotated = apply_rotary_pos_emb(keys, keys, both.cos().float(), both.sin().float())
        return rotated.transpose(1, 2)

    pool = np.zeros((1, 2, BLOCK, HEADS, DIM), np.float32)
    pool[0, 0] = at(37)[0].numpy()
    ops.rope_shift(pool, [0], [4000], frequencies, block_size=BLOCK)
    assert np.abs(pool[0, 0] - at(4037)[0].numpy()).max() < 2e-5


def test_decode_equals_torchs_attention() -> None:
    rng = np.random.default_rng(5)
    pool = torch.from_numpy(_pool()).to(torch.bfloat16)
    query = torch.from_numpy(rng.standard_normal((2, 6, DIM), dtype=np.float32)).to(torch.bfloat16)
    table = torch.tensor([[4, 0, 2], [1, 3, -1]], dtype=torch.int32)
    context = torch.tensor([10, 5], dtype=torch.int32)
    got = ops.paged_attention_decode(query, pool[0, 0], pool[0, 1], table, context, block_size=BLOCK)
    assert got.dtype == torch.bfloat16
    for row, length in enumerate(context.tolist()):
        slots = [slot for slot in table[row].tolist() if slot >= 0]
        keys, values = (
            torch.cat([pool[0, part, s * BLOCK : (s + 1) * BLOCK] for s in slots])[:length].float().transpose(0, 1)
            for part in (0, 1)
        )
        want = torch.nn.functional.scaled_dot_product_attention(
            query[row].float()[None, :, None], keys[None], values[None], enable_gqa=True
        )
        assert (got[row].float() - want[0, :, 0]).abs().max() < 0.02


def test_decode_over_codes() -> None:
    pool = _pool()
    quantised = ops.quantize_blocks(pool, range(SLOTS), block_size=BLOCK, codec="int8")
    query = np.random.default_rng(6).standard_normal((1, 4, DIM), dtype=np.float32)
    where = np.array([[2, 4]], np.int32), np.array([7], np.int32)
    exact = ops.paged_attention_decode(query, pool[1, 0], pool[1, 1], *where, block_size=BLOCK)
    coded = ops.paged_attention_decode(
        query,
        quantised.codes[1, 0],
        quantised.codes[1, 1],
        *where,
        block_size=BLOCK,
        codec="int8",
        key_scales=quantised.scales[1, 0],
        value_scales=quantised.scales[1, 1],
    )
    assert 0 < np.abs(coded - exact).max() < 0.05


QUERY, TABLE, CONTEXT = np.zeros((1, 4, DIM), np.float32), np.zeros((1, 2), np.int32), np.array([3], np.int32)


def _decode(pool: np.ndarray, query: Any = QUERY, table: Any = TABLE, context: Any = CONTEXT, **more: Any) -> Any:
    keys, values = more.pop("keys", pool[0, 0]), more.pop("values", pool[0, 1])
    return ops.paged_attention_decode(query, keys, values, table, context, block_size=BLOCK, **more)


REFUSED: list[tuple[str, Callable[[np.ndarray], object]]] = [
    ("mirror", lambda p: ops.copy_blocks(p, [0], np.zeros((1, 1)), [0], block_size=BLOCK, to="mirror")),
    ("mirror", lambda p: ops.copy_blocks(p, [0], np.zeros(3, np.int16), [0], block_size=BLOCK, to="mirror")),
    ("mirror_ids", lambda p: ops.copy_blocks(p, [0], _mirror(), [1], block_size=BLOCK, to="mirror")),
    ("mirror_ids", lambda p: ops.copy_blocks(p, [0, 1], _mirror(), [0], block_size=BLOCK, to="pool")),
    ("ids", lambda p: ops.copy_blocks(p, [1, 1], _mirror(2), [0, 1], block_size=BLOCK, to="pool")),
    ("codec", lambda p: ops.quantize_blocks(p, [0], block_size=BLOCK, codec="int3")),  # type: ignore[arg-type]
    ("pool", lambda p: ops.quantize_blocks(p.astype(np.float64), [0], block_size=BLOCK, codec="int8")),
    ("pool", lambda p: ops.quantize_blocks(p[..., :12].copy(), [0], block_size=BLOCK, codec="int8")),
    ("pool", lambda p: ops.quantize_blocks(p, [0], block_size=BLOCK, codec="int8", dtype="bfloat16")),
    ("quantised.codes", lambda p: ops.dequantize_blocks(_coded(p), p, [0, 1], block_size=BLOCK)),
    ("deltas", lambda p: ops.rope_shift(p, [0], [1, 2], [0.1] * 8, block_size=BLOCK)),
    ("deltas", lambda p: ops.rope_shift(p, [0], [0.5], [0.1] * 8, block_size=BLOCK)),
    ("inverse_frequencies", lambda p: ops.rope_shift(p, [0], [1], [0.1] * 9, block_size=BLOCK)),
    ("ids", lambda p: ops.rope_shift(p, [0, 0], [1, 1], [0.1] * 8, block_size=BLOCK)),
    ("query", lambda p: _decode(p, query=np.zeros((1, 3, DIM), np.float32))),
    ("query", lambda p: _decode(p, query=np.zeros((1, 4, 12), np.float32))),
    ("query", lambda p: _decode(p, query=np.zeros((4, DIM), np.float32))),
    ("keys", lambda p: _decode(p, keys=p[0])),
    ("values", lambda p: _decode(p, values=p[0, 1, :4].copy())),
    ("block_table", lambda p: _decode(p, table=np.array([[9, 0]], np.int32))),
    ("block_table", lambda p: _decode(p, table=np.zeros((2, 2), np.int32))),
    ("block_table", lambda p: _decode(p, table=np.zeros((1, 2)))),
    ("context", lambda p: _decode(p, context=np.array([9], np.int32))),
    ("context", lambda p: _decode(p, context=np.array([3, 3], np.int32))),
    ("max_context", lambda p: _decode(p, max_context=9)),
    ("key_scales", lambda p: _decode(p, key_scales=np.zeros((SLOTS, HEADS), np.float32))),
    ("value_scales", lambda p: _decode(p, codec="int8", key_scales=np.zeros((SLOTS, HEADS), np.float32))),
    ("out", lambda p: _decode(p, out=np.zeros((1, 4, DIM), np.float16))),
]


def _mirror(slots: int = 1) -> np.ndarray:
    return np.zeros((slots, LAYERS, 2, BLOCK, HEADS, DIM), np.float32)


def _coded(pool: np.ndarray) -> ops.Quantised:
    return ops.quantize_blocks(pool, [0], block_size=BLOCK, codec="int8")


@pytest.mark.parametrize(("field", "call"), REFUSED)
def test_refusals_name_the_argument(field: str, call: Callable[[np.ndarray], object]) -> None:
    with pytest.raises(BadArgument) as refused:
        call(_pool())
    assert refused.value.field == field
