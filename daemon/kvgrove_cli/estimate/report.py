"""From a model's shape to bytes, blocks and prompts. Pure.

KV bytes of a token = 2 (K and V) x layers x KV heads x head dimension x bytes of an element: each layer keeps one key
and one value vector per KV head (Vaswani et al. 2017, section 3.2; Shazeer 2019 for one KV head shared by all, MQA;
Ainslie et al. 2023 for groups, GQA). Figures of memory tiers are the pools' own; on disk a block is one file, with
header, seal and, under a lossy codec, its scales.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from kvgrove_cli.status import columns
from kvgrove_daemon.cache.layout import DType, KVLayout
from kvgrove_daemon.cache.tiers.codec import CodecName, encoded_bytes
from kvgrove_daemon.cache.tiers.disk.shelf import BlockShape
from kvgrove_daemon.engine.families import ModelShape
from kvgrove_protocol.events import DEVICE, DISK, HOST

TIERS: Final = (DEVICE, HOST, DISK)


class TierEstimate(msgspec.Struct, frozen=True, kw_only=True):
    tier: str
    bytes: int
    block_bytes: int
    blocks: int
    tokens: int
    prompts: int
    """Of the length asked about, nothing shared between them."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    model_type: str
    attention: str
    """``MHA``, ``GQA`` or ``MQA``."""
    formula: str
    dtype: str
    bytes_per_token: int
    block_size: int
    """Tokens."""
    bytes_per_block: int
    """In memory."""
    max_context: int
    """Tokens of prompt and answer together."""
    prompt_tokens: int
    blocks_per_prompt: int
    """The last one perhaps in part."""
    bytes_per_prompt: int
    tiers: list[TierEstimate]


def estimate(
    shape: ModelShape,
    *,
    dtype: DType,
    block_size: int,
    prompt_tokens: int,
    tiers: Mapping[str, int],
    codec: CodecName = "none",
) -> Estimate:
    """``tiers``: bytes by tier. ``codec``: of the disk."""
    layout = shape.layout(dtype, block_size)
    per_prompt = layout.blocks_for(prompt_tokens)
    return Estimate(
        model_type=shape.model_type,
        attention=_attention(shape),
        formula=(
            f"2 (K and V) x {shape.num_layers} layers x {shape.num_kv_heads} KV heads x {shape.head_dim} dimensions x "
            f"{layout.item_bytes} bytes = {layout.token_bytes} bytes per token"
        ),
        dtype=dtype,
        bytes_per_token=layout.token_bytes,
        block_size=block_size,
        bytes_per_block=layout.block_bytes,
        max_context=shape.max_context,
        prompt_tokens=prompt_tokens,
        blocks_per_prompt=per_prompt,
        bytes_per_prompt=per_prompt * layout.block_bytes,
        tiers=[_tier(layout, tier, tiers[tier], per_prompt, codec) for tier in TIERS if tier in tiers],
    )


def _tier(layout: KVLayout, tier: str, size: int, per_prompt: int, codec: CodecName) -> TierEstimate:
    block_bytes = layout.block_bytes
    if tier == DISK:
        block_bytes = BlockShape(b"", layout.block_size, encoded_bytes(layout, codec)).file_bytes
    blocks = size // block_bytes
    return TierEstimate(
        tier=tier,
        bytes=size,
        block_bytes=block_bytes,
        blocks=blocks,
        tokens=blocks * layout.block_size,
        prompts=blocks // per_prompt,
    )


def _attention(shape: ModelShape) -> str:
    if shape.num_kv_heads == shape.attention["heads"]:
        return "MHA"
    return "MQA" if shape.num_kv_heads == 1 else "GQA"


def as_text(found: Estimate) -> str:
    lines = [
        f"{found.model_type}, {found.attention}, {found.dtype}, at most {found.max_context} tokens",
        found.formula,
        f"{found.bytes_per_block} bytes per block of {found.block_size} tokens",
        f"{found.bytes_per_prompt} bytes, {found.blocks_per_prompt} blocks, per prompt of {found.prompt_tokens} tokens",
    ]
    if found.tiers:
        head = ("TIER", "BYTES", "BLOCK-BYTES", "BLOCKS", "TOKENS", "PROMPTS")
        rows = [
            (each.tier, *(str(part) for part in (each.bytes, each.block_bytes, each.blocks, each.tokens, each.prompts)))
            for each in found.tiers
        ]
        lines += ["", columns(head, rows)]
    return "\n".join(lines)
