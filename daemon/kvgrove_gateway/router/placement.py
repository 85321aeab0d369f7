"""From a prompt's keys to a node: index, builds under way, recent work, sessions and the decision, put together.

Role: what a gateway asks for each request, and what `kvgrove simulate` drives with a clock of its own. Invariants: an
answer by the deadline, if need be by load alone, and counted (PER-04); every memory here is bounded (I11).
Must not know: links, sockets, HTTP.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvgrove_gateway.router.builds import Builds
from kvgrove_gateway.router.decide import Candidate, Decision, decide
from kvgrove_gateway.router.index import NOTHING, BlockIndex, Match
from kvgrove_gateway.router.recent import RecentWork

DEADLINE_S: Final = 0.020
SESSIONS: Final = 65_536
BUILDING_BLOCKS: Final = 262_144


class NodeView(NamedTuple):
    """A node that could take the request now."""

    name: str
    slot: int | None
    """Of the index; None while what the node holds is in doubt: it is then judged by its load."""
    queued_tokens: int
    requests: int
    prefill_tokens_per_s: float
    """0: not measured."""
    surplus_tokens: int = 0
    """What it had to compute beyond what was expected when it was sent there, since the last view."""
    full: bool = False
    """What it stores now pushes out something else."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision, with what `Router.dispatched` notes once the request is really sent."""

    decision: Decision
    prompt_tokens: int
    slot: int | None
    """Of the chosen node."""
    resident_blocks: int
    """Of the prompt, on the chosen node."""
    keys: Sequence[bytes]
    busy: float
    """Share of the nodes with a queue."""

    @property
    def uncached_tokens(self) -> int:
        return max(self.prompt_tokens - self.decision.matched_tokens, 0)


class Router:
    """Mutable, on the event loop."""

    def __init__(
        self,
        index: BlockIndex,
        *,
        clock: Callable[[], float],
        deadline_s: float = DEADLINE_S,
        sessions: int = SESSIONS,
        building_blocks: int = BUILDING_BLOCKS,
    ) -> None:
        """``clock``: seconds, monotonic."""
        self.index = index
        self.builds = Builds(index, building_blocks)
        self.fallbacks = 0
        """Decisions made by load alone because the deadline had passed."""
        self._clock = clock
        self._deadline_s = deadline_s
        self._recent = RecentWork()
        self._sessions: OrderedDict[bytes, str] = OrderedDict()
        self._max_sessions = sessions

    def choose(
        self,
        nodes: Sequence[NodeView],
        prompt_tokens: int,
        keys: Sequence[bytes],
        block_size: int,
        *,
        session: bytes | None = None,
    ) -> Choice:
        """The best of ``nodes`` (at least one). May be asked again: nothing counts before `dispatched`.

        ``keys``: the prompt's block keys, empty where it is served cold.
        """
        now = self._clock()
        self.builds.expire(now)
        matches = self._matches(nodes, keys, now + self._deadline_s)
        self._recent.follow([node.name for node in nodes])
        for node in nodes:
            if node.surplus_tokens:
                self._recent.corrected(node.name, node.surplus_tokens, now)
        recent = self._recent.tokens(now)
        reusable = max(prompt_tokens - 1, 0)  # the last token is always computed
        candidates = []
        for name, _, queued, requests, rate, _, full in nodes:
            matched, fetch = 0, 0.0
            match = matches.get(name, NOTHING)
            if match is not NOTHING:
                blocks = match.blocks + match.building
                matched, fetch = min(blocks * block_size, reusable), (blocks - match.worth) * block_size
            candidates.append(Candidate(name, matched, queued, requests, rate, fetch, recent[name], full))
        decision = decide(
            candidates,
            prompt_tokens,
            lately=self._recent.lately,
            session_node=None if session is None else self._sessions.get(session),
            anchor=keys[0] if keys else b"",
        )
        return Choice(
            decision=decision,
            prompt_tokens=prompt_tokens,
            slot=next(node.slot for node in nodes if node.name == decision.node),
            resident_blocks=matches.get(decision.node, NOTHING).blocks,
            keys=keys,
            busy=sum([node.queued_tokens > 0 for node in nodes]) / len(nodes),
        )

    def dispatched(self, choice: Choice, *, session: bytes | None = None) -> None:
        """The request was sent where ``choice`` says: it counts from now on, not from its first answer (ROU-02)."""
        now = self._clock()
        node = choice.decision.node
        self._recent.placed(node, choice.prompt_tokens, choice.uncached_tokens, choice.busy, now)
        self.index.used(choice.keys[: choice.resident_blocks])
        if choice.slot is not None:
            self.builds.begin(choice.slot, choice.keys, choice.resident_blocks, choice.decision.expected_s, now)
        if session is not None:
            self._sessions[session] = node
            self._sessions.move_to_end(session)
            while len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)

    def _matches(self, nodes: Sequence[NodeView], keys: Sequence[bytes], deadline: float) -> dict[str, Match]:
        slots = {node.name: node.slot for node in nodes if node.slot is not None}
        if not keys or not slots:
            return {}
        matches = self.index.weighed_matches(slots, keys, late=lambda: self._clock() > deadline)
        if matches is None:
            self.fallbacks += 1
            return {}
        self.builds.credit(matches, slots, keys)
        return matches
