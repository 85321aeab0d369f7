"""One prompt, from identity to answer.

Resolve, prepare, place, send; until the first token has arrived everything may be done again, boundedly: on another
node when one is lost or refuses, against a newer plan when the namespace has moved on. The resolution is looked at
again right before sending, so that a plan that arrived meanwhile is never served behind (I3). It must not know HTTP.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvgrove_gateway.answer import CLIENT_GONE, OK, Answer, Origin, Scored
from kvgrove_gateway.answer_stream import AnswerStream
from kvgrove_gateway.ask import Ask, ChatPrompt, RawPrompt
from kvgrove_gateway.board import PlanBoard
from kvgrove_gateway.conversations import Conversations
from kvgrove_gateway.errors import ApiError, BadRequest, Busy, Failed, FrameTooLarge, NodeLost, NodeRefused, Unavailable
from kvgrove_gateway.fleet import Fleet, Placement
from kvgrove_gateway.generation_counts import GenerationCounts
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.metrics import NO_NAMESPACE, Metrics
from kvgrove_gateway.namespaces import Resolution
from kvgrove_gateway.output import AnswerText
from kvgrove_gateway.prepare import Preparation, Prepared
from kvgrove_gateway.reasons import Telling
from kvgrove_gateway.route import Route
from kvgrove_gateway.settings import Limits
from kvgrove_gateway.tool_calls import MARKERS, ToolFormat, tool_format, tool_reader
from kvgrove_link.tracing import NO_SPAN, NO_TRACING, Span, Tracing
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.data import Done, Generate, PromptLogprobs, Started, Token, TokenLogprob, Usage
from kvgrove_protocol.errors import KvgroveError, StaleFence
from kvgrove_protocol.identity import short

log = logging.getLogger(__name__)

_MESSAGE = re.compile(r"messages\[([0-9]+)\]")

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
class Call:
    """What is asked for, with what surrounds it."""

    id: str
    identity: Identity
    ask: Ask
    arrived: float
    """By the service's clock."""
    traceparent: str = ""
    span: Span = NO_SPAN
    """Of the whole call, where it is traced."""
    sibling: bool = False
    """One more answer to a prompt that another call of the request asks for: it accounts for what it says alone."""


@dataclass(frozen=True)
class _Attempt:
    """One try at a request: everything that is sent to a node."""

    call: Call
    number: int
    """From 0."""
    resolution: Resolution
    prepared: Prepared
    max_new_tokens: int

    @property
    def request_id(self) -> str:
        return f"{self.call.id}-{self.number}"

    def message(self) -> Generate:
        ask, resolution = self.call.ask, self.resolution
        return Generate(
            request_id=self.request_id,
            namespace_uid=resolution.namespace.uid,
            generation=resolution.model.generation,
            fence=resolution.fence,
            caller=resolution.caller,
            tokens=self.prepared.prompt.tokens,
            spans=self.prepared.prompt.spans,
            sampling=ask.sampling,
            max_new_tokens=self.max_new_tokens,
            stop_token_ids=list(self.prepared.tokenizer.eos_ids),
            traceparent=self.call.traceparent,
            prompt_logprobs=ask.prompt_logprobs,
        )


@dataclass(frozen=True)
class _Beginning:
    """What a node sent up to the first token."""

    started: Started | None
    scores: list[TokenLogprob]
    first: Token | Done


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
        conversations: Conversations,
        counts: GenerationCounts,
        clock: Callable[[], float],
        explain_routes: bool,
        telling: Telling,
        charge: Callable[[Identity, int, str], None],
        new_id: Callable[[], str],
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """``lease_remaining``: seconds of freshness lease left for a namespace UID, 0 without one. ``charge``: takes
        the prompt's tokens from its tenant's allowance, or raises; told the field that holds the prompt. ``new_id``:
        unique lower-case hex, for tool calls."""
        self._new_id = new_id
        self._board = board
        self._preparation = preparation
        self._fleet = fleet
        self._lease_remaining = lease_remaining
        self._limits = limits
        self._metrics = metrics
        self._conversations = conversations
        self._counts = counts
        self._clock = clock
        self._explain_routes = explain_routes
        self._telling = telling
        self._charge = charge
        self._tracing = tracing

    async def begin(self, call: Call) -> Answer:
        """The answer, once its first token is here. Raises ApiError. The caller must `close` it in any case."""
        label, outcome = NO_NAMESPACE, ""
        span = self._tracing.begin("chat", call.traceparent, served=True)
        try:
            label = self._board.current.admit(call.identity, call.ask.model).name
            return await self._attempts(replace(call, traceparent=span.traceparent, span=span))
        except ApiError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = CLIENT_GONE
            raise
        finally:
            if outcome:
                span.end({"namespace": label}, error="" if outcome == CLIENT_GONE else outcome)
                if not call.sibling:
                    self._metrics.requests.labels(label, outcome).inc()

    async def count(self, call: Call) -> int:
        """Tokens of the prompt, as `begin` would send it. Raises ApiError. Nothing is sent or remembered."""
        _, prepared = await self.prepare(call)
        return prepared.prompt.count

    async def prepare(self, call: Call) -> tuple[Resolution, Prepared]:
        """What `begin` would send now, and against which state, that of the generation which would answer included.

        Raises ApiError. Nothing is sent, and no conversation is placed by it.
        """
        resolution = await self._placed(call, answers=False)
        return resolution, await self._prepare(resolution, call.ask)

    async def _prepare(self, resolution: Resolution, ask: Ask) -> Prepared:
        prompt = ask.prompt
        if isinstance(prompt, RawPrompt):
            return await self._preparation.prepare_raw(resolution, prompt.content)
        try:
            prepared = await self._preparation.prepare(
                resolution,
                prompt.messages,
                open_ended=prompt.open_ended,
                breakpoints=ask.breakpoints,
                tools=prompt.tools,
                options=prompt.options,
            )
        except BadRequest as error:
            raise in_its_place(error, prompt.places) from None
        if prompt.tools and _tool_format(prepared.tokenizer) is None:
            raise BadRequest(
                "'tools': how this model writes its calls is not known here: leave them out.",
                field="tools",
                code="unsupported_parameter",
            )
        return prepared

    async def _attempts(self, call: Call) -> Answer:
        failed: set[str] = set()
        last: KvgroveError | None = None
        for attempt in range(self._limits.attempts):
            revision = self._board.current.revision
            resolution = await self._placed(call, answers=True)
            assembly = self._tracing.begin("assemble", call.traceparent)
            prepared = await self._prepare(resolution, call.ask)
            assembly.end({"prompt_tokens": prepared.prompt.count})
            max_new_tokens = _room(call.ask, prepared.prompt.count, resolution.model.max_model_len)
            if not attempt and not call.sibling:
                self._charge(call.identity, prepared.prompt.count, call.ask.prompt_field)
            if self._resolve(call, resolution.model.generation) != resolution:
                last = StaleFence("the plan moved on while the prompt was assembled")
                self._metrics.retries.labels("moved").inc()
                continue
            trial = _Attempt(call, attempt, resolution, prepared, max_new_tokens)
            try:
                placement, stream = self._send(trial, failed)
            except Unavailable as error:
                raise self._given_up(resolution, error if last is None else _exhausted(last)) from None
            try:
                return await self._first_token(trial, placement, stream)
            except (NodeLost, NodeRefused) as error:
                last = error
                if isinstance(error, NodeRefused) and not error.retryable:
                    raise self._given_up(resolution, _refusal(error, call.ask)) from None
                self._metrics.retries.labels(error.code if error.code in RETRY_REASONS else "other").inc()
                if error.code == StaleFence.code:
                    await self._board.wait_newer(revision, self._limits.plan_wait_s)
                else:
                    failed.add(placement.link.name)
        raise self._given_up(self._resolve(call), _exhausted(last))

    def _given_up(self, resolution: Resolution, error: ApiError) -> ApiError:
        if error.status >= Failed.status:
            self._counts.refused((resolution.namespace.uid, resolution.model.generation))
        return error

    async def _placed(self, call: Call, *, answers: bool) -> Resolution:
        """By the generation that the conversation belongs to, where the plan has several.

        ``answers``: whether that one will, so that the next turn belongs to it too.
        """
        resolution, conversations = self._resolve(call), self._conversations
        offers = self._board.current.offers(resolution.namespace)
        if len(offers) == 1 and not answers:
            return resolution
        conversation = conversations.of(resolution.namespace.uid, resolution.caller, call.ask.said)
        if len(offers) == 1:
            conversations.remember(conversation, resolution.model)
            return resolution

        async def held(model: ModelPlan) -> int:
            try:
                prepared = await self._prepare(self._resolve(call, model.generation), call.ask)
            except ApiError:
                return 0  # of what cannot be assembled now nobody holds anything; who is chosen says so
            return max(0, self._fleet.resident_tokens(prepared.keys, model.block_size) - prepared.declared_tokens)

        chosen = await (conversations.choose if answers else conversations.foresee)(offers, conversation, held)
        return self._resolve(call, chosen.generation)

    def _resolve(self, call: Call, generation: bytes = b"") -> Resolution:
        directory, ask = self._board.current, call.ask
        namespace = directory.admit(call.identity, ask.model)
        return directory.resolve(
            call.identity,
            ask.model,
            prefix=ask.prefix,
            documents=ask.documents,
            session=ask.session,
            generation=generation,
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
                placement=trial.resolution.model.placement,
            )
            try:
                stream = placement.link.submit(trial.message(), placement.choice.uncached_tokens)
            except NodeLost as error:
                self._metrics.retries.labels(error.code).inc()
                failed.add(placement.link.name)
            except FrameTooLarge:
                raise _too_long(
                    trial.call.ask, f"The prompt has {count} tokens, more than any model here takes"
                ) from None
            else:
                self._fleet.dispatched(placement)
                return placement, stream

    async def _first_token(self, trial: _Attempt, placement: Placement, stream: AnswerStream) -> Answer:
        handed_over = False
        try:
            started: Started | None = None
            scores: list[TokenLogprob] = []
            first = await stream.next()
            while isinstance(first, Started | PromptLogprobs):
                if isinstance(first, Started):
                    started = first
                else:
                    scores += first.logprobs
                first = await stream.next()
            answer = self._answer(trial, placement, stream, _Beginning(started, scores, first))
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
        beginning: _Beginning,
    ) -> Answer:
        started = beginning.started
        told = self._explain_routes and trial.call.identity.explain
        link = placement.link
        ttft = self._clock() - trial.call.arrived
        namespace, prepared = trial.resolution.namespace.name, trial.prepared
        if not trial.call.sibling:
            self._metrics.ttft.labels(namespace).observe(ttft)
        tokenizer, ask = prepared.tokenizer, trial.call.ask
        kind = _tool_format(tokenizer) if isinstance(ask.prompt, ChatPrompt) and ask.prompt.tools else None
        push, flush = _decoder(tokenizer, kind)
        return Answer(
            Origin(
                namespace=namespace,
                node=link.name,
                tier=started.tier if started is not None and started.reused else "",
                ttft_s=ttft,
                prefill_tokens_per_s=link.load.prefill_tokens_per_s,
                prompt_tokens=prepared.prompt.count,
                reused=started.reused if started is not None else 0,
                missed=dict(started.missed) if started is not None else {},
                route=Route.of(placement.decision, trial.number + 1) if told else None,
                marks=prepared.marks,
                generation=short(trial.resolution.model.generation),
                sibling=trial.call.sibling,
                reasons=self._telling.tells(trial.call.ask.reasons),
            ),
            beginning.first,
            stream,
            AnswerText(
                push,
                flush,
                stop=ask.stop,
                skip=frozenset(tokenizer.eos_ids),
            ),
            None if kind is None else tool_reader(kind, self._new_id, ask.call_prefix),
            one_call=isinstance(ask.prompt, ChatPrompt) and ask.prompt.one_call,
            scored=Scored(prepared.prompt, beginning.scores) if ask.prompt_logprobs is not None else None,
            prompt_text=lambda: _prompt_text(trial),
            token_text=lambda token_id: tokenizer.decode([token_id]),
            release=lambda: link.release(trial.request_id),
            ended=self._ended(trial, ttft),
            metrics=self._metrics,
        )

    def _ended(self, trial: _Attempt, ttft_s: float) -> Callable[[str, Usage], None]:
        which = trial.resolution.namespace.uid, trial.resolution.model.generation

        def count(outcome: str, usage: Usage) -> None:
            failed = outcome not in (OK, CLIENT_GONE)
            trial.call.span.end(
                {
                    "namespace": trial.resolution.namespace.name,
                    "generation": short(trial.resolution.model.generation),
                    "attempts": trial.number + 1,
                    "prompt_tokens": usage.prompt,
                    "reused_tokens": usage.reused,
                    "completion_tokens": usage.completion,
                    "ttft_seconds": ttft_s,
                },
                error=outcome if failed else "",
            )
            if trial.call.sibling:
                return  # its prompt is on another's account
            self._counts.answered(
                which, ttft_s=ttft_s, prompt_tokens=usage.prompt, reused_tokens=usage.reused, failed=failed
            )

        return count


def _room(ask: Ask, prompt_tokens: int, max_model_len: int) -> int:
    """Tokens that may be generated; raises BadRequest where prompt and wish do not fit the model."""
    wanted = ask.limit
    if not max_model_len:
        return wanted if wanted is not None else UNKNOWN_LIMIT
    room = max_model_len - prompt_tokens
    if room < 1:
        raise _too_long(ask, f"This model takes {max_model_len} tokens and the prompt has {prompt_tokens}")
    if wanted is not None and wanted > room:
        raise BadRequest(
            f"This model takes {max_model_len} tokens and the prompt has {prompt_tokens}: ask for at most {room}.",
            field=ask.limit_field,
            code="context_length_exceeded",
        )
    return wanted if wanted is not None else room


def _prompt_text(trial: _Attempt) -> str:
    prompt = trial.call.ask.prompt
    if isinstance(prompt, RawPrompt) and isinstance(prompt.content, str):
        return prompt.content
    return trial.prepared.tokenizer.decode(trial.prepared.prompt.ids)


def _session_key(resolution: Resolution) -> bytes | None:
    caller = resolution.caller
    if caller.session is None:
        return None
    return digest("gateway/session", [resolution.namespace.uid, caller.tenant, caller.user, caller.session])


def in_its_place(error: BadRequest, places: Sequence[str]) -> BadRequest:
    """``error`` with the field as the body has it: a dialect may make several messages of one, or one more."""
    found = _MESSAGE.match(error.field or "")
    if found is None or error.field is None or int(found[1]) >= len(places):
        return error
    place = places[int(found[1])]
    return BadRequest(
        error.message.replace(found[0], place), field=error.field.replace(found[0], place), code=error.code
    )


def _tool_format(tokenizer: PromptTokenizer) -> ToolFormat | None:
    return None if tokenizer.template is None else tool_format(tokenizer.template.source)


def _decoder(tokenizer: PromptTokenizer, kind: ToolFormat | None) -> tuple[Callable[[int], str], Callable[[], str]]:
    """Tokens to text, one by one, and the rest. Special tokens are left out, but for those that calls begin with."""
    decoder = tokenizer.stream()
    shown: dict[int, str] = {}
    for marker in MARKERS[kind] if kind is not None else ():
        ids = tokenizer.encode_control(marker)
        if len(ids) == 1 and ids[0] in tokenizer.special_ids:
            shown[ids[0]] = marker

    def push(token_id: int) -> str:
        if token_id in shown:
            return decoder.flush() + shown[token_id]
        return decoder.push([token_id])

    return push, decoder.flush


def _too_long(ask: Ask, fact: str) -> BadRequest:
    cure = f"shorten the {ask.prompt_field}"
    return BadRequest(f"{fact}: {cure}.", field=ask.prompt_field, code="context_length_exceeded")


def _refusal(error: NodeRefused, ask: Ask) -> ApiError:
    """What a caller is told of a refusal that no retry heals."""
    if error.code == "context_length_exceeded":
        return _too_long(ask, "The prompt does not fit the model's context")
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
