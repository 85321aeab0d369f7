"""The rig that proves reuse exact: our engine and the plain model side by side.

`Rig.reuse` computes a prefix in one request, lets another request read those very blocks, and answers the logits of
the second; `Rig.cold` answers what the plain transformers model says with no cache of ours at all.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from kvgrove_daemon.cache.arena import TORCH_DTYPES, SharedMemoryArena
from kvgrove_daemon.cache.runs import RunAllocator
from kvgrove_daemon.cache.segments import segment_name
from kvgrove_daemon.engine.attention import ATTENTION_NAME, register
from kvgrove_daemon.engine.model_source import open_model
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.sequence import BlockTable, SequenceState, Slice, StepBatch

DECODED = 3
"""Tokens decoded after each prompt; they are given, not sampled, so that two runs stay comparable."""

_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class Prompt:
    """``tokens`` of which the first ``reused`` come out of the cache, and the given tokens that follow."""

    tokens: np.ndarray
    reused: int
    given: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        return np.concatenate([self.tokens, self.given])


@dataclass(frozen=True)
class Check:
    """Whether logits are as close to the cold run as the promise says."""

    passed: bool
    detail: str

    @classmethod
    def absolute(cls, ours: torch.Tensor, cold: torch.Tensor, tolerance: float) -> Check:
        """fp32: within ``tolerance``, and the same best token."""
        difference = (ours - cold).abs().max().item()
        same = bool((ours.argmax(-1) == cold.argmax(-1)).all())
        return cls(
            difference <= tolerance and same, f"differs by {difference:.3g} of {tolerance:g}, same argmax: {same}"
        )

    @classmethod
    def against_fp32(cls, ours: torch.Tensor, cold: torch.Tensor, exact: torch.Tensor, factor: float) -> Check:
        """Lower precision: no farther from the fp32 run than ``factor`` times the plain run of that precision is.

        Distance is Euclidean over all logits: the largest single one is the luck of one rounding.
        """
        mine, plain = ((each.float() - exact).norm().item() for each in (ours, cold))
        return cls(mine <= factor * plain, f"{mine:.3g} from fp32, the plain run {plain:.3g}")


class Rig:
    """A runner over its own arena, and the plain models to compare with."""

    def __init__(self, directory: Path, dtype: str, *, block_size: int = 16, num_slots: int = 160) -> None:
        register()
        layout = open_model(directory).shape.layout(dtype, block_size)
        self.arena = SharedMemoryArena(layout, num_slots, segment_name(f"test{os.getpid()}", "0", next(_numbers)))
        self.model = _load(directory, dtype, ATTENTION_NAME)
        self.runner = ModelRunner(self.model, self.arena)
        self.plain = _load(directory, dtype, "sdpa")
        self.plain32 = self.plain if dtype == "float32" else _load(directory, "float32", "sdpa")
        self.block_size = block_size
        self.vocab = self.runner.shape.vocab_size
        self._random = np.random.default_rng(11)
        self._allocator = RunAllocator(num_slots)

    def close(self) -> None:
        self.arena.close()

    def prompt(self, length: int, reused: int = 0) -> Prompt:
        tokens = self._random.integers(3, self.vocab, length + DECODED)
        return Prompt(tokens[:length], reused, tokens[length:])

    @torch.inference_mode()
    def cold(self, prompt: Prompt, *, fp32: bool = False) -> torch.Tensor:
        """Logits after the prompt and after each given token but the last, by the plain model: ``(DECODED, vocab)``."""
        model = self.plain32 if fp32 else self.plain
        logits = model(torch.from_numpy(prompt.whole)[None]).logits[0]
        return logits[len(prompt.tokens) - 1 : -1]

    def reuse(
        self,
        prompts: Sequence[Prompt],
        *,
        fragmented: bool = False,
        meddle: Callable[[list[list[int]]], None] = lambda _slots: None,
    ) -> list[torch.Tensor]:
        """The same logits by our engine, all ``prompts`` in each step, prefixes read from other requests' blocks.

        ``meddle`` is called with the slots of the prefixes before anyone reads them.
        """
        self._allocator = RunAllocator(self.arena.num_slots)
        self.arena.pool.fill_(float("nan"))  # whoever reads what was never written shall be seen
        prefixes = [self._compute_elsewhere(prompt, fragmented) for prompt in prompts]
        meddle(prefixes)
        sequences = []
        for prompt, prefix in zip(prompts, prefixes, strict=True):
            fresh = self._slots(len(prompt.whole) - prompt.reused, fragmented)
            sequences.append(SequenceState(BlockTable(self.block_size, prefix + fresh), prompt.reused))
        steps = [[prompt.tokens[prompt.reused :] for prompt in prompts]]
        steps += [[prompt.given[i : i + 1] for prompt in prompts] for i in range(DECODED - 1)]
        logits = [self.runner.step(_batch(sequences, tokens)) for tokens in steps]
        return [torch.stack([step[i] for step in logits]) for i in range(len(prompts))]

    def shift_positions(self) -> Callable[[], None]:
        """A fault from now on: every position that the model is told is one too many. Answers what ends it."""

        def shift(_module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, object]:
            return args, kwargs | {"position_ids": kwargs["position_ids"] + 1}

        return self.model.register_forward_pre_hook(shift, with_kwargs=True).remove

    def corrupt(self, slot: int) -> None:
        """A fault: every bit pattern of one block is wrong in its sign. (Its tokens merely in another order, keys with
        their values, would rightly change nothing.)"""
        self.arena.pool[:, :, slot * self.block_size : (slot + 1) * self.block_size].neg_()

    def _compute_elsewhere(self, prompt: Prompt, fragmented: bool) -> list[int]:
        """Let another request, with another end, compute the prefix; answers the prefix's slots."""
        if not prompt.reused:
            return []
        other = np.concatenate([prompt.tokens[: prompt.reused], self._random.integers(3, self.vocab, 5)])
        slots = self._slots(len(other), fragmented)
        self.runner.step(_batch([SequenceState(BlockTable(self.block_size, slots))], [other]))
        return slots[: prompt.reused // self.block_size]

    def _slots(self, tokens: int, fragmented: bool) -> list[int]:
        blocks = -(-tokens // self.block_size)
        if not fragmented:
            return [slot for run in self._allocator.allocate(blocks) or [] for slot in run.slots()]
        # Every second slot of a stretch, shuffled: no two blocks of a sequence are neighbours.
        stretch = [slot for run in self._allocator.allocate(2 * blocks) or [] for slot in run.slots()]
        return [int(slot) for slot in self._random.permutation(stretch[::2])]


def _batch(sequences: Sequence[SequenceState], tokens: Sequence[np.ndarray]) -> StepBatch:
    return StepBatch(tuple(Slice(s, t, wants_logits=True) for s, t in zip(sequences, tokens, strict=True)))


def _load(directory: Path, dtype: str, attention: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=TORCH_DTYPES[dtype], attn_implementation=attention, local_files_only=True
    ).eval()
