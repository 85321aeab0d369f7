"""One model's weights, and the one thing done with them: a packed forward over pool memory.

Role: turn a `StepBatch` into logits while the model's KV goes into the arena. Invariants: one forward per step,
whatever the number of sequences; ``computed`` of a sequence advances only after a forward in which every layer wrote
every token; a model that is not proven is refused before its weights are read.
Must not know: requests, scheduling, sampling, block keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from kvgrove_daemon.cache.arena import TORCH_DTYPES, Arena
from kvgrove_daemon.engine.adapters import Adapter, merge
from kvgrove_daemon.engine.attention import ATTENTION_NAME, PagedCache, StepContext, register
from kvgrove_daemon.engine.errors import CacheNotAdvanced, UnsupportedModel
from kvgrove_daemon.engine.families import ModelShape, shape_of
from kvgrove_daemon.engine.model_source import ModelSource
from kvgrove_daemon.engine.sequence import StepBatch


class ModelRunner:
    """A loaded model bound to an arena of its layout. Single-threaded."""

    def __init__(self, model: Any, arena: Arena) -> None:
        """``model`` is a transformers causal LM loaded with ``attn_implementation="kvgrove_paged"``."""
        self.shape: ModelShape = shape_of(model.config)
        self.arena = arena
        self.layout = arena.layout
        if self.shape.layout(self.layout.dtype, self.layout.block_size) != self.layout:
            raise UnsupportedModel(
                f"the arena's layout {self.layout} does not fit the model {self.shape}", field="layout"
            )
        if model.dtype != TORCH_DTYPES[self.layout.dtype]:
            raise UnsupportedModel(f"weights in {model.dtype} need a KV dtype equal to theirs", field="dtype")
        if model.config._attn_implementation != ATTENTION_NAME:
            raise UnsupportedModel(
                f"load the model with attn_implementation={ATTENTION_NAME!r}", field="attn_implementation"
            )
        self.forwards = 0
        """How many forwards ran, ever."""
        self._model = model.eval()
        # transformers renamed the argument; the wrong name would be swallowed by **kwargs without a word.
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @classmethod
    def load(cls, source: ModelSource, arena: Arena, adapters: Iterable[Adapter] = ()) -> ModelRunner:
        """Read the weights (safetensors only) to the arena's device, in the dtype of its layout, ``adapters`` merged.

        Takes seconds.
        """
        register()
        disable_progress_bar()  # a daemon's stderr is its log
        model = AutoModelForCausalLM.from_pretrained(
            source.path,
            dtype=TORCH_DTYPES[arena.layout.dtype],
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            use_safetensors=True,
        )
        return cls(merge(model, adapters).to(arena.pool.device), arena)

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> torch.Tensor:
        """Compute every slice; answers ``(their logit rows, vocab_size)`` in their order, in the model's dtype.

        Mutates the arena and ``computed`` of the sequences. Raises ValueError when a slice is empty, repeated or past
        the context, RuntimeError (torch) when the forward fails; the sequences then stand where they stood.
        """
        self._check(batch)
        device = self.arena.pool.device
        tokens = np.concatenate([np.asarray(part.tokens, dtype=np.int64) for part in batch.slices])
        positions: list[np.ndarray] = []
        kept: list[int] = []
        row = 0
        for part in batch.slices:
            past, count = part.sequence.computed, len(part.tokens)
            positions.append(np.arange(past, past + count))
            row += count
            kept += range(row - part.logit_rows, row)
        step = StepContext.of(batch, self.arena.pool)
        cache = PagedCache(step)
        output = self._model(
            input_ids=torch.from_numpy(tokens)[None].to(device),
            position_ids=torch.from_numpy(np.concatenate(positions))[None].to(device),
            use_cache=True,
            logits_to_keep=torch.tensor(kept, dtype=torch.int64, device=device),
            kvgrove_step=step,
            **{self._cache_argument: cache},
        )
        self.forwards += 1
        if cache.written != {batch.num_tokens}:
            raise CacheNotAdvanced(
                f"layers wrote {sorted(cache.written)} tokens of {batch.num_tokens}: the model bypasses the cache"
            )
        for part in batch.slices:
            part.sequence.computed += len(part.tokens)
        logits: torch.Tensor = output.logits[0]
        return logits

    def _check(self, batch: StepBatch) -> None:
        if not batch.slices:
            raise ValueError("a step needs at least one slice")
        if len({id(part.sequence) for part in batch.slices}) != len(batch.slices):
            raise ValueError("a sequence can be in a step only once: its slices would have to see each other")
        for part in batch.slices:
            if len(part.tokens) == 0:
                raise ValueError("a slice needs at least one token")
            if (end := part.sequence.computed + len(part.tokens)) > self.shape.max_context:
                raise ValueError(f"{end} tokens exceed the model's context of {self.shape.max_context}")
