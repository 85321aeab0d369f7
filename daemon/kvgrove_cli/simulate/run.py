"""One run: arrivals through one gateway to the nodes, in simulated time.

Role: the order in which things happen, and what was observed of each request. Invariants: the same arguments give the
same run; a gateway learns of a change when the node's batch about it is out, never earlier. Must not know: how a policy
decides, how results are shown.

A node that restarts is away for `AWAY_S`; the requests it had are sent elsewhere at once, and count once, with all the
time they waited. A gateway that restarts knows nothing for `SNAPSHOT_S`; requests under way go on.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kvgrove_cli.simulate.gateway import SimulatedGateway
from kvgrove_cli.simulate.node import Served, SimulatedNode
from kvgrove_cli.simulate.policies import MAKERS
from kvgrove_cli.simulate.workload import Arrival
from kvgrove_protocol.events import Event, Removed, Stored

AWAY_S: Final = 30.0
SNAPSHOT_S: Final = 1.0
HEARTBEAT_S: Final = 1.0
"""A node that has nothing to tell tells its load."""


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: int
    slots: int
    """Blocks of each node."""
    tokens_per_s: float
    """Prefill of each node."""
    eviction: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong; nothing by default. Times in seconds since the first arrival."""

    restart_node_s: float | None = None
    restart_gateway_s: float | None = None
    lose_evictions: float = 0.0
    """Share of removal events that never arrive, unnoticed."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One request."""

    at_s: float
    node: int
    prompt_tokens: int
    prefilled_tokens: int
    wait_s: float
    """From its arrival to the start of its prefill."""
    ttft_s: float


@dataclass(slots=True)
class Result:
    requests: list[Observed] = field(default_factory=list)
    """By the end of their prefill."""
    retried: int = 0
    cut: int = 0
    evictions: int = 0
    """Blocks that gave way to others."""
    fallbacks: int = 0
    """Decisions at the router's deadline; 0 in simulated time unless something is wrong."""


class Simulation:
    """Mutable; run once."""

    def __init__(self, fleet: Fleet, policy: str, trouble: Trouble, *, seed: int) -> None:
        """``seed``: of the policy's and the trouble's chance."""
        random = Random(seed)  # noqa: S311 - reproducible, and nothing secret
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._trouble = trouble
        self._chance = Random(random.random())  # noqa: S311
        self._policy = MAKERS[policy](random)
        self._nodes = [
            SimulatedNode(f"node-{at}", fleet.slots, fleet.eviction, fleet.tokens_per_s) for at in range(fleet.nodes)
        ]
        self._numbers = {node.name: at for at, node in enumerate(self._nodes)}
        self._waiting: dict[str, tuple[SimulatedNode, Arrival]] = {}  # by request id, until its prefill ends
        self._gateway = SimulatedGateway(self._numbers, self._clock)
        self._result = Result()
        for node in self._nodes:
            self._connect(node)
            self._gateway.snapshot(node.name, node.snapshot())
        self._at(HEARTBEAT_S, self._heartbeats)
        if trouble.restart_node_s is not None:
            self._at(trouble.restart_node_s, self._restart_node)
        if trouble.restart_gateway_s is not None:
            self._at(trouble.restart_gateway_s, self._restart_gateway)

    def run(self, arrivals: Iterable[Arrival]) -> Result:
        for arrival in arrivals:
            self._until(arrival.at_s)
            self._now = arrival.at_s
            self._send(arrival)
        while self._waiting:
            self._until(self._due[0][0])
        self._result.cut += sum(node.cut for node in self._nodes)
        self._result.evictions += sum(node.evictions for node in self._nodes)
        self._result.fallbacks += self._gateway.router.fallbacks
        return self._result

    # -- time ----------------------------------------------------------------------------------------------------------

    def _clock(self) -> float:
        return self._now

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._due, (when, self._serial, what))

    def _until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            self._now, _, what = heapq.heappop(self._due)
            what()

    def _heartbeats(self) -> None:
        for node in self._nodes:
            self._gateway.batch(node.name, node.batch([], self._now))
        self._at(self._now + HEARTBEAT_S, self._heartbeats)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _send(self, arrival: Arrival) -> None:
        name, uncached = self._policy.place(arrival, self._gateway, self._gateway.views())
        node = self._nodes[self._numbers[name]]
        self._serial += 1
        request_id = str(self._serial)
        self._gateway.sent(name, request_id, uncached)
        served = node.serve(arrival.prompt, self._now)
        self._waiting[request_id] = node, arrival
        self._at(served.starts_s, lambda: self._started(request_id, served))
        self._at(served.ends_s, lambda: self._prefilled(request_id, served))

    def _started(self, request_id: str, served: Served) -> None:
        if request_id not in self._waiting:
            return  # its node restarted
        node, _ = self._waiting[request_id]
        self._gateway.started(node.name, request_id, served.prefilled_tokens)
        removed: list[Event] = [event for event in served.events if isinstance(event, Removed)]
        if removed:
            self._gateway.batch(node.name, node.batch(self._arriving(removed), self._now))

    def _prefilled(self, request_id: str, served: Served) -> None:
        if request_id not in self._waiting:
            return  # its node restarted
        node, arrival = self._waiting.pop(request_id)
        self._gateway.prefilled(node.name, request_id)
        stored: list[Event] = [event for event in served.events if isinstance(event, Stored)]
        self._gateway.batch(node.name, node.batch(stored, self._now))
        self._result.requests.append(
            Observed(
                at_s=arrival.at_s,
                node=self._numbers[node.name],
                prompt_tokens=arrival.prompt.tokens,
                prefilled_tokens=served.prefilled_tokens,
                wait_s=served.starts_s - arrival.at_s,
                ttft_s=served.ends_s - arrival.at_s,
            )
        )

    def _arriving(self, events: list[Event]) -> list[Event]:
        lost = self._trouble.lose_evictions
        if not lost:
            return events
        return [event for event in events if not isinstance(event, Removed) or self._chance.random() >= lost]

    # -- trouble -------------------------------------------------------------------------------------------------------

    def _connect(self, node: SimulatedNode) -> None:
        self._gateway.connect(node.name, node.boot, node.tokens_per_s)

    def _restart_node(self) -> None:
        node = self._nodes[0]
        self._gateway.lose(node.name)
        self._result.cut += node.cut
        self._result.evictions += node.evictions
        node.restart(self._now + AWAY_S)
        lost = [(request_id, arrival) for request_id, (at, arrival) in self._waiting.items() if at is node]
        self._at(self._now + AWAY_S, lambda: self._joined(node))
        for request_id, arrival in lost:
            del self._waiting[request_id]
            if len(self._nodes) > 1:
                self._result.retried += 1
                self._send(arrival)

    def _joined(self, node: SimulatedNode) -> None:
        self._connect(node)
        self._gateway.snapshot(node.name, node.snapshot())

    def _restart_gateway(self) -> None:
        self._result.fallbacks += self._gateway.router.fallbacks
        self._gateway = SimulatedGateway(self._numbers, self._clock)
        for node in self._nodes:
            self._connect(node)
        self._at(self._now + SNAPSHOT_S, self._listed)

    def _listed(self) -> None:
        for node in self._nodes:
            self._gateway.snapshot(node.name, node.snapshot())
