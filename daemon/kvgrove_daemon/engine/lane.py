"""The requests of one generation: what each still needs, and what a computed step means for it.

Role: the state of requests between steps. Invariants: a request is pending until its prompt is computed, then decoding;
the token chosen last has no KV yet, so a sequence of n known tokens has n - 1 computed; events come in the order that
`requests` promises. Must not know: other generations, clocks, who listens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch

from kvgrove_daemon.engine.errors import EngineFailure
from kvgrove_daemon.engine.requests import (
    BlocksComputed,
    EngineEvent,
    EngineRequest,
    Failed,
    FinishDetail,
    Finished,
    FinishReason,
    Prefilled,
    PromptScored,
    SlotSource,
    TokenOut,
)
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.sampling import Choice, Sampler, choose, of_prompt
from kvgrove_daemon.engine.scheduler import Pending, StepLimits, plan_step
from kvgrove_daemon.engine.sequence import BlockTable, SequenceState, Slice, StepBatch

GROW_BLOCKS = 4
"""Blocks asked for at a time while decoding: fewer, longer runs, at most three blocks too many."""

SCORED_ROWS = 64
"""Prompt tokens scored in one step: their logits take a vocabulary of numbers each."""


@dataclass(slots=True)
class Running:
    """One request, from `Lane.add` to its last event."""

    request: EngineRequest
    prompt: np.ndarray
    sequence: SequenceState
    sampler: Sampler
    last_token: int = -1
    generated: int = 0
    blocks_told: int = 0

    @property
    def remaining(self) -> int:
        """Prompt tokens still to compute."""
        return max(len(self.prompt) - self.sequence.computed, 0)


Work = list[tuple[Running, Slice]]


@dataclass(slots=True)
class Lane:
    """A runner and its requests, in order of arrival."""

    runner: ModelRunner
    limits: StepLimits
    _running: dict[str, Running] = field(default_factory=dict)

    # -- the set of requests -------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest, entropy: int) -> None:
        size = self.runner.layout.block_size
        self._running[request.request_id] = Running(
            request=request,
            prompt=np.asarray(request.tokens, dtype=np.int64),
            sequence=SequenceState(BlockTable(size, request.slots), request.computed),
            sampler=Sampler(request.sampling, entropy),
            blocks_told=request.computed // size,
        )

    def remove(self, request_id: str) -> None:
        del self._running[request_id]

    @property
    def request_ids(self) -> list[str]:
        return list(self._running)

    @property
    def begun(self) -> int:
        return sum(r.sequence.computed > r.request.computed for r in self._running.values())

    @property
    def queued_prefill_tokens(self) -> int:
        return sum(running.remaining for running in self._running.values())

    # -- before a forward ----------------------------------------------------------------------------------------------

    def make_room(self, source: SlotSource | None) -> list[EngineEvent]:
        """Get slots for the next token of each decoding sequence; those that get none are finished, with the reason."""
        events: list[EngineEvent] = []
        for running in [r for r in self._running.values() if not r.remaining]:
            table = running.sequence.table
            if running.sequence.computed < table.capacity:
                continue
            request = running.request
            left = self.runner.layout.blocks_for(request.max_new_tokens - running.generated)
            for blocks in sorted({min(GROW_BLOCKS, left), 1}, reverse=True):
                slots = source.extend(request.request_id, blocks) if source is not None else None
                if slots:
                    table.append(slots)
                    break
            else:
                events.append(self._finish(running, "length", "pool"))
        return events

    def plan(self) -> Work:
        """What the next step computes; empty where there is nothing to do."""
        pending = [Pending(key, r.remaining) for key, r in self._running.items() if r.remaining]
        decoding = [key for key, r in self._running.items() if not r.remaining]
        step = plan_step(pending, decoding, self.limits)
        work: Work = []
        for key in step.decode:
            running = self._running[key]
            work.append((running, Slice(running.sequence, [running.last_token], wants_logits=True)))
        for key, count in step.prefill:
            running = self._running[key]
            first = running.sequence.computed
            scored = running.request.prompt_logprobs is not None
            taken = min(count, SCORED_ROWS) if scored else count
            tokens = running.prompt[first : first + taken]
            answers = taken == running.remaining and running.request.max_new_tokens > 0
            work.append((running, Slice(running.sequence, tokens, wants_logits=answers, wants_all_logits=scored)))
        return work

    @staticmethod
    def batch(work: Work) -> StepBatch:
        return StepBatch(tuple(part for _, part in work))

    # -- after a forward -----------------------------------------------------------------------------------------------

    def conclude(self, work: Work, logits: torch.Tensor) -> list[EngineEvent]:
        """What the computed ``work`` and its ``logits``, the rows that slices wanted, mean for each request."""
        ends = list(accumulate(part.logit_rows for _, part in work))
        answering = [(running, end - 1) for (running, part), end in zip(work, ends, strict=True) if part.wants_logits]
        choices = dict(
            zip(
                (running.request.request_id for running, _ in answering),
                choose(logits[[row for _, row in answering]], [running.sampler for running, _ in answering])
                if answering
                else [],
                strict=True,
            )
        )
        events: list[EngineEvent] = []
        for (running, part), end in zip(work, ends, strict=True):
            request_id = running.request.request_id
            if part.wants_all_logits:
                scored = self._score(running, part, logits[end - part.logit_rows : end])
                if scored is None:
                    events.append(self._not_a_number(running))
                    continue
                events += scored
            full = running.sequence.computed // self.runner.layout.block_size
            if full > running.blocks_told:
                running.blocks_told = full
                events.append(BlocksComputed(request_id, full))
            if running.sequence.computed == len(running.prompt):
                events.append(Prefilled(request_id, running.request.computed, len(running.prompt)))
            if part.wants_logits:
                events += self._continue(running, choices[request_id])
            elif not running.remaining:
                events.append(self._finish(running, "length", "max_new_tokens"))
        return events

    def fail(self, work: Work, error: EngineFailure) -> list[EngineEvent]:
        """The forward of ``work`` failed: so do the requests in it."""
        for running, _ in work:
            self.remove(running.request.request_id)
        return [Failed(running.request.request_id, error) for running, _ in work]

    def _continue(self, running: Running, choice: Choice | None) -> list[EngineEvent]:
        request = running.request
        if choice is None:
            return [self._not_a_number(running)]
        if choice.token_id in request.stop_token_ids:
            return [self._finish(running, "stop", "stop_token")]
        running.last_token = choice.token_id
        running.generated += 1
        events: list[EngineEvent] = [TokenOut(request.request_id, choice.token_id, choice.logprob)]
        if running.generated >= request.max_new_tokens:
            events.append(self._finish(running, "length", "max_new_tokens"))
        elif len(running.prompt) + running.generated >= self.runner.shape.max_context:
            events.append(self._finish(running, "length", "context"))
        return events

    @staticmethod
    def _score(running: Running, part: Slice, logits: torch.Tensor) -> list[EngineEvent] | None:
        """Log probabilities of the prompt's tokens after each of ``part``; None where the model gave none."""
        first = running.sequence.computed - len(part.tokens) + 1
        following = running.prompt[first : first + len(part.tokens)].tolist()  # one less at the prompt's end
        entries = of_prompt(logits[: len(following)], following, running.request.prompt_logprobs or 0)
        if entries is None:
            return None
        return [PromptScored(running.request.request_id, entries)] if entries else []

    def _not_a_number(self, running: Running) -> Failed:
        request_id = running.request.request_id
        self.remove(request_id)
        return Failed(request_id, EngineFailure("the model answered with NaN or infinity: check its weights"))

    def _finish(self, running: Running, reason: FinishReason, detail: FinishDetail) -> Finished:
        self.remove(running.request.request_id)
        return Finished(running.request.request_id, reason, detail)
