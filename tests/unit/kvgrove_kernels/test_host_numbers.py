"""bfloat16, e4m3 and the lossy codes in NumPy, against torch and against their own definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvgrove_kernels import numbers
from kvgrove_kernels.numbers import CODECS, LARGEST_CODE, Codec


def _values(count: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    scale = np.float32(2.0) ** rng.integers(-14, 12, count).astype(np.float32)
    return (rng.standard_normal(count, dtype=np.float32) * scale).astype(np.float32)


def test_bfloat16_is_torchs() -> None:
    values = np.concatenate([_values(4096), np.array([0, -0.0, np.inf, -np.inf, 1.00390625, 3.4e38], np.float32)])
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    ours = numbers.from_float32(values, "bfloat16")
    assert np.array_equal(ours, theirs.view(torch.int16).numpy())
    assert np.array_equal(numbers.to_float32(ours, "bfloat16"), theirs.float().numpy())
    assert np.isnan(numbers.to_float32(numbers.from_float32(np.array([np.nan], np.float32), "bfloat16"), "bfloat16"))


def test_e4m3_is_torchs() -> None:
    middles = (numbers.e4m3_magnitudes()[:-1] + numbers.e4m3_magnitudes()[1:]) / 2
    values = np.clip(np.concatenate([_values(4096), middles, -middles]), -448, 448)
    theirs = torch.from_numpy(values).to(torch.float8_e4m3fn)
    ours = numbers.encode_e4m3(values)
    assert np.array_equal(ours, theirs.view(torch.uint8).numpy())
    assert np.array_equal(numbers.decode_e4m3(ours), theirs.float().numpy())


@pytest.mark.parametrize("codec", CODECS)
def test_every_code_comes_back_as_itself(codec: Codec) -> None:
    if codec == "int4":
        codes = np.arange(1, 16, dtype=np.uint8).repeat(2)
        packed = codes[0::2] | codes[1::2] << 4
    else:
        packed = np.arange(256, dtype=np.uint8)
        packed = packed[packed != 0x80] if codec == "int8" else packed[(packed & 0x7F) != 0x7F]
    assert np.array_equal(numbers.encode(numbers.decode(packed, codec), codec), packed)


@pytest.mark.parametrize("codec", CODECS)
def test_beyond_the_largest_code_is_the_largest(codec: Codec) -> None:
    far = np.array([1e30, -1e30], np.float32)
    assert np.array_equal(numbers.decode(numbers.encode(far, codec), codec), np.array([1, -1]) * LARGEST_CODE[codec])
