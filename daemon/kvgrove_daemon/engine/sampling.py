"""From logits to the next token.

Role: temperature, nucleus (top-p) and greedy choice, log probabilities, all per row. Invariants: temperature 0 is the
arg max and draws nothing; a request with a seed draws from a generator of its own, so that its answer does not depend
on its neighbours in the batch; log probabilities are the model's, before temperature and top-p.
Must not know: sequences, scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvgrove_protocol.data import Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen token, and its log probability where that was asked for."""

    token_id: int
    logprob: TokenLogprob | None = None


class Sampler:
    """How one request chooses. Mutable: its generator advances."""

    def __init__(self, settings: Sampling, entropy: int) -> None:
        """``entropy`` seeds the generator where the request brings no seed."""
        seed = entropy if settings.seed is None else settings.seed
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed & (2**63 - 1))

    @property
    def is_greedy(self) -> bool:
        return self.settings.temperature == 0.0


def choose(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[Choice | None]:
    """One choice per row of ``logits``, ``(len(samplers), vocab)``, any float dtype; None for one with NaN or +inf."""
    rows = logits.float().cpu()
    best = rows.argmax(dim=-1).tolist()  # all greedy rows in one pass
    usable = torch.isfinite(rows.amax(dim=-1)).tolist()  # amax carries NaN on
    choices: list[Choice | None] = []
    for row, greedy, is_usable, sampler in zip(rows, best, usable, samplers, strict=True):
        if not is_usable:
            choices.append(None)
            continue
        token = greedy if sampler.is_greedy else _draw(row, sampler)
        top = sampler.settings.top_logprobs
        choices.append(Choice(token, None if top is None else _logprob(row, token, top)))
    return choices


def _draw(row: torch.Tensor, sampler: Sampler) -> int:
    settings = sampler.settings
    probabilities = torch.softmax(row / settings.temperature, dim=-1)
    if settings.top_p >= 1.0:
        return int(torch.multinomial(probabilities, 1, generator=sampler.generator))
    ordered, tokens = probabilities.sort(descending=True, stable=True)
    # The smallest set that reaches top_p: a token stays while those before it have not reached it.
    ordered[ordered.cumsum(dim=-1) - ordered >= settings.top_p] = 0.0
    return int(tokens[torch.multinomial(ordered, 1, generator=sampler.generator)])


def _logprob(row: torch.Tensor, token: int, top: int) -> TokenLogprob:
    logprobs = torch.log_softmax(row, dim=-1)
    values, tokens = logprobs.topk(min(top, row.shape[0]))
    return TokenLogprob(token, float(logprobs[token]), list(zip(tokens.tolist(), values.tolist(), strict=True)))
