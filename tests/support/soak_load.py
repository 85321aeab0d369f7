"""The requests of a soak: sent through several gateways' links, cancelled, abandoned, and judged when they end.

Role: keep so many requests in flight, and hold each answer against two things: a cold run of the same prompt on the
same node (token ids at temperature 0), and what its caller may have met at all. Invariants: every request that nobody
gave up ends within `PATIENCE_S`; an error that is not worth a retry is a broken promise (I7).
Must not know: how the node is run, what else happens to it.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import zmq
from soak_world import Prompt, World

from kvgrove_link.frames import configure
from kvgrove_protocol.data import (
    TO_GATEWAY,
    TO_NODE,
    Cancel,
    ClientHello,
    Done,
    Error,
    Generate,
    Sampling,
    Started,
    Token,
    TokenLogprob,
)
from kvgrove_protocol.fence import Fence

PATIENCE_S = 90.0
NEWER = Fence(1 << 30, 1 << 30, 1 << 30)
"""A request under it is served cold and stores nothing."""
COLD_TOKENS = 12
TIE = 1e-3
"""Two tokens whose logprobs lie so close may change places: sums in another order."""
UNCHECKED = 8
"""Answers that wait for a cold one; beyond, answers go unchecked."""
KNOWN_COLD = 400
"""Cold answers that are remembered."""


@dataclass
class Pending:
    """A request under way, and what has come of it."""

    request: Generate
    prompt: Prompt
    peer: int
    since: float
    reused: int = 0
    tier: str = ""
    cancel_after: int | None = None
    """Tokens after which its caller goes away."""
    answer: list[TokenLogprob] = field(default_factory=list)


class Load:
    """See the module. ``broken`` collects what should not be."""

    def __init__(self, world: World, *, peers: int = 3) -> None:
        self.world = world
        self.generation = b""
        self.broken: list[str] = []
        self.codes: Counter[str] = Counter()
        self.did: Counter[str] = Counter()
        self._pending: dict[str, Pending] = {}
        self._context = zmq.Context()
        self._links: list[zmq.Socket[bytes] | None] = [None] * peers
        self._address = ""
        self._number = 0
        self._cold: OrderedDict[bytes, list[TokenLogprob]] = OrderedDict()
        self._to_check: list[tuple[Prompt, list[TokenLogprob], str]] = []

    # -- links ---------------------------------------------------------------------------------------------------------

    def connect(self, address: str) -> None:
        """All gateways dial ``address``; what was under way elsewhere is lost."""
        self._address = address
        self._pending.clear()
        for peer in range(len(self._links)):
            self._dial(peer)

    def _dial(self, peer: int) -> None:
        if (old := self._links[peer]) is not None:
            old.close(0)
        link = self._links[peer] = self._context.socket(zmq.DEALER)
        configure(link)
        link.connect(self._address)
        link.send(TO_NODE.encode(ClientHello(member=f"gateway-{peer}", boot="b")))

    def lose_peer(self) -> None:
        """A gateway goes without a word, with all that it asked for, and another comes."""
        peer = self.world.rng.randrange(len(self._links))
        for name in [name for name, pending in self._pending.items() if pending.peer == peer]:
            del self._pending[name]
        self._dial(peer)

    def send_garbage(self) -> None:
        link = self._links[0]
        assert link is not None
        link.send(self.world.rng.randbytes(self.world.rng.randrange(1, 200)))

    def close(self) -> None:
        for link in self._links:
            if link is not None:
                link.close(0)
        self._context.term()

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def ask(self) -> None:
        """Send one more: now and then a cold one, to compare an answer with."""
        rng = self.world.rng
        if self._to_check and rng.random() < 0.3:
            prompt = self._to_check[0][0]
            self._send(prompt, NEWER, COLD_TOKENS)
            return
        prompt = self.world.prompt()
        self.world.note(prompt)
        count = rng.choice((1, 2, 4, 8, COLD_TOKENS, 60))
        pending = self._send(prompt, self.world.homes[prompt.namespace].plan.fence, count)
        if rng.random() < 0.12:
            pending.cancel_after = rng.randrange(0, count)
            self._cancel_when_due(pending)

    def finish_checks(self) -> bool:
        """Ask for the cold answers that are still lacking, one at a time; whether there are none."""
        if self._to_check and not self._pending:
            self._send(self._to_check[0][0], NEWER, COLD_TOKENS)
        return not self._to_check and not self._pending

    def _send(self, prompt: Prompt, fence: Fence, count: int) -> Pending:
        self._number += 1
        request = Generate(
            request_id=f"r{self._number}",
            namespace_uid=self.world.homes[prompt.namespace].plan.uid,
            generation=self.generation,
            fence=fence,
            caller=prompt.caller,
            tokens=prompt.packed,
            spans=list(prompt.spans),
            sampling=Sampling(temperature=0.0, top_logprobs=2),
            max_new_tokens=count,
        )
        peer = self._number % len(self._links)
        link = self._links[peer]
        assert link is not None
        link.send(TO_NODE.encode(request))
        pending = self._pending[request.request_id] = Pending(request, prompt, peer, time.monotonic())
        self.did["asked"] += 1
        return pending

    def cancel_all(self) -> None:
        for pending in list(self._pending.values()):
            pending.cancel_after = 0
            self._cancel_when_due(pending)

    def _cancel_when_due(self, pending: Pending) -> None:
        if pending.cancel_after is None or len(pending.answer) < pending.cancel_after:
            return
        link = self._links[pending.peer]
        assert link is not None
        link.send(TO_NODE.encode(Cancel(request_id=pending.request.request_id)))
        self._pending.pop(pending.request.request_id, None)
        self.did["cancelled"] += 1

    # -- answers -------------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take what has come; note what has waited too long."""
        for link in self._links:
            while link is not None and link.poll(0):
                self._take(TO_GATEWAY.decode(link.recv()))
        now = time.monotonic()
        for name, pending in list(self._pending.items()):
            if now - pending.since > PATIENCE_S:
                del self._pending[name]
                self.broken.append(f"request {name} has not ended in {PATIENCE_S:.0f} s")

    def _take(self, message: object) -> None:
        if not isinstance(message, Started | Token | Done | Error):
            return
        pending = self._pending.get(message.request_id)
        if pending is None:
            return
        match message:
            case Started():
                pending.reused, pending.tier = message.reused, message.tier
            case Token():
                pending.answer += message.logprobs
                self._cancel_when_due(pending)
            case Error():
                del self._pending[message.request_id]
                self.codes[message.code] += 1
                if not message.retryable:
                    self.broken.append(f"request {message.request_id} failed: {message.code}: {message.message}")
            case Done():
                del self._pending[message.request_id]
                self.codes["done"] += 1
                self._judge(pending, message)

    def _judge(self, pending: Pending, done: Done) -> None:
        usage = done.usage
        if usage.reused + sum(usage.missed.values()) != usage.prompt:
            self.broken.append(f"request {done.request_id}: reused and missed tokens are not the prompt")  # I10
        if usage.reused != pending.reused:
            self.broken.append(f"request {done.request_id}: reused {usage.reused}, announced {pending.reused}")
        if pending.request.fence == NEWER:
            if usage.reused:
                self.broken.append(f"request {done.request_id} was to be served cold and reused {usage.reused} tokens")
            self._remember(pending)
            return
        self.did[f"reused_tokens_{pending.tier or 'none'}"] += usage.reused
        self.did["prompt_tokens"] += usage.prompt
        plan = self.world.homes[pending.prompt.namespace].plan
        unchanged = (plan.uid, plan.fence) == (pending.request.namespace_uid, pending.request.fence)
        if unchanged and usage.reused and not self.world.may_reuse(pending.prompt, usage.reused):
            self.broken.append(f"request {done.request_id} reused {usage.reused} tokens that nobody left for it")  # I2
        known = self._cold.get(pending.prompt.packed)
        if known is not None:
            self._compare(pending.answer, known, pending.tier)
        elif usage.reused and len(self._to_check) < UNCHECKED:
            self._to_check.append((pending.prompt, pending.answer, pending.tier))

    def _remember(self, cold: Pending) -> None:
        self._cold[cold.prompt.packed] = cold.answer
        if len(self._cold) > KNOWN_COLD:
            self._cold.popitem(last=False)
        waiting, self._to_check = self._to_check, []
        for prompt, answer, tier in waiting:
            if prompt.packed == cold.prompt.packed:
                self._compare(answer, cold.answer, tier)
            else:
                self._to_check.append((prompt, answer, tier))

    def _compare(self, warm: list[TokenLogprob], cold: list[TokenLogprob], tier: str) -> None:
        self.did[f"compared_{tier or 'none'}"] += 1
        for one, other in zip(warm, cold, strict=False):
            if one.token_id != other.token_id:
                if abs(other.top[0][1] - other.top[1][1]) > TIE:
                    self.broken.append(f"an answer after reuse from {tier or 'nowhere'} differs from a cold run")  # I1
                else:
                    self.did["ties"] += 1
                return
