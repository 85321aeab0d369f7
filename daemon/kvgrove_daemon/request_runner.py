"""One request after another through cache and engine: admit, match, compute, commit, account (DESIGN section 5).

Belongs to the core thread. Every way out of a request gives its build back exactly once; where the cache may not be
used the request is computed cold, never failed (I7).
"""

from collections import deque

import numpy as np

from kvgrove_daemon.accounting import account
from kvgrove_daemon.active import Active
from kvgrove_daemon.admission import Admission, Verdict, admit
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.match import Match
from kvgrove_daemon.cache.resident import NoRoom
from kvgrove_daemon.commands import Start
from kvgrove_daemon.engine.loop import (
    BlocksComputed,
    EngineEvent,
    EngineLoop,
    EngineRequest,
    Failed,
    Finished,
    TokenOut,
)
from kvgrove_daemon.engine.scheduler import StepLimits
from kvgrove_daemon.history import ReuseHistory
from kvgrove_daemon.model_host import HostedModel
from kvgrove_daemon.namespaces import HostedNamespace
from kvgrove_daemon.prompts import CachedPrompt, cached_prompt, chain_of, check_tokens
from kvgrove_daemon.refusals import queue_full, refusal
from kvgrove_daemon.sampling_bounds import usable
from kvgrove_daemon.surroundings import Surroundings
from kvgrove_protocol.chain import TOKEN_BYTES
from kvgrove_protocol.data import Done, Error, Sampling, Started, ToGateway, Token, Usage
from kvgrove_protocol.errors import KvgroveError, Retryable
from kvgrove_protocol.events import HOST
from kvgrove_protocol.reasons import BypassReason, MissReason

MAX_WAITING = 256
"""Requests that wait for room in the pool before further ones are refused."""


class RequestRunner:
    """All requests of a node, of all its models."""

    def __init__(self, around: Surroundings, engine: EngineLoop) -> None:
        self._around = around
        self._engine = engine
        self._engine.draw_slots_from(self)
        self._history = ReuseHistory()
        self.models: dict[bytes, HostedModel] = {}
        """Generation -> model that requests may use."""
        self._retired: set[bytes] = set()
        self._active: dict[str, Active] = {}
        self._waiting: deque[Start] = deque()
        self._numbers = 0

    def host(self, model: HostedModel) -> None:
        """Serve ``model`` from now on, under its generation."""
        self.models[model.generation] = model
        self._retired.discard(model.generation)
        limits = StepLimits(max_batch=model.max_batch, prefill_chunk=model.prefill_chunk)
        self._engine.host(model.generation, model.runner, limits)

    def retire(self, generation: bytes) -> None:
        """Take no new requests for ``generation``; those under way finish on it."""
        self.models.pop(generation, None)
        self._retired.add(generation)

    def let_go(self) -> None:
        """Free the weights of retired models that nobody uses any more."""
        if not self._retired:
            return
        in_use = {active.model.generation for active in self._active.values()}
        for generation in self._retired - in_use:
            self._engine.unhost(generation)
            self._retired.discard(generation)

    @property
    def idle(self) -> bool:
        return not self._active and not self._waiting

    @property
    def waiting_tokens(self) -> int:
        return sum(len(start.request.tokens) // TOKEN_BYTES for start in self._waiting)

    # -- from gateways -------------------------------------------------------------------------------------------------

    def start(self, command: Start) -> None:
        """Begin ``command``, or let it wait its turn for room, or refuse it."""
        if len(self._waiting) >= MAX_WAITING:
            self._refuse(command, queue_full(command.request.request_id))
        elif self._waiting or not self._try(command):
            self._waiting.append(command)

    def retry_waiting(self) -> None:
        """Begin what waits, in order, as far as there is room now."""
        while self._waiting and self._try(self._waiting[0]):
            self._waiting.popleft()

    def stop(self, peer: bytes, request_id: str) -> None:
        """The caller has gone. An unknown id is a no-op: the answer may have crossed the cancel."""
        for active in [a for a in self._active.values() if (a.peer, a.request_id) == (peer, request_id)]:
            self._cancel(active)
        self._waiting = deque(s for s in self._waiting if (s.peer, s.request.request_id) != (peer, request_id))

    def stop_all_of(self, peer: bytes) -> None:
        for active in [active for active in self._active.values() if active.peer == peer]:
            self._cancel(active)
        self._waiting = deque(start for start in self._waiting if start.peer != peer)

    def _cancel(self, active: Active) -> None:
        self._engine.cancel(active.id)
        active.build.cancel()
        del self._active[active.id]
        self._count(active, "cancelled")

    def _try(self, command: Start) -> bool:
        """False if there is no room now but may be later; True if the request was begun or answered."""
        request = command.request
        admission = admit(request, self._around.table(), lease_valid=self._around.lease_valid(request.namespace_uid))
        namespace = admission.namespace
        if admission.verdict is Verdict.REFUSE or namespace is None:
            self._refuse(command, refusal(command, admission.code, admission.message, retryable=admission.retryable))
            return True
        model = self.models.get(request.generation)
        if model is None:
            self._refuse(command, refusal(command, "not_ready", "the model is still loading here", retryable=True))
            return True
        try:
            count = check_tokens(request.tokens, request.spans, model.runner.shape.vocab_size)
            sampling = usable(request.sampling)
        except KvgroveError as error:
            self._refuse(command, refusal(command, error.code, error.message))
            return True
        if count >= model.max_model_len:
            too_long = f"{count} prompt tokens; the model takes fewer than {model.max_model_len}"
            self._refuse(command, refusal(command, "context_length_exceeded", too_long))
            return True
        return self._begin(command, admission, namespace, model, count=count, sampling=sampling)

    def _begin(
        self,
        command: Start,
        admission: Admission,
        namespace: HostedNamespace,
        model: HostedModel,
        *,
        count: int,
        sampling: Sampling,
    ) -> bool:
        request, store = command.request, model.pool.store
        began = self._around.clock()
        prompt: CachedPrompt | None = None
        if admission.verdict is Verdict.WARM:
            prompt = cached_prompt(
                namespace,
                request.caller,
                request.tokens,
                request.spans,
                block_size=store.block_size,
                throwaway=self._around.throwaway,
            )
            match = store.match(chain_of(store, prompt, request.tokens))
            missed = self._explain(model, match, prompt, count)
        else:
            match, missed = self._cold(model, namespace.plan.uid, request.tokens, admission.reason, count)
        longest = min(request.max_new_tokens, model.max_model_len - count)
        build = store.begin(match, spare_tokens=longest, bypass=None if prompt is not None else BypassReason.COLD)
        if isinstance(build, NoRoom):
            match.release()
            if self._active:
                return False
            no_room = "the pool has no room for this prompt: raise spec.pool"
            self._refuse(command, refusal(command, "no_room", no_room, retryable=True))
            return True
        self._around.metrics.lookup_seconds.observe(self._around.clock() - began)
        self._around.metrics.queue_seconds.observe(began - command.arrived)
        active = Active(
            id=self.next_id(),
            peer=command.peer,
            request_id=request.request_id,
            namespace_uid=namespace.plan.uid,
            namespace=namespace.plan.name,
            model=model,
            fence=request.fence,
            build=build,
            prompt_tokens=count,
            reused=match.reused_tokens,
            missed=missed,
            arrived=command.arrived,
            zones=prompt.zones if prompt is not None else [],
        )
        self.run(active, request.tokens, sampling, longest, frozenset(request.stop_token_ids))
        return True

    def _explain(self, model: HostedModel, match: Match, prompt: CachedPrompt, count: int) -> dict[MissReason, int]:
        return account(
            token_count=count,
            reused=match.reused_tokens,
            block_size=match.chain.block_size,
            keys=match.chain.keys,
            gone=model.pool.store.gone,
            zone_list=prompt.zones,
            history=self._history,
        )

    def _cold(
        self, model: HostedModel, uid: str, tokens: bytes, reason: MissReason | None, count: int
    ) -> tuple[Match, dict[MissReason, int]]:
        """A chain without keys: nothing can be found under it, and nothing stored."""
        store = model.pool.store
        why = reason if reason is not None else MissReason.CACHE_ERROR
        chain = Chain(uid, self._around.throwaway(), tokens, [], store.block_size)
        return store.skip(chain), {why: count}

    # -- from the engine -----------------------------------------------------------------------------------------------

    def next_id(self) -> str:
        """An id that no other request of this node has."""
        self._numbers += 1
        return str(self._numbers)

    def run(
        self, active: Active, tokens: bytes, sampling: Sampling, max_new_tokens: int, stop_token_ids: frozenset[int]
    ) -> None:
        """Hand an admitted request to the engine."""
        self._active[active.id] = active
        self._send(active, Started(request_id=active.request_id, reused=active.reused, tier=HOST, missed=active.missed))
        try:
            self._engine.add(
                EngineRequest(
                    request_id=active.id,
                    generation=active.model.generation,
                    tokens=np.frombuffer(tokens, "<u4").astype(np.int64),
                    computed=active.reused,
                    slots=list(active.build.slots),
                    sampling=sampling,
                    max_new_tokens=max_new_tokens,
                    stop_token_ids=stop_token_ids,
                )
            )
        except KvgroveError as error:
            self._fail(active, error)

    def extend(self, request_id: str, blocks: int) -> list[int] | None:
        """More slots for a sequence that decodes; None when there is no room (the engine's `SlotSource`)."""
        taken = self._active[request_id].build.extend(blocks)
        return None if isinstance(taken, NoRoom) else taken

    def on_event(self, event: EngineEvent) -> None:
        """Carry one event of the engine on to cache and caller. One for a request that has ended is a no-op."""
        active = self._active.get(event.request_id)
        if active is None:
            return
        match event:
            case BlocksComputed():
                active.build.commit(event.upto_block, lambda: self.is_fresh(active))
            case TokenOut():
                self._on_token(active, event)
            case Finished():
                self._on_finished(active, event)
            case Failed():
                self._fail(active, event.error)

    def is_fresh(self, active: Active) -> bool:
        """Whether what ``active`` computed may still be stored: asked at every commit."""
        namespace = self._around.table().namespaces.get(active.namespace_uid)
        return (
            namespace is not None
            and namespace.realm is not None
            and namespace.realm.generation == active.model.generation
            and namespace.plan.fence == active.fence
            and self._around.lease_valid(active.namespace_uid)
        )

    def _on_token(self, active: Active, event: TokenOut) -> None:
        active.generated += 1
        active.build.add_tokens([event.token_id])
        if active.generated == 1:
            self._around.metrics.ttft_seconds.observe(self._around.clock() - active.arrived)
        logprobs = [event.logprob] if event.logprob is not None else []
        self._send(active, Token(request_id=active.request_id, token_ids=[event.token_id], logprobs=logprobs))

    def _on_finished(self, active: Active, event: Finished) -> None:
        stored = active.build.bypass is None
        active.build.finish()
        del self._active[active.id]
        if stored:
            for zone in active.zones:
                self._history.record(zone.name, zone.state)
        usage = Usage(
            prompt=active.prompt_tokens, reused=active.reused, completion=active.generated, missed=active.missed
        )
        self._send(active, Done(request_id=active.request_id, finish_reason=event.reason, usage=usage))
        self._count(active, event.reason)

    def _fail(self, active: Active, error: KvgroveError) -> None:
        active.build.fail()
        del self._active[active.id]
        retryable = isinstance(error, Retryable)
        answer = Error(request_id=active.request_id, code=error.code, message=error.message, retryable=retryable)
        self._send(active, answer)
        self._count(active, error.code)

    # -- out -----------------------------------------------------------------------------------------------------------

    def _count(self, active: Active, code: str) -> None:
        metrics = self._around.metrics
        if active.warm is not None:
            metrics.warmup_tokens.labels(active.namespace).inc(active.prompt_tokens - active.reused)
            return
        metrics.requests.labels(active.namespace, code).inc()
        metrics.count_prompt(
            active.namespace, prompt=active.prompt_tokens, reused=active.reused, tier=HOST, missed=active.missed
        )

    def _send(self, active: Active, message: ToGateway) -> None:
        if active.peer is not None:
            self._around.send(active.peer, message)

    def _refuse(self, command: Start, error: Error) -> None:
        self._around.send(command.peer, error)
        namespace = self._around.table().namespaces.get(command.request.namespace_uid)
        self._around.metrics.requests.labels(namespace.plan.name if namespace else "", error.code).inc()
