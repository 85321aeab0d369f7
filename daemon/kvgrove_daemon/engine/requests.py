"""What goes into the engine loop, and what comes out of it.

Order of events of one request: ``BlocksComputed``, ``PromptScored`` and ``Prefilled`` while its prompt is computed,
then ``TokenOut`` for each token of the answer, ``BlocksComputed`` whenever one more block is full, and ``Finished`` or
``Failed`` last. By the time of a ``BlocksComputed`` every token in the blocks it names was in the prompt or in an
earlier ``TokenOut``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from kvgrove_protocol.data import Sampling, TokenLogprob
from kvgrove_protocol.errors import KvgroveError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FinishReason = Literal["stop", "length"]
FinishDetail = Literal["stop_token", "max_new_tokens", "context", "pool"]


class SlotSource(Protocol):
    """Who gives a decoding sequence more slots. Called between forwards, from the loop's thread."""

    def extend(self, request_id: str, blocks: int) -> list[int] | None:
        """Slots for ``blocks`` more blocks, or None where there is no room."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A prompt to compute and continue. Its slots stay the caller's: the loop writes to those from ``computed`` on."""

    request_id: str
    generation: bytes
    tokens: npt.NDArray[np.int64] | Sequence[int]
    computed: int
    """Leading tokens whose KV is in ``slots`` already: a multiple of the block size, fewer than the prompt has."""
    slots: Sequence[int]
    """The block table; at least the whole prompt fits."""
    sampling: Sampling
    max_new_tokens: int
    """0 computes the prompt and nothing else: a warm-up."""
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    prompt_logprobs: int | None = None
    """Alternatives beside each prompt token's log probability; None: no log probabilities of the prompt. Only of what
    is computed: ``computed`` must be 0 for those of all."""


@dataclass(frozen=True, slots=True)
class BlocksComputed:
    """Blocks ``[0, upto_block)`` have the KV of all their tokens in every layer."""

    request_id: str
    upto_block: int


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log probabilities of further tokens of the prompt, in order, from its second on."""

    request_id: str
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The whole prompt is computed; ``reused`` of its tokens were there before."""

    request_id: str
    reused: int
    computed: int


@dataclass(frozen=True, slots=True)
class TokenOut:
    """One token of the answer. A stop token ends the answer and is not part of it."""

    request_id: str
    token_id: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete; the request's slots are not touched any more."""

    request_id: str
    reason: FinishReason
    detail: FinishDetail
    """Which stop or which limit it was: ``pool`` means that there was no room for another block."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot go on; its slots are not touched any more."""

    request_id: str
    error: KvgroveError


EngineEvent = BlocksComputed | PromptScored | Prefilled | TokenOut | Finished | Failed


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What a router estimates a node's finish time from."""

    queued_prefill_tokens: int
    running: int
    """Requests begun and not finished."""
    waiting: int
    prefill_tokens_per_s: float
    decode_steps_per_s: float
