"""Where a sequence's tokens lie in the arena.

Role: the block table of one sequence, and the slice of it that one step computes. Invariants: token ``t`` lies in
slot ``slots[t // block_size]`` at offset ``t % block_size``; ``computed`` tokens have their KV in every layer, and
grows only after a whole step succeeded. Must not know: models, attention, requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

Span = tuple[int, int]
"""Arena token positions ``[start, stop)``, contiguous in memory in every layer."""


class BlockTable:
    """The slots of a sequence, in order, and the contiguous runs they form. Append-only."""

    def __init__(self, block_size: int, slots: Iterable[int] = ()) -> None:
        self.block_size = block_size
        self.slots: list[int] = []
        self._runs: list[tuple[int, int, int]] = []  # first block index, first slot, number of slots
        self.append(slots)

    def append(self, slots: Iterable[int]) -> None:
        for slot in slots:
            if self._runs and self._runs[-1][1] + self._runs[-1][2] == slot:
                index, first, length = self._runs[-1]
                self._runs[-1] = (index, first, length + 1)
            else:
                self._runs.append((len(self.slots), slot, 1))
            self.slots.append(slot)

    @property
    def capacity(self) -> int:
        """How many tokens the slots hold."""
        return len(self.slots) * self.block_size

    def spans(self, stop: int) -> list[Span]:
        """The arena spans of tokens ``[0, stop)``, in order: one per contiguous run."""
        if stop > self.capacity:
            raise ValueError(f"token {stop - 1} has no slot: capacity is {self.capacity}")
        size, spans = self.block_size, []
        for index, first, length in self._runs:
            tokens = min(length * size, stop - index * size)
            if tokens <= 0:
                break
            spans.append((first * size, first * size + tokens))
        return spans

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The arena positions of tokens ``[start, stop)``, one each: where their new KV is written."""
        if stop > self.capacity:
            raise ValueError(f"token {stop - 1} has no slot: capacity is {self.capacity}")
        tokens = np.arange(start, stop, dtype=np.int64)
        slots = np.asarray(self.slots[start // self.block_size : -(-stop // self.block_size)], dtype=np.int64)
        return slots[tokens // self.block_size - start // self.block_size] * self.block_size + tokens % self.block_size


@dataclass(slots=True)
class SequenceState:
    """A sequence as the runner sees it. Mutable: `ModelRunner.step` advances ``computed``."""

    table: BlockTable
    computed: int = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """The next tokens of one sequence in a step: positions ``[sequence.computed, computed + len(tokens))``."""

    sequence: SequenceState
    tokens: Sequence[int] | npt.NDArray[np.int64]
    wants_logits: bool
    """Whether logits after the last of ``tokens`` are wanted (a prompt's last chunk, and every decode)."""
    wants_all_logits: bool = False
    """Whether those after each of ``tokens`` are wanted: a prompt whose own tokens are to be scored."""

    @property
    def logit_rows(self) -> int:
        """How many rows of logits the slice takes of a step's."""
        return len(self.tokens) if self.wants_all_logits else int(self.wants_logits)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What one forward computes: the concatenation of its slices' tokens."""

    slices: tuple[Slice, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(part.tokens) for part in self.slices)


@dataclass(slots=True)
class SegmentLayout:
    """One slice inside a packed step, ready for attention."""

    begin: int
    """First of its rows in the packed step."""
    end: int
    past: int
    """Tokens of the sequence before this slice."""
    visible: int
    """Tokens that every row of this slice sees: the past, and for a single new token that token as well."""
    spans: list[Span] = field(default_factory=list)
    """The arena spans of the visible tokens."""
    slots: torch.Tensor | None = None
    """Of the blocks with the visible tokens, where they are gathered because the spans are many."""

    @property
    def is_single(self) -> bool:
        return self.end - self.begin == 1
