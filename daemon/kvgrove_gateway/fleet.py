"""All nodes of the plan: keeps one link for each, places requests, finds bundles.

Placing is the router's pure decision over what the links know. A prompt whose keys are not known is placed by load.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvgrove_gateway.errors import NodeLost, Unavailable
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.node_link import LinkState, NodeLink
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.decide import Candidate, Decision, decide
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.settings import Limits
from kvgrove_protocol.control import NodeEndpoint
from kvgrove_protocol.errors import KvgroveError

log = logging.getLogger(__name__)

MakeLink = Callable[[NodeEndpoint, NodeResidency], NodeLink]


@dataclass(frozen=True)
class Placement:
    link: NodeLink
    decision: Decision


class Fleet:
    """The links of the plan in force. On the event loop only."""

    def __init__(self, make_link: MakeLink, *, limits: Limits, metrics: Metrics, clock: Callable[[], float]) -> None:
        """``clock``: seconds, for the decision's deadline."""
        self.index = BlockIndex(limits.index_blocks)
        self._make_link = make_link
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._links: dict[str, NodeLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sessions: OrderedDict[bytes, str] = OrderedDict()

    def follow(self, endpoints: Sequence[NodeEndpoint]) -> None:
        """Link to exactly these. Another boot or address of a member is another link (ROU-08)."""
        wanted = {endpoint.member: endpoint for endpoint in endpoints if endpoint.address}
        for member in [member for member, link in self._links.items() if wanted.get(member) != link.endpoint]:
            del self._links[member]
            self._tasks.pop(member).cancel()
        for member, endpoint in wanted.items():
            if member not in self._links:
                link = self._make_link(endpoint, NodeResidency(self.index, self._metrics))
                self._links[member] = link
                task = self._tasks[member] = asyncio.create_task(link.run(), name=f"link to {member}")
                task.add_done_callback(_report_crash)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._links.clear()
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def ready(self) -> list[NodeLink]:
        return [link for link in self._links.values() if link.state is LinkState.READY]

    def states(self) -> dict[str, int]:
        """Links by state, for metrics."""
        counts = {state.value: 0 for state in LinkState}
        for link in self._links.values():
            counts[link.state.value] += 1
        return counts

    def place(
        self,
        prompt_tokens: int,
        keys: Sequence[bytes],
        block_size: int,
        *,
        session: bytes | None = None,
        without: Collection[str] = (),
    ) -> Placement:
        """The node to send a prompt to; raises Unavailable if there is none.

        ``keys``: the prompt's block keys, empty where it is served cold. ``without``: nodes that failed it already.
        """
        began = self._clock()
        links = {link.name: link for link in self.ready if link.name not in without}
        if not links:
            raise Unavailable("No node can take the request now: try again.", code="no_node")
        slots = {name: slot for name, link in links.items() if (slot := link.residency.slot) is not None}
        deadline = began + self._limits.route_deadline_s
        matches = self.index.longest_matches(slots, keys, late=lambda: self._clock() > deadline) if keys else {}
        if matches is None:
            self._metrics.route_fallbacks.inc()
            matches = {}
        candidates = [
            Candidate(
                node=name,
                # The last token is always computed, so a prompt is never wholly reused.
                matched_tokens=min(matches.get(name, 0) * block_size, max(prompt_tokens - 1, 0)),
                queued_tokens=link.backlog.tokens,
                requests=link.requests,
                prefill_tokens_per_s=link.load.prefill_tokens_per_s,
            )
            for name, link in links.items()
        ]
        decision = decide(
            candidates,
            prompt_tokens,
            session_node=None if session is None else self._sessions.get(session),
            anchor=keys[0] if keys else b"",
        )
        if session is not None:
            self._remember(session, decision.node)
        self._metrics.decision.observe(self._clock() - began)
        return Placement(links[decision.node], decision)

    async def bundle(self, digest: bytes) -> bytes:
        """A tokenizer bundle from any node that has it; raises NodeLost if none does now."""
        for link in self.ready:
            try:
                return await link.bundle(digest)
            except NodeLost:
                continue
        raise NodeLost("no connected node has the bundle", code="no_bundle")

    def _remember(self, session: bytes, node: str) -> None:
        self._sessions[session] = node
        self._sessions.move_to_end(session)
        while len(self._sessions) > self._limits.sessions:
            self._sessions.popitem(last=False)


def _report_crash(task: "asyncio.Task[None]") -> None:
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, KvgroveError):
        log.error("%s ended: %s", task.get_name(), error.code)
    elif error is not None:
        log.critical("%s ended: %s", task.get_name(), type(error).__name__, exc_info=error)
