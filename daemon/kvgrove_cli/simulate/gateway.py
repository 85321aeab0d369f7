"""What a gateway knows of the nodes, kept by its own parts: index, feeds, backlogs, router.

Role: the same calls that node links and the fleet make, with the simulation's clock. Invariants: nothing here looks
into a node. Must not know: how time passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.decide import Backlog
from kvgrove_gateway.router.index import BlockIndex, Match
from kvgrove_gateway.router.placement import NodeView, Router
from kvgrove_gateway.settings import Limits
from kvgrove_protocol.events import EventBatch, SnapshotChunk


class _Link:
    def __init__(self, residency: NodeResidency) -> None:
        self.residency = residency
        self.backlog = Backlog()
        self.requests = 0
        self.tokens_per_s = 0.0
        self.full = False
        self.up = False


class SimulatedGateway:
    """One boot of one gateway."""

    def __init__(self, nodes: Iterable[str], clock: Callable[[], float]) -> None:
        limits = Limits()
        self.index = BlockIndex(limits.index_blocks)
        self.router = Router(self.index, clock=clock, deadline_s=limits.route_deadline_s, sessions=limits.sessions)
        self._clock = clock
        metrics = Metrics()
        self._links = {name: _Link(NodeResidency(self.index, metrics, name)) for name in nodes}

    def connect(self, node: str, boot: str, tokens_per_s: float) -> None:
        """A link to a boot of ``node`` is up; what it holds is unknown until its snapshot is here."""
        link = self._links[node]
        link.up = True
        link.tokens_per_s = tokens_per_s
        link.residency.begin(boot, self._clock(), "start")

    def snapshot(self, node: str, snapshot: SnapshotChunk) -> None:
        self._links[node].residency.chunk(snapshot, self._clock())

    def lose(self, node: str) -> None:
        """The link has dropped."""
        link = self._links[node]
        link.up, link.full, link.requests = False, False, 0
        link.residency.end()
        link.backlog.clear()

    def batch(self, node: str, batch: EventBatch) -> None:
        link = self._links[node]
        if link.up:
            link.full = batch.load.full
            link.backlog.reported(batch.load.queued_prefill_tokens)
            link.residency.batch(batch, self._clock())
        while self.index.sweep():
            pass

    def sent(self, node: str, request_id: str, uncached_tokens: int) -> None:
        link = self._links[node]
        link.requests += 1
        link.backlog.dispatched(request_id, uncached_tokens)

    def started(self, node: str, request_id: str, uncached_tokens: int) -> None:
        """The node has admitted a request, and says what it lacks."""
        self._links[node].backlog.started(request_id, uncached_tokens)

    def prefilled(self, node: str, request_id: str) -> None:
        """The first token of a request has come."""
        link = self._links[node]
        link.requests = max(link.requests - 1, 0)
        link.backlog.prefilled(request_id)

    def views(self) -> list[NodeView]:
        """The nodes that take requests now."""
        return [
            NodeView(
                name=name,
                slot=link.residency.slot,
                queued_tokens=link.backlog.tokens,
                requests=link.requests,
                prefill_tokens_per_s=link.tokens_per_s,
                surplus_tokens=link.backlog.take_surplus(),
                full=link.full,
            )
            for name, link in self._links.items()
            if link.up
        ]

    def matches(self, views: Sequence[NodeView], keys: Sequence[bytes]) -> dict[str, Match]:
        """Node -> what it has of a prompt, builds under way included, as the router sees it."""
        slots = {view.name: view.slot for view in views if view.slot is not None}
        self.router.builds.expire(self._clock())
        matches = self.index.weighed_matches(slots, keys) or {}
        self.router.builds.credit(matches, slots, keys)
        return matches

    def note_build(self, view: NodeView, keys: Sequence[bytes], match: Match, uncached_tokens: int) -> None:
        """A policy that is not the router has sent a prompt: the node is computing what it lacks of it."""
        if view.slot is not None:
            expected_s = (view.queued_tokens + uncached_tokens) / view.prefill_tokens_per_s
            self.router.builds.begin(view.slot, keys, match.blocks, expected_s, self._clock())
