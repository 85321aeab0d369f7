"""One chat request, from identity to answer.

Resolve, prepare, place, send; until the first token has arrived everything may be done again, boundedly: on another
node when one is lost or refuses, against a newer plan when the namespace has moved on. The resolution is looked at
again right before sending, so that a plan that arrived meanwhile is never served behind (I3). It must not know HTTP.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from kvgrove_gateway.answer import Answer, Origin
from kvgrove_gateway.answer_stream import AnswerStream
from kvgrove_gateway.api.openai import ChatRequest
from kvgrove_gateway.board import PlanBoard
from kvgrove_gateway.errors import ApiError, BadRequest, Busy, Failed, FrameTooLarge, NodeLost, NodeRefused, Unavailable
from kvgrove_gateway.fleet import Fleet, Placement
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.metrics import NO_NAMESPACE, Metrics
from kvgrove_gateway.namespaces import Resolution
from kvgrove_gateway.output import AnswerText
from kvgrove_gateway.prepare import Preparation, Prepared
from kvgrove_gateway.route import Route
from kvgrove_gateway.settings import Limits
from kvgrove_prompt.assembly import Message
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.data import Done, Generate, Sampling, Started, Token
from kvgrove_protocol.errors import KvgroveError, StaleFence

log = logging.getLogger(__name__)

UNKNOWN_LIMIT = 1 << 20
"""Tokens to ask for where the model's length is not known here: the node knows it, and stops there."""

RETRY_REASONS = frozenset(
    {
        "node_lost",
        "send_queue_full",
        "stale_fence",
        "not_ready",
        "queue_full",
        "no_room",
        "moved",
        "freshness_lease_expired",
    }
)
"""Labels of the retry counter; any other code of a node counts as ``other``."""


@dataclass(frozen=True)
class ChatCall:
    """A parsed request with what surrounds it."""

    id: str
    identity: Identity
    request: ChatRequest
    arrived: float
    """By the service's clock."""
    traceparent: str = ""


@dataclass(frozen=True)
class _Attempt:
    """One try at a request: everything that is sent to a node."""

    call: ChatCall
    number: int
    """From 0."""
    resolution: Resolution
    prepared: Prepared
    max_new_tokens: int

    @property
    def request_id(self) -> str:
        return f"{self.call.id}-{self.number}"

    def message(self) -> Generate:
        request, resolution = self.call.request, self.resolution
        return Generate(
            request_id=self.request_id,
            namespace_uid=resolution.namespace.uid,
            generation=resolution.model.generation,
            fence=resolution.fence,
            caller=resolution.caller,
            tokens=self.prepared.prompt.tokens,
            spans=self.prepared.prompt.spans,
            sampling=Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            ),
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=list(self.prepared.tokenizer.eos_ids),
            traceparent=self.call.traceparent,
        )


class Chat:
    """The chat service. On the event loop only."""

    def __init__(
        self,
        board: PlanBoard,
        preparation: Preparation,
        fleet: Fleet,
        *,
        lease_remaining: Callable[[str], float],
        limits: Limits,
        metrics: Metrics,
        clock: Callable[[], float],
        explain_routes: bool,
    ) -> None:
        """``lease_remaining``: seconds of freshness lease left for a namespace UID, 0 without one."""
        self._board = board
        self._preparation = preparation
        self._fleet = fleet
        self._lease_remaining = lease_remaining
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._explain_routes = explain_routes

    async def begin(self, call: ChatCall) -> Answer:
        """The answer, once its first token is here. Raises ApiError. The caller must `close` it in any case."""
        label = NO_NAMESPACE
        try:
            label = self._board.current.admit(call.identity, call.request.model).name
            return await self._attempts(call)
        except ApiError as error:
            self._metrics.requests.labels(label, error.code).inc()
            raise

    async def _attempts(self, call: ChatCall) -> Answer:
        messages = [Message(role=each.role, content=each.text) for each in call.request.messages]
        failed: set[str] = set()
        last: KvgroveError | None = None
        for attempt in range(self._limits.attempts):
            revision = self._board.current.revision
            resolution = self._resolve(call)
            prepared = await self._preparation.prepare(resolution, messages)
            max_new_tokens = _room(call.request, prepared.prompt.count, resolution.model.max_model_len)
            if self._resolve(call) != resolution:
                last = StaleFence("the plan moved on while the prompt was assembled")
                self._metrics.retries.labels("moved").inc()
                continue
            trial = _Attempt(call, attempt, resolution, prepared, max_new_tokens)
            try:
                placement, stream = self._send(trial, failed)
            except Unavailable as error:
                raise (error if last is None else _exhausted(last)) from None
            try:
                return await self._first_token(trial, placement, stream)
            except (NodeLost, NodeRefused) as error:
                last = error
                if isinstance(error, NodeRefused) and not error.retryable:
                    raise _refusal(error) from None
                self._metrics.retries.labels(error.code if error.code in RETRY_REASONS else "other").inc()
                if error.code == StaleFence.code:
                    await self._board.wait_newer(revision, self._limits.plan_wait_s)
                else:
                    failed.add(placement.link.name)
        raise _exhausted(last)

    def _resolve(self, call: ChatCall) -> Resolution:
        directory, request = self._board.current, call.request
        namespace = directory.admit(call.identity, request.model)
        return directory.resolve(
            call.identity,
            request.model,
            prefix=request.kvgrove.prefix,
            documents=request.kvgrove.documents,
            session=request.kvgrove.session,
            lease_valid=self._lease_remaining(namespace.uid) > 0,
        )

    def _send(self, trial: _Attempt, failed: set[str]) -> tuple[Placement, AnswerStream]:
        """Place and send; nodes that do not take it join ``failed``.

        Raises Unavailable when none is left, BadRequest for a prompt that no node could take.
        """
        prepared = trial.prepared
        count = prepared.prompt.count
        while True:
            placement = self._fleet.place(
                count,
                prepared.keys,
                trial.resolution.model.block_size,
                session=_session_key(trial.resolution),
                without=failed,
            )
            try:
                stream = placement.link.submit(trial.message(), placement.choice.uncached_tokens)
            except NodeLost as error:
                self._metrics.retries.labels(error.code).inc()
                failed.add(placement.link.name)
            except FrameTooLarge:
                raise BadRequest(
                    f"The prompt has {count} tokens, more than any model here takes: shorten the messages.",
                    field="messages",
                    code="context_length_exceeded",
                ) from None
            else:
                self._fleet.dispatched(placement)
                return placement, stream

    async def _first_token(self, trial: _Attempt, placement: Placement, stream: AnswerStream) -> Answer:
        handed_over = False
        try:
            started: Started | None = None
            first = await stream.next()
            while isinstance(first, Started):
                started = first
                first = await stream.next()
            answer = self._answer(trial, placement, stream, started, first)
            handed_over = True
            return answer
        finally:
            if not handed_over:
                placement.link.release(trial.request_id)

    def _answer(
        self,
        trial: _Attempt,
        placement: Placement,
        stream: AnswerStream,
        started: Started | None,
        first: Token | Done,
    ) -> Answer:
        told = self._explain_routes and trial.call.identity.explain
        link = placement.link
        ttft = self._clock() - trial.call.arrived
        namespace, prepared = trial.resolution.namespace.name, trial.prepared
        self._metrics.ttft.labels(namespace).observe(ttft)
        tokenizer = prepared.tokenizer
        decoder = tokenizer.stream()
        return Answer(
            Origin(
                namespace=namespace,
                node=link.name,
                tier=started.tier if started is not None and started.reused else "",
                ttft_s=ttft,
                prompt_tokens=prepared.prompt.count,
                reused=started.reused if started is not None else 0,
                missed=dict(started.missed) if started is not None else {},
                route=Route.of(placement.decision, trial.number + 1) if told else None,
            ),
            first,
            stream,
            AnswerText(
                lambda token_id: decoder.push([token_id]),
                decoder.flush,
                stop=trial.call.request.stop,
                skip=frozenset(tokenizer.eos_ids),
            ),
            token_text=lambda token_id: tokenizer.decode([token_id]),
            release=lambda: link.release(trial.request_id),
            metrics=self._metrics,
        )


def _room(request: ChatRequest, prompt_tokens: int, max_model_len: int) -> int:
    """Tokens that may be generated; raises BadRequest where prompt and wish do not fit the model."""
    wanted = request.limit
    if not max_model_len:
        return wanted if wanted is not None else UNKNOWN_LIMIT
    room = max_model_len - prompt_tokens
    if room < 1:
        raise BadRequest(
            f"This model takes {max_model_len} tokens and the prompt has {prompt_tokens}: shorten the messages.",
            field="messages",
            code="context_length_exceeded",
        )
    if wanted is not None and wanted > room:
        raise BadRequest(
            f"This model takes {max_model_len} tokens and the prompt has {prompt_tokens}: ask for at most {room}.",
            field=request.limit_field,
            code="context_length_exceeded",
        )
    return wanted if wanted is not None else room


def _session_key(resolution: Resolution) -> bytes | None:
    caller = resolution.caller
    if caller.session is None:
        return None
    return digest("gateway/session", [resolution.namespace.uid, caller.tenant, caller.user, caller.session])


def _refusal(error: NodeRefused) -> ApiError:
    """What a caller is told of a refusal that no retry heals."""
    if error.code == "context_length_exceeded":
        return BadRequest(
            "The prompt does not fit the model's context: shorten the messages.", field="messages", code=error.code
        )
    if error.code in ("forbidden", "document_not_found"):
        # The node's plan is another one than ours for a moment; ours decides what callers may learn.
        return Unavailable("The namespace is changing: try again.", code="namespace_changing")
    log.warning("a node failed a request: %s", error.code)
    return Failed("The node could not serve the request.")


def _exhausted(last: KvgroveError | None) -> ApiError:
    """All attempts are used up; ``last`` is why the last one failed."""
    code = last.code if last is not None else "no_node"
    if code in ("queue_full", "send_queue_full", "no_room"):
        return Busy("All nodes are busy: try again shortly.", code="queue_full")
    known = code if code in RETRY_REASONS else "unavailable"
    return Unavailable("No node could serve the request: try again.", code=known)
