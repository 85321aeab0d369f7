"""Ours, and what it is measured against. Each policy sees what a gateway knows, and nothing else.

Baselines are the usual ones, as plain as they come; all of them break ties by the shorter queue, then by the fewer
requests sent so far.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final, Protocol

from kvgrove_cli.simulate.gateway import SimulatedGateway
from kvgrove_cli.simulate.workload import Arrival
from kvgrove_cli.trace.requests import BLOCK_TOKENS
from kvgrove_gateway.router.index import NOTHING
from kvgrove_gateway.router.placement import NodeView

_HASHED_BLOCKS: Final = 2


class Policy(Protocol):
    def place(self, arrival: Arrival, gateway: SimulatedGateway, views: Sequence[NodeView]) -> tuple[str, int]:
        """The node, one of ``views``, and how many tokens it is expected to compute. Counts as sent."""


class Ours:
    """The gateway's router, as it is."""

    def place(self, arrival: Arrival, gateway: SimulatedGateway, views: Sequence[NodeView]) -> tuple[str, int]:
        prompt = arrival.prompt
        choice = gateway.router.choose(views, prompt.tokens, prompt.chain.keys, BLOCK_TOKENS, session=arrival.session)
        gateway.router.dispatched(choice, session=arrival.session)
        return choice.decision.node, choice.uncached_tokens


@dataclass(frozen=True, slots=True)
class _Ask:
    arrival: Arrival
    views: Sequence[NodeView]
    matches: Mapping[str, int]
    """Node -> leading blocks it holds or is computing."""


class _Baseline(ABC):
    def __init__(self, random: Random) -> None:
        self.random = random
        self.sent: Counter[str] = Counter()

    def place(self, arrival: Arrival, gateway: SimulatedGateway, views: Sequence[NodeView]) -> tuple[str, int]:
        prompt = arrival.prompt
        found = gateway.matches(views, prompt.chain.keys)
        matches = {view.name: found.get(view.name, NOTHING) for view in views}
        node = self.choose(_Ask(arrival, views, {name: each.blocks + each.building for name, each in matches.items()}))
        self.sent[node] += 1
        match = matches[node]
        uncached = max(prompt.tokens - (match.blocks + match.building) * BLOCK_TOKENS, 0)
        view = next(view for view in views if view.name == node)
        gateway.note_build(view, prompt.chain.keys, match, uncached)
        return node, uncached

    @abstractmethod
    def choose(self, ask: _Ask) -> str:
        """The node's name."""

    def least_loaded(self, views: Sequence[NodeView]) -> str:
        return min(views, key=lambda view: (view.queued_tokens, self.sent[view.name])).name


class RoundRobin(_Baseline):
    def choose(self, ask: _Ask) -> str:
        return ask.views[self.sent.total() % len(ask.views)].name


class AtRandom(_Baseline):
    def choose(self, ask: _Ask) -> str:
        return self.random.choice(ask.views).name


class LeastLoaded(_Baseline):
    def choose(self, ask: _Ask) -> str:
        return self.least_loaded(ask.views)


class LongestMatch(_Baseline):
    def choose(self, ask: _Ask) -> str:
        longest = max(ask.matches[view.name] for view in ask.views)
        return self.least_loaded([view for view in ask.views if ask.matches[view.name] == longest])


class Hash(_Baseline):
    """Of the prompt's first two blocks: rendezvous, so that a node that leaves moves only its own."""

    def choose(self, ask: _Ask) -> str:
        beginning = _beginning(ask.arrival)
        return max(ask.views, key=lambda view: hashlib.sha256(beginning + view.name.encode()).digest()).name


class SessionSticky(_Baseline):
    """Sessions go round, and stay. Where the trace names none, prompts that begin alike are one."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._nodes: dict[bytes, str] = {}

    def choose(self, ask: _Ask) -> str:
        session = ask.arrival.session if ask.arrival.session is not None else _beginning(ask.arrival)
        node = self._nodes.get(session, "")
        if node not in {view.name for view in ask.views}:
            node = self._nodes[session] = ask.views[len(self._nodes) % len(ask.views)].name
        return node


def _beginning(arrival: Arrival) -> bytes:
    return b"".join(arrival.prompt.chain.keys[:_HASHED_BLOCKS])


OURS: Final = "ours"
MAKERS: Final[Mapping[str, Callable[[Random], Policy]]] = MappingProxyType(
    {
        OURS: lambda _: Ours(),
        "round-robin": RoundRobin,
        "random": AtRandom,
        "session-sticky": SessionSticky,
        "hash": Hash,
        "longest-match": LongestMatch,
        "least-loaded": LeastLoaded,
    }
)
"""Name -> the policy."""
