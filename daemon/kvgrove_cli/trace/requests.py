"""What a trace is, whatever file it came from. Knows no format and no cache."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

BLOCK_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Request:
    at_ms: float
    prompt_tokens: int
    blocks: list[int]
    """Ids from 0; equal ids mean equal prompts up to and including the block. The last may be partial."""
    session: int | None = None
    """Who asks, where the trace says it."""


@dataclass(frozen=True, slots=True)
class Trace:
    format: str
    requests: Sequence[Request]
    """By time."""
    unique_blocks: int


class BlockIds:
    """Dense ids for whatever names a block."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, names: Iterable[Hashable]) -> list[int]:
        ids = self._ids
        return [ids.setdefault(name, len(ids)) for name in names]

    def one(self, name: Hashable) -> int:
        return self._ids.setdefault(name, len(self._ids))
