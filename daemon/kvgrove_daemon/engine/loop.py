"""The engine loop: requests in, one packed forward per step, events out.

Role: drive the runners of all hosted generations, one step of one generation at a time, in turn. Invariants: one
forward per step for all sequences of a generation; between steps a request can be added or cancelled, and a cancelled
one is touched no more; a forward that fails fails the requests in it and nobody else; waiting requests are bounded.
Single-threaded: call everything from the thread that calls `step`. Must not know: sockets, keys, the index.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from kvgrove_daemon.engine.errors import BadRequest, ContextTooLong, EngineFailure, QueueFull
from kvgrove_daemon.engine.lane import Lane
from kvgrove_daemon.engine.rates import Rate
from kvgrove_daemon.engine.requests import (
    BlocksComputed,
    EngineEvent,
    EngineLoad,
    EngineRequest,
    Failed,
    Finished,
    Prefilled,
    PromptScored,
    SlotSource,
    TokenOut,
)
from kvgrove_daemon.engine.runner import ModelRunner
from kvgrove_daemon.engine.scheduler import StepLimits

__all__ = [
    "BlocksComputed",
    "EngineEvent",
    "EngineLoad",
    "EngineLoop",
    "EngineRequest",
    "Failed",
    "Finished",
    "Prefilled",
    "PromptScored",
    "SlotSource",
    "TokenOut",
]

MAX_REQUESTS = 1024
"""Requests held at once, begun or waiting, over all generations."""


class EngineLoop:
    """Hosts the models of a node and advances all their requests."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        entropy: Callable[[], int] = lambda: secrets.randbits(63),
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        """``clock`` in seconds, for rates only; ``entropy`` seeds requests that bring no seed."""
        self._clock = clock
        self._entropy = entropy
        self._max_requests = max_requests
        self._lanes: dict[bytes, Lane] = {}
        self._requests: dict[str, Lane] = {}
        self._turn: list[bytes] = []  # generations, the next one to step first
        self._slots: SlotSource | None = None
        self._prefill = Rate()
        self._decode = Rate()

    # -- what is served ------------------------------------------------------------------------------------------------

    def draw_slots_from(self, source: SlotSource) -> None:
        """Where decoding sequences get more slots. Without one, an answer ends with its last slot."""
        self._slots = source

    def host(self, generation: bytes, runner: ModelRunner, limits: StepLimits | None = None) -> None:
        """Serve ``generation``. Hosting it again changes its limits only."""
        limits = limits or StepLimits()
        if generation in self._lanes:
            self._lanes[generation].limits = limits
            return
        self._lanes[generation] = Lane(runner, limits)
        self._turn.append(generation)

    def unhost(self, generation: bytes) -> list[EngineEvent]:
        """Serve ``generation`` no more and let go of its weights; answers a `Failed` for each request it had."""
        lane = self._lanes.pop(generation, None)
        if lane is None:
            return []
        self._turn.remove(generation)
        failure = EngineFailure("the model was taken off this node: send the request again")
        failed: list[EngineEvent] = [Failed(request_id, failure) for request_id in lane.request_ids]
        for event in failed:
            del self._requests[event.request_id]
        return failed

    # -- requests ------------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Take a request. Raises `BadRequest`, `ContextTooLong` or `QueueFull`, having changed nothing."""
        lane = self._lanes.get(request.generation)
        if lane is None:
            raise BadRequest("generation: not hosted on this node", field="generation")
        if request.request_id in self._requests:
            raise BadRequest("request_id: already in use on this node", field="request_id")
        if len(self._requests) >= self._max_requests:
            raise QueueFull(f"the node holds {self._max_requests} requests: try another one, or later")
        _check(request, lane.runner)
        lane.add(request, self._entropy())
        self._requests[request.request_id] = lane

    def cancel(self, request_id: str) -> bool:
        """Forget a request at once: no event follows, and its slots are touched no more. False if it is not here."""
        lane = self._requests.pop(request_id, None)
        if lane is None:
            return False
        lane.remove(request_id)
        return True

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def load(self) -> EngineLoad:
        running = sum(lane.begun for lane in self._lanes.values())
        return EngineLoad(
            queued_prefill_tokens=sum(lane.queued_prefill_tokens for lane in self._lanes.values()),
            running=running,
            waiting=len(self._requests) - running,
            prefill_tokens_per_s=self._prefill.per_second,
            decode_steps_per_s=self._decode.per_second,
        )

    # -- work ----------------------------------------------------------------------------------------------------------

    def step(self) -> list[EngineEvent]:
        """Advance the requests of the next generation that has any by one forward; answers what happened, in order.

        Takes one prefill chunk or one decode step long. Answers nothing where there is nothing to do.
        """
        for generation in list(self._turn):
            self._turn.append(self._turn.pop(self._turn.index(generation)))
            lane = self._lanes[generation]
            if lane.request_ids:
                events = self._step(lane)
                for event in events:
                    if isinstance(event, Finished | Failed):
                        del self._requests[event.request_id]
                return events
        return []

    def _step(self, lane: Lane) -> list[EngineEvent]:
        events = lane.make_room(self._slots)
        work = lane.plan()
        if not work:
            return events
        prefilled = sum(len(part.tokens) for running, part in work if running.remaining)
        begun = self._clock()
        try:
            logits = lane.runner.step(Lane.batch(work))
        except RuntimeError as error:  # torch's root: out of memory, a kernel that failed
            return events + lane.fail(work, EngineFailure(f"the forward failed ({type(error).__name__})"))
        seconds = self._clock() - begun
        if prefilled:
            self._prefill.record(prefilled, seconds)
        else:
            self._decode.record(1, seconds)
        return events + lane.conclude(work, logits)


def _check(request: EngineRequest, runner: ModelRunner) -> None:
    count, size = len(request.tokens), runner.layout.block_size
    if count == 0:
        raise BadRequest("tokens: a prompt has at least one", field="tokens")
    if count >= runner.shape.max_context + (request.max_new_tokens == 0):
        raise ContextTooLong(
            f"{count} prompt tokens, but the model's context holds {runner.shape.max_context}: shorten the prompt",
            field="tokens",
        )
    if request.computed % size or not 0 <= request.computed < count:
        raise BadRequest(f"computed: a multiple of {size} below {count}, not {request.computed}", field="computed")
    if len(request.slots) * size < count:
        raise BadRequest(f"slots: {len(request.slots)} blocks of {size} do not hold {count} tokens", field="slots")
    if request.max_new_tokens < 0:
        raise BadRequest("max_new_tokens: at least 0", field="max_new_tokens")
