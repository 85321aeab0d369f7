"""Attention over pool memory: one packed step of many sequences, no mask and no gathered context.

Role: the attention function (``kvgrove_paged``) and the `Cache` that transformers models call. New K and V (after
RoPE) go straight into pool slots; each slice then attends to *views* of the pool, one kernel call per contiguous
run, and the partial results are merged by their log-sum-exp (FlashAttention-2, arXiv 2307.08691, section 2.3).

Invariants: earlier tokens are fully visible, so runs before the slice need no mask; only a slice's own tokens are
causal, and those are one kernel call on the projections that were just computed, however fragmented the pool is. A
single new token sees everything including itself, so it needs no causal call at all.
Must not know: requests, sampling, which family a model belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from kvgrove_daemon.engine.sequence import SegmentLayout, StepBatch

ATTENTION_NAME: Final = "kvgrove_paged"
MAX_VIEWS: Final = 8
"""Above this many runs, one gather costs less than a kernel call and a merge for each."""

Pair = tuple[torch.Tensor, torch.Tensor]

_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(slots=True)
class StepContext:
    """What the layers of one forward share. Lives for that forward only."""

    pool: torch.Tensor
    segments: list[SegmentLayout]
    positions: torch.Tensor
    """Arena position of each packed row (int64)."""
    scratch: torch.Tensor
    """Where gathered context lies, ``(2, blocks, tokens of a block, kv_heads, head_dim)``: one layer's at a time, so
    that it stays in the processor's caches."""

    @classmethod
    def of(cls, batch: StepBatch, pool: torch.Tensor) -> StepContext:
        segments, positions, begin, gathered = [], [], 0, 0
        views = MAX_VIEWS if pool.device.type == "cpu" else 0
        for part in batch.slices:
            table, past, count = part.sequence.table, part.sequence.computed, len(part.tokens)
            visible = past + 1 if count == 1 else past
            segment = SegmentLayout(begin, begin + count, past, visible, table.spans(visible))
            if len(segment.spans) > views:
                blocks = -(-visible // table.block_size)
                segment.slots = torch.tensor(table.slots[:blocks], device=pool.device)
                gathered = max(gathered, blocks)
            segments.append(segment)
            positions.append(torch.from_numpy(table.positions(past, past + count)))
            begin += count
        size = batch.slices[0].sequence.table.block_size
        scratch = pool.new_empty((2, gathered, size, *pool.shape[3:]))
        return cls(pool, segments, torch.cat(positions).to(pool.device), scratch)

    def context(self, layer: int, segment: SegmentLayout) -> list[Pair]:
        """K and V that ``segment`` sees in full in ``layer``, each ``(tokens, kv_heads, head_dim)``: views of the pool,
        or where those would be many, one gathered copy that is valid until the next call."""
        keys, values = self.pool[layer]
        if segment.slots is None:
            return [(keys[a:b], values[a:b]) for a, b in segment.spans]
        blocks = len(segment.slots)
        part = self.scratch[:, :blocks]
        by_block = self.pool[layer].view(2, -1, part[0, 0].numel())
        torch.index_select(by_block, 1, segment.slots, out=part.flatten(2))
        k, v = part.flatten(1, 2)[:, : segment.visible]
        return [(k, v)]


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One layer's view of the pool for one step."""

    is_sliding = False

    def __init__(self, step: StepContext, layer: int) -> None:
        super().__init__()
        self.keys, self.values = step.pool[layer]
        self.is_initialized = True
        self.written = 0
        self._step = step

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to make: the pool is there before any model."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new KV, shaped ``(1, kv_heads, tokens, head_dim)``, into the step's slots; returned unchanged."""
        self.keys.index_copy_(0, self._step.positions, key_states[0].transpose(0, 1))
        self.values.index_copy_(0, self._step.positions, value_states[0].transpose(0, 1))
        self.written += key_states.shape[2]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return self.written

    def get_max_length(self) -> int:
        return int(self.keys.shape[0])


class PagedCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """The `Cache` of one step; its layers write into the pool."""

    def __init__(self, step: StepContext) -> None:
        super().__init__(layers=[PagedLayer(step, layer) for layer in range(step.pool.shape[0])])

    @property
    def written(self) -> set[int]:
        """How many tokens each layer has written: one number when every layer took part."""
        return {layer.written for layer in self.layers}


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    kvgrove_step: StepContext,
    scaling: float | None = None,
    **_kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls: ``query`` is ``(1, heads, tokens, head_dim)``; ``key``, ``value`` the new tokens' own.

    Answers ``(1, tokens, heads, head_dim)`` and no weights. Arguments that would change the result (sinks, softcap,
    windows) never get here: `families.shape_of` refuses such models at load.
    """
    if attention_mask is not None:
        raise ValueError("kvgrove_paged builds no mask and takes none")
    layer = cast(int, module.layer_idx)
    out = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
    for segment in kvgrove_step.segments:
        rows = slice(segment.begin, segment.end)
        own = None if segment.is_single else (key[:, :, rows], value[:, :, rows])
        part = _attend(query[:, :, rows], own, kvgrove_step.context(layer, segment), scaling)
        out[:, rows] = part.transpose(1, 2)
    return out, None


def _attend(query: torch.Tensor, own: Pair | None, context: list[Pair], scaling: float | None) -> torch.Tensor:
    """``query`` over its ``context``, visible in full, and its ``own`` tokens, causal; shaped like ``query``."""
    if query.device.type != "cpu":
        return _attend_masked(query, own, context, scaling)
    partials: list[Pair] = []
    if own is not None:
        partials.append(_flash_cpu(query, *own, 0.0, True, scale=scaling))
    partials.extend(_visible(query, part, scaling) for part in context)
    return partials[0][0] if len(partials) == 1 else _merge(partials)


def _visible(query: torch.Tensor, context: Pair, scaling: float | None) -> Pair:
    """Every row sees all of ``context``, K and V as ``(tokens, kv_heads, head_dim)`` views that are read in place.

    Answers ``(1, heads, rows, head_dim)`` and the log-sum-exp ``(1, heads, rows)``, fp32.
    """
    k, v = (part.transpose(0, 1)[None] for part in context)
    _, heads, rows, dim = query.shape
    kv_heads = k.shape[1]
    if rows > 1:
        out, lse = _flash_cpu(query, k, v, 0.0, False, scale=scaling)  # pairs query heads with KV heads itself
        return out, lse
    # One token: the query heads of a group become rows of one head, so that each KV head is read once, not once per
    # query head.
    out, lse = _flash_cpu(query.reshape(1, kv_heads, heads // kv_heads, dim), k, v, 0.0, False, scale=scaling)
    return out.reshape(1, heads, 1, dim), lse.reshape(1, heads, 1)


def _merge(partials: list[Pair]) -> torch.Tensor:
    """Softmax over the union from softmaxes over the parts: weights are ``exp(lse_i - logsumexp(lse))``, in fp32."""
    weights = torch.softmax(torch.stack([lse for _, lse in partials]), dim=0).unsqueeze(-1)
    total = partials[0][0] * weights[0]
    for (out, _), weight in zip(partials[1:], weights[1:], strict=True):
        total.addcmul_(out, weight)
    return total.to(partials[0][0].dtype)


def _attend_masked(query: torch.Tensor, own: Pair | None, context: list[Pair], scaling: float | None) -> torch.Tensor:
    """The portable form, for devices whose kernel gives no log-sum-exp: one contiguous context, explicit mask."""
    parts = [tuple(part.transpose(0, 1)[None] for part in pair) for pair in context]
    past, rows = sum(k.shape[2] for k, _ in parts), query.shape[2]
    mask = None
    if own is not None:
        parts.append(own)
        mask = torch.ones(rows, past + rows, dtype=torch.bool, device=query.device).tril(past)
    k, v = (torch.cat(pieces, dim=2) for pieces in zip(*parts, strict=True))
    return scaled_dot_product_attention(query, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)


def no_mask(*_args: Any, **_kwargs: Any) -> None:
    """The mask function that belongs to `paged_attention`: there is none to build."""


def register() -> None:
    """Make ``attn_implementation="kvgrove_paged"`` known to transformers. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, no_mask)
