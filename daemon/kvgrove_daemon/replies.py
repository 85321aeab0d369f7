"""What a request's caller is told, and what the node counts of it.

Role: turn what happened into messages and metrics, in one place, so that both say the same. Warm-up answers nobody and
stays out of the ratios (WRM-01). Must not know: caches, engines, why something happened.
"""

from kvgrove_daemon.active import Active, Work
from kvgrove_daemon.engine.requests import PromptScored, TokenOut
from kvgrove_daemon.refusals import Refusal
from kvgrove_daemon.request_spans import record
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_protocol.data import Done, Error, PromptLogprobs, Started, ToGateway, Token, Usage
from kvgrove_protocol.errors import KvgroveError, Retryable


class Replies:
    """Speaks for the core thread."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def refused(self, active: Active, refusal: Refusal) -> None:
        self._send(active, refusal.to(active.request_id))
        self._count(active, refusal.code)

    def started(self, active: Active, work: Work) -> None:
        if active.start is not None:
            self._around.metrics.queue_seconds.observe(self._around.clock() - active.arrived)
        self._send(
            active,
            Started(request_id=active.request_id, reused=work.reused_tokens, tier=work.tier, missed=work.missed),
        )

    def scored(self, active: Active, event: PromptScored) -> None:
        self._send(active, PromptLogprobs(request_id=active.request_id, logprobs=event.logprobs))

    def token(self, active: Active, work: Work, event: TokenOut) -> None:
        if work.generated == 1 and active.start is not None:
            active.spoke = self._around.clock()
            self._around.metrics.ttft_seconds.observe(active.spoke - active.arrived)
            self._around.metrics.prefill_seconds.observe(active.spoke - active.ran)
        logprobs = [event.logprob] if event.logprob is not None else []
        self._send(active, Token(request_id=active.request_id, token_ids=[event.token_id], logprobs=logprobs))

    def finished(self, active: Active, work: Work, reason: str) -> None:
        usage = Usage(
            prompt=work.task.prompt_tokens,
            reused=work.reused_tokens,
            completion=work.generated,
            missed=work.missed,
        )
        if work.generated > 1 and active.start is not None:
            decoding = self._around.clock() - active.spoke
            self._around.metrics.output_token_seconds.observe(decoding / (work.generated - 1))
        self._send(active, Done(request_id=active.request_id, finish_reason=reason, usage=usage))
        self._count(active, reason)

    def failed(self, active: Active, error: KvgroveError) -> None:
        retryable = isinstance(error, Retryable)
        answer = Error(request_id=active.request_id, code=error.code, message=error.message, retryable=retryable)
        self._send(active, answer)
        self._count(active, error.code)

    def cancelled(self, active: Active) -> None:
        """The caller has gone, and hears nothing."""
        self._count(active, "cancelled")

    def _send(self, active: Active, message: ToGateway) -> None:
        if active.peer is not None:
            self._around.send(active.peer, message)

    def _count(self, active: Active, code: str) -> None:
        around, metrics, work = self._around, self._around.metrics, active.work
        if active.start is not None:
            namespace = around.table().namespaces.get(active.namespace_uid)
            label = namespace.plan.name if namespace is not None else ""
            metrics.requests.labels(label, code).inc()
            record(around.tracing, active, code, namespace=label, now=around.clock(), wall_ns=around.wall_ns())
        if work is None or not work.missed:  # not begun: nothing of its prompt was reused or missed
            return
        name = work.task.namespace.plan.name
        if active.start is None:
            metrics.warmup_tokens.labels(name).inc(work.task.prompt_tokens - work.reused_tokens)
        else:
            metrics.count_prompt(name, prompt=work.task.prompt_tokens, reused=work.reused, missed=work.missed)
