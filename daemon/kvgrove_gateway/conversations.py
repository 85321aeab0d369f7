"""Which generation of a namespace answers a conversation, while the plan has several side by side (OPS-14).

A new conversation is placed by a hash of what stays the same in it (the session handle, or its messages up to the first
of the user) against the weights of the plan, so that all gateways agree without a word. Weights only rise while traffic
shifts, so it stays where it is. One that has a history stays on the generation that holds it for as long as that is
planned: this gateway remembers where it answered, and of a conversation that began at another gateway the nodes' blocks
tell. Where nobody knows, there is no history to lose, and the hash decides.

Role: remember and choose. Invariants: it answers only what the plan offers; its memory is bounded (I11) and holds keyed
digests, never text, under a key that ends with the process (I12). Must not know: HTTP, nodes, tokenizers.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvgrove_protocol.canonical import digest
from kvgrove_protocol.control import ModelPlan
from kvgrove_protocol.identity import Caller

_SHARES = 10_000


@dataclass(frozen=True)
class Offer:
    """A generation that the plan has for a namespace."""

    model: ModelPlan
    weight: int
    """Percent of new conversations."""


@dataclass(frozen=True)
class Conversation:
    """One request's place in its conversation."""

    anchor: bytes
    """The same for all requests of it, on all gateways."""
    now: bytes
    """Names all that was said, this request included: what the next one continues."""
    before: bytes | None
    """`now` of the request that it continues; None: it has no history."""


def share(anchor: bytes) -> float:
    """Where a conversation lies between 0 and 100, evenly spread."""
    return int.from_bytes(anchor[:8], "big") % _SHARES * 100 / _SHARES


def by_weight(offers: Sequence[Offer], anchor: bytes) -> ModelPlan:
    """The generation of a new conversation. The first of ``offers`` takes what the others leave."""
    place, upto = share(anchor), 0
    for offer in offers[1:]:
        upto += offer.weight
        if place < upto:
            return offer.model
    return offers[0].model


class Conversations:
    """On the event loop only. ``key``: secret and random, of this process."""

    def __init__(self, key: bytes, capacity: int) -> None:
        self._key = key
        self._capacity = capacity
        self._answered: OrderedDict[bytes, bytes] = OrderedDict()
        """`Conversation.now` -> the generation that answered it."""

    def __len__(self) -> int:
        return len(self._answered)

    def of(self, namespace_uid: str, caller: Caller, said: Sequence[tuple[str, str]]) -> Conversation:
        """Where a request stands. ``said``: role and text of each message. Reads all of it: a fraction of what
        assembling it costs.
        """
        who = [namespace_uid, caller.tenant, caller.user, caller.session]
        roles, texts = [role for role, _ in said], [list(each) for each in said]
        asked = roles.index("user") if "user" in roles else len(roles) - 1
        answered = next((at for at in range(len(roles) - 1, 0, -1) if roles[at] == "assistant"), None)
        return Conversation(
            anchor=digest("gateway/conversation", [*who, [] if caller.session else texts[: asked + 1]]),
            now=self._named(digest("gateway/history", [*who, texts])),
            before=None if answered is None else self._named(digest("gateway/history", [*who, texts[:answered]])),
        )

    async def choose(
        self,
        offers: Sequence[Offer],
        conversation: Conversation,
        held: Callable[[ModelPlan], Awaitable[int]],
    ) -> ModelPlan:
        """The generation to answer it by, which is remembered: see `foresee`."""
        chosen = await self.foresee(offers, conversation, held)
        self.remember(conversation, chosen)
        return chosen

    async def foresee(
        self,
        offers: Sequence[Offer],
        conversation: Conversation,
        held: Callable[[ModelPlan], Awaitable[int]],
    ) -> ModelPlan:
        """The generation that would answer it now. Nothing is remembered: a request that is only looked at is no turn.

        ``held``: tokens of its history that some node holds under a generation.
        """
        return await self._home(offers, conversation, held) or by_weight(offers, conversation.anchor)

    def remember(self, conversation: Conversation, model: ModelPlan) -> None:
        """It is answered by ``model``: also while there is no other, since one may come."""
        self._answered[conversation.now] = model.generation
        self._answered.move_to_end(conversation.now)
        while len(self._answered) > self._capacity:
            self._answered.popitem(last=False)

    async def _home(
        self, offers: Sequence[Offer], conversation: Conversation, held: Callable[[ModelPlan], Awaitable[int]]
    ) -> ModelPlan | None:
        if conversation.before is None:
            return None
        known = self._answered.get(conversation.before)
        if known is not None:
            return next((offer.model for offer in offers if offer.model.generation == known), None)
        tokens = [(await held(offer.model), offer.model) for offer in offers]
        most, model = max(tokens, key=lambda each: each[0])
        return model if most else None

    def forget(self) -> int:
        """Give up all that is remembered; answers how much that was."""
        count = len(self._answered)
        self._answered.clear()
        return count

    def _named(self, history: bytes) -> bytes:
        return hashlib.blake2b(history, key=self._key, digest_size=16).digest()
