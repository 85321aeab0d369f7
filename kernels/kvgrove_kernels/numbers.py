"""bfloat16, fp8-e4m3 and the lossy codes in NumPy, which has none of them.

Role: the host's meaning of the bytes that `cuda/numbers.cuh` works on, written another way (tables and searches
instead of bit arithmetic) so that the two check each other. Must not know: blocks, pools, ops.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Codec = Literal["int8", "e4m3", "int4"]
CODECS: Final[tuple[Codec, ...]] = ("int8", "e4m3", "int4")
CODE_BITS: Final = {"int8": 8, "e4m3": 8, "int4": 4}
LARGEST_CODE: Final = {"int8": np.float32(127), "e4m3": np.float32(448), "int4": np.float32(7)}

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[Any]


def to_float32(array: Bits, element: str) -> Floats:
    """A KV array's values. fp32 arrays are returned as they are, others as a copy."""
    if element == "bfloat16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def from_float32(values: Floats, element: str) -> Bits:
    """``values`` rounded to ``element``, to nearest and ties to even; bfloat16 as int16."""
    if element == "bfloat16":
        bits = values.astype(np.float32, copy=False).view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FFF), rounded).view(np.int16)
    return values.astype(element)


@cache
def e4m3_magnitudes() -> Floats:
    """The 127 finite magnitudes of e4m3, by code: 8 subnormals, then 1.xxx times a power of two, up to 448."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0)).astype(np.float32)


def encode_e4m3(values: Floats) -> npt.NDArray[np.uint8]:
    """The nearest e4m3 code of each value, ties to the even code, beyond 448 to 448."""
    magnitudes = e4m3_magnitudes()
    midpoints = (magnitudes[:-1] + magnitudes[1:]) / 2  # exact in fp32
    absolute = np.abs(values)
    below = np.searchsorted(midpoints, absolute, side="left")  # a value on a midpoint stays with the lower code,
    tie = (below < midpoints.size) & (midpoints[np.minimum(below, midpoints.size - 1)] == absolute)
    codes = below + (tie & (below % 2 == 1))  # unless that is odd
    return np.asarray(codes | np.signbit(values).astype(np.int64) << 7, dtype=np.uint8)


def decode_e4m3(codes: Bits) -> Floats:
    signed = np.where(codes >= 128, np.float32(-1), np.float32(1))
    return np.asarray(signed * e4m3_magnitudes()[np.minimum(codes & 0x7F, 126)], dtype=np.float32)


def encode(scaled: Floats, codec: Codec) -> npt.NDArray[np.uint8]:
    """Codes of values that are already divided by their scale. int4 packs two of the last axis into a byte, the even
    one in the low half, each with 8 added."""
    if codec == "e4m3":
        return encode_e4m3(scaled)
    largest = LARGEST_CODE[codec]
    whole = np.rint(np.clip(scaled, -largest, largest)).astype(np.int8)
    if codec == "int8":
        return whole.view(np.uint8)
    nibbles = (whole + 8).astype(np.uint8)
    return np.asarray(nibbles[..., 0::2] | nibbles[..., 1::2] << 4, dtype=np.uint8)


def decode(codes: npt.NDArray[np.uint8], codec: Codec) -> Floats:
    """The opposite of `encode`, scales not applied."""
    if codec == "e4m3":
        return decode_e4m3(codes)
    if codec == "int8":
        return codes.view(np.int8).astype(np.float32)
    nibbles = np.stack([codes & 0xF, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    return nibbles.astype(np.float32) - 8
