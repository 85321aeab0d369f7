"""Codecs of the lower tiers: a block's bytes, smaller and a little wrong, or as they are.

Role: encode and decode one block of a `KVLayout`, on the host. Invariants: a codec other than ``none`` is part of the
generation (`GenerationInputs.kv_codec`) and of the layout fingerprint, so what it wrote is never met by a namespace
that asked for exact KV; what decodes has the shape and the bound of error below, or is refused; a block that was
decoded and is encoded again stays what it is, up to rounding, so errors do not add up.
Must not know: tiers, media, keys.

An encoded block is all codes ``[layer][K, V][token][head][dim]`` (int4: two to a byte, the even one in the low half),
then all scales ``[layer][K, V][head]`` as little-endian float32. With *m* the largest magnitude among the values of one
head in the block's K (or V) of one layer, the largest error of each of these values x is, beside one rounding to the
layout's dtype:

========  ===========  =====================================================
codec     bits         error
========  ===========  =====================================================
none      dtype's      0
int8      8            m / 254 (half a step of m / 127)
fp8-e4m3  8            the larger of abs(x) / 16 and m / 458752
int4      4            m / 14 (half a step of m / 7)
========  ===========  =====================================================

To each come one or two roundings of float32. Where m is below 127 (fp8-e4m3: 448, int4: 7) times 2**-126, all is zero.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_kernels import numbers, ops
from kvgrove_protocol.errors import Malformed, Retryable, Terminal

LossyCodec = Literal["int8", "fp8-e4m3", "int4"]
CodecName = Literal["none", LossyCodec]
"""As ``spec.kvFormat.codec`` of a ModelVersion has it."""

LOSSY_CODECS: Final[tuple[LossyCodec, ...]] = get_args(LossyCodec)
_KERNELS: Final[MappingProxyType[LossyCodec, numbers.Codec]] = MappingProxyType(
    {"int8": "int8", "fp8-e4m3": "e4m3", "int4": "int4"}
)
_STORAGE: Final = MappingProxyType({"float32": np.float32, "float16": np.float16, "bfloat16": np.int16})
_BFLOAT16_EXPONENT: Final = 0x7F80
_SCALE: Final = np.dtype("<f4")


class CodecUnsupported(Terminal):
    """The layout's blocks cannot be encoded by this codec."""

    code = "codec_unsupported"


class NotEncodable(Retryable):
    """This block holds NaN or infinity, which a scale for the rest of its head cannot stand beside."""

    code = "kv_not_finite"


def as_codec(name: str) -> CodecName:
    """Narrow a codec's name; raises `CodecUnsupported` for an unknown one."""
    if name not in get_args(Literal["none"]) + LOSSY_CODECS:
        known = ", ".join(("none", *LOSSY_CODECS))
        raise CodecUnsupported(
            f"spec.kvFormat.codec: must be one of {known}, not {name!r}", field="spec.kvFormat.codec"
        )
    return cast(CodecName, name)


def require_codec(layout: KVLayout, codec: CodecName) -> None:
    """Raises `CodecUnsupported` where ``codec`` cannot encode blocks of ``layout``."""
    if codec != "none" and layout.head_dim % 8:
        raise CodecUnsupported(
            f"spec.kvFormat.codec: {codec} needs heads of a multiple of 8 elements, this model's have "
            f"{layout.head_dim}; use none",
            field="spec.kvFormat.codec",
        )


def encoded_bytes(layout: KVLayout, codec: CodecName) -> int:
    """Bytes of one encoded block."""
    if codec == "none":
        return layout.block_bytes
    return _code_bytes(layout, codec) + _scale_count(layout) * _SCALE.itemsize


def encode(layout: KVLayout, codec: CodecName, block: bytes | memoryview) -> bytes | memoryview:
    """``encoded_bytes`` bytes for one block in the order ``[layer][K, V][token][head][dim]``; ``none``: it itself.

    Raises `NotEncodable` for values that are not finite, ValueError for another size.
    """
    if len(block) != layout.block_bytes:
        raise ValueError(f"a block has {layout.block_bytes} bytes, not {len(block)}")
    if codec == "none":
        return block
    pool = np.frombuffer(block, _STORAGE[layout.dtype]).reshape(layout.pool_shape(1))
    if not _finite(pool, layout):
        raise NotEncodable(f"the block holds values that are not finite: {codec} cannot store it", field="body")
    found = ops.quantize_blocks(pool, [0], block_size=layout.block_size, codec=_KERNELS[codec], dtype=layout.dtype)
    return cast(bytes, found.codes.tobytes() + found.scales.astype(_SCALE).tobytes())


def decode(layout: KVLayout, codec: CodecName, body: bytes | memoryview) -> bytes | memoryview:
    """The opposite of `encode`, up to the codec's error. Raises `Malformed` for what `encode` cannot have written."""
    if len(body) != encoded_bytes(layout, codec):
        raise Malformed("body", f"a block under {codec} has {encoded_bytes(layout, codec)} bytes, not {len(body)}")
    if codec == "none":
        return body
    border = _code_bytes(layout, codec)
    layers, planes, tokens, heads, _ = layout.pool_shape(1)
    codes = np.frombuffer(body, np.uint8, count=border).reshape(layers, planes, tokens, heads, -1)
    scales = np.frombuffer(body, _SCALE, offset=border).astype(np.float32).reshape(layers, planes, 1, heads)
    if not (np.isfinite(scales) & (scales >= 0)).all():
        raise Malformed("body", "a scale is negative or not finite")
    pool: npt.NDArray[Any] = np.empty(layout.pool_shape(1), _STORAGE[layout.dtype])
    ops.dequantize_blocks(
        ops.Quantised(codes, scales, _KERNELS[codec]), pool, [0], block_size=layout.block_size, dtype=layout.dtype
    )
    return pool.tobytes()


def _code_bytes(layout: KVLayout, codec: LossyCodec) -> int:
    elements = layout.block_bytes // layout.item_bytes
    return elements * numbers.CODE_BITS[_KERNELS[codec]] // 8


def _scale_count(layout: KVLayout) -> int:
    return layout.num_layers * 2 * layout.num_kv_heads


def _finite(pool: npt.NDArray[Any], layout: KVLayout) -> bool:
    if layout.dtype == "bfloat16":
        return not ((pool & _BFLOAT16_EXPONENT) == _BFLOAT16_EXPONENT).any()
    return bool(np.isfinite(pool).all())
