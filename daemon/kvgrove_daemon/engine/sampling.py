"""From logits to the next token.

Role: penalties, temperature, top-k, nucleus (top-p) and greedy choice, log probabilities, all per row. Invariants:
temperature 0 is the arg max and draws nothing; a request with a seed draws from a generator of its own, so that its
answer does not depend on its neighbours in the batch; log probabilities are the model's, before anything is done to
its logits. Penalties are OpenAI's: logit - presence * (count > 0) - frequency * count, over the answer's own tokens.
Must not know: sequences, scheduling.
"""

from __future__ import annotations

from collections import Counter
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
    """How one request chooses. Mutable: its generator advances, and it counts what it has chosen."""

    def __init__(self, settings: Sampling, entropy: int) -> None:
        """``entropy`` seeds the generator where the request brings no seed."""
        seed = entropy if settings.seed is None else settings.seed
        self.settings = settings
        self.generator = torch.Generator().manual_seed(seed & (2**63 - 1))
        self._said: Counter[int] = Counter()

    @property
    def is_greedy(self) -> bool:
        return self.settings.temperature == 0.0

    @property
    def bends(self) -> bool:
        """Whether it changes logits before it chooses."""
        return bool(self._said) and (self.settings.presence_penalty != 0.0 or self.settings.frequency_penalty != 0.0)

    def bend(self, row: torch.Tensor) -> None:
        """Take the penalties from ``row``, in place."""
        tokens = torch.tensor(list(self._said))
        counts = torch.tensor(list(self._said.values()), dtype=row.dtype)
        row[tokens] -= self.settings.presence_penalty + self.settings.frequency_penalty * counts

    def took(self, token_id: int) -> None:
        if self.settings.presence_penalty or self.settings.frequency_penalty:
            self._said[token_id] += 1


def choose(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[Choice | None]:
    """One choice per row of ``logits``, ``(len(samplers), vocab)``, any float dtype; None for one with NaN or +inf."""
    rows = logits.float().cpu()
    usable = torch.isfinite(rows.amax(dim=-1)).tolist()  # amax carries NaN on
    bent = rows
    if any(sampler.bends for sampler in samplers):
        bent = rows.clone()  # log probabilities are taken from the rows as they are
        for row, sampler in zip(bent, samplers, strict=True):
            if sampler.bends:
                sampler.bend(row)
    best = bent.argmax(dim=-1).tolist()  # all greedy rows in one pass
    choices: list[Choice | None] = []
    for row, own, greedy, is_usable, sampler in zip(bent, rows, best, usable, samplers, strict=True):
        if not is_usable:
            choices.append(None)
            continue
        token = greedy if sampler.is_greedy else _draw(row, sampler)
        sampler.took(token)
        top = sampler.settings.top_logprobs
        choices.append(Choice(token, None if top is None else _logprob(own, token, top)))
    return choices


def of_prompt(logits: torch.Tensor, following: Sequence[int], top: int) -> list[TokenLogprob] | None:
    """Log probabilities of a prompt's own tokens: row ``i`` of ``logits``, ``(n, vocab)``, is before ``following[i]``.

    None where the model gave NaN or +inf.
    """
    rows = logits.float().cpu()
    if not bool(torch.isfinite(rows.amax(dim=-1)).all()):
        return None
    return [_logprob(row, token, top) for row, token in zip(rows, following, strict=True)]


def _draw(row: torch.Tensor, sampler: Sampler) -> int:
    settings = sampler.settings
    scaled = row / settings.temperature
    if 0 < settings.top_k < scaled.shape[0]:
        scaled = scaled.masked_fill(scaled < scaled.topk(settings.top_k).values[-1], float("-inf"))
    probabilities = torch.softmax(scaled, dim=-1)
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
