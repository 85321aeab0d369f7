"""The documented bound of error of each codec (`kvgrove_daemon.cache.tiers.codec`), value by value."""

from __future__ import annotations

import torch

from kvgrove_daemon.cache.arena import TORCH_DTYPES
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.tiers.codec import LossyCodec

HALF_STEP = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Relative error of one rounding."""


def values_of(data: bytes | memoryview, layout: KVLayout) -> torch.Tensor:
    """One block's values, ``(layers, 2, tokens, heads, dim)`` in fp64."""
    return torch.frombuffer(bytearray(data), dtype=TORCH_DTYPES[layout.dtype]).view(layout.pool_shape(1)).double()


def bounds_of(exact: torch.Tensor, codec: LossyCodec) -> torch.Tensor:
    """The largest error of each value of a block, but for rounding."""
    largest = exact.abs().amax(dim=(2, 4), keepdim=True).expand_as(exact)
    match codec:
        case "int8":
            return largest / 254
        case "fp8-e4m3":
            return torch.maximum(exact.abs() / 16, largest / 458752)
        case "int4":
            return largest / 14


def rounding_of(exact: torch.Tensor, bounds: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """What roundings of fp32, and one to the layout's dtype, may add."""
    largest = exact.abs().amax(dim=(2, 4), keepdim=True)
    return 2 * HALF_STEP["float32"] * largest + HALF_STEP[layout.dtype] * (exact.abs() + bounds) + 2.0**-24


def error_over_bound(exact: torch.Tensor, after: torch.Tensor, codec: LossyCodec, layout: KVLayout) -> torch.Tensor:
    """Each value's error over what is allowed: at most 1 where the codec keeps its word."""
    bounds = bounds_of(exact, codec)
    return (after - exact).abs() / (bounds + rounding_of(exact, bounds, layout))
