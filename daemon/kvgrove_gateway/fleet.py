"""All nodes of the plan: keeps one link for each, places requests, finds bundles.

Placing is the router's pure decision over what the links know. A prompt whose keys are not known is placed by load.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvgrove_gateway.errors import NodeLost, Unavailable
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.node_link import LinkState, NodeLink
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.decide import Decision
from kvgrove_gateway.router.feed import FeedState
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.router.placement import Choice, NodeView, Router
from kvgrove_gateway.settings import Limits
from kvgrove_protocol.control import NodeEndpoint, fits

log = logging.getLogger(__name__)

MakeLink = Callable[[NodeEndpoint, NodeResidency], NodeLink]


@dataclass(frozen=True)
class Placement:
    link: NodeLink
    choice: Choice
    session: bytes | None

    @property
    def decision(self) -> Decision:
        return self.choice.decision


class Fleet:
    """The links of the plan in force. On the event loop only."""

    def __init__(self, make_link: MakeLink, *, limits: Limits, metrics: Metrics, clock: Callable[[], float]) -> None:
        """``clock``: seconds, for the decision's deadline."""
        self.index = BlockIndex(limits.index_blocks)
        self.router = Router(self.index, clock=clock, deadline_s=limits.route_deadline_s, sessions=limits.sessions)
        self._make_link = make_link
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._links: dict[str, NodeLink] = {}
        self._retired: list[NodeLink] = []
        self._tasks: dict[NodeLink, asyncio.Task[None]] = {}

    def follow(self, endpoints: Sequence[NodeEndpoint]) -> None:
        """Link to exactly these. Another boot or address of a member is another link (ROU-08).

        Links that the plan no longer names are retired: they finish what is under way, and serve on while no planned
        node is ready. Nodes judge requests by their own plan and leases, so that is never a question of freshness.
        """
        wanted = {endpoint.member: endpoint for endpoint in endpoints if endpoint.address}
        for member in [member for member, link in self._links.items() if wanted.get(member) != link.endpoint]:
            link = self._links.pop(member)
            link.retire()
            self._retired.append(link)
        for member, endpoint in wanted.items():
            if member not in self._links:
                self._links[member] = self._revived(endpoint) or self._started(endpoint)

    def _revived(self, endpoint: NodeEndpoint) -> NodeLink | None:
        for link in self._retired:
            if link.endpoint == endpoint and link in self._tasks and not self._tasks[link].done():
                self._retired.remove(link)
                link.revive()
                return link
        return None

    def _started(self, endpoint: NodeEndpoint) -> NodeLink:
        link = self._make_link(endpoint, NodeResidency(self.index, self._metrics, endpoint.member))
        task = self._tasks[link] = asyncio.create_task(link.run(), name=f"link to {endpoint.member}")
        task.add_done_callback(lambda done: self._ended(link, done))
        return link

    def _ended(self, link: NodeLink, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(link, None)
        if link in self._retired:
            self._retired.remove(link)
        if self._links.get(link.name) is link:
            del self._links[link.name]  # the next plan starts it anew
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.critical("%s ended", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """End every link; requests under way fail."""
        tasks = list(self._tasks.values())
        self._links.clear()
        self._retired.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def ready(self) -> list[NodeLink]:
        """Links that take requests: planned ones, or retired ones where no planned one is up."""
        return self.ready_for("")

    def ready_for(self, placement: str) -> list[NodeLink]:
        """The same of those that hold models of ``placement``."""
        up = [
            [link for link in links if link.state is LinkState.READY and fits(link.endpoint.placement, placement)]
            for links in (self._links.values(), self._retired)
        ]
        return up[0] or up[1]

    def states(self) -> dict[str, int]:
        """Links by state, for metrics."""
        counts = {state.value: 0 for state in LinkState} | {"retired": len(self._retired)}
        for link in self._links.values():
            counts[link.state.value] += 1
        return counts

    def sources(self) -> dict[str, int]:
        """Links by the state of their residency stream, for metrics."""
        counts = {state.value: 0 for state in FeedState}
        for link in self._links.values():
            counts[link.residency.state.value] += 1
        return counts

    def imbalance(self) -> float:
        """Largest prefill backlog of a connected node over the mean of them all; 0 without any."""
        waiting = [max(link.backlog.tokens, 0) for link in self.ready]
        return max(waiting) * len(waiting) / total if (total := sum(waiting)) else 0.0

    def place(
        self,
        prompt_tokens: int,
        keys: Sequence[bytes],
        block_size: int,
        *,
        session: bytes | None = None,
        without: Collection[str] = (),
        placement: str = "",
    ) -> Placement:
        """The node to send a prompt to; raises Unavailable if there is none.

        ``keys``: the prompt's block keys, empty where it is served cold. ``without``: nodes that failed it already.
        ``placement``: of the model that is to answer.
        """
        began = self._clock()
        links = {link.name: link for link in self.ready_for(placement) if link.name not in without}
        if not links:
            raise Unavailable("No node can take the request now: try again.", code="no_node")
        fallbacks = self.router.fallbacks
        choice = self.router.choose(
            [
                NodeView(
                    name=name,
                    slot=link.residency.slot,
                    queued_tokens=link.backlog.tokens,
                    requests=link.requests,
                    prefill_tokens_per_s=link.load.prefill_tokens_per_s,
                    surplus_tokens=link.backlog.take_surplus(),
                    full=link.load.full,
                )
                for name, link in links.items()
            ],
            prompt_tokens,
            keys,
            block_size,
            session=session,
        )
        self._metrics.route_fallbacks.inc(self.router.fallbacks - fallbacks)
        self._metrics.decision.observe(self._clock() - began)
        return Placement(links[choice.decision.node], choice, session)

    def resident_tokens(self, keys: Sequence[bytes], block_size: int) -> int:
        """Leading tokens of a prompt that the node which holds most of it holds."""
        slots = {link.name: slot for link in self.ready if (slot := link.residency.slot) is not None}
        found = self.index.longest_matches(slots, keys) or {}
        return max(found.values(), default=0) * block_size

    def dispatched(self, placement: Placement) -> None:
        """The request is on its way to the node: the next decision takes it into account."""
        overflows = self.router.builds.overflows
        self.router.dispatched(placement.choice, session=placement.session)
        self._metrics.builds_unnoted.inc(self.router.builds.overflows - overflows)

    async def bundle(self, digest: bytes) -> bytes:
        """A tokenizer bundle from any node that has it; raises NodeLost if none does now."""
        for link in self.ready:
            try:
                return await link.bundle(digest)
            except NodeLost:
                continue
        raise NodeLost("no connected node has the bundle", code="no_bundle")
