"""The routing decision: the node that is expected to finish first. Pure.

    expected finish [s] = queued prefill tokens / rate + W * uncached prompt tokens / rate

``W`` weighs the request's own prefill against waiting: prefill made anew is paid by everyone behind it too, so affinity
is worth several times its own cost. One default for all workloads. A node whose rate is not measured yet counts with
the mean of the measured ones: an unknown node is neither shunned nor flooded.

Ties (within `TIE`) go to the session's last node, then to the node with fewer requests, then by rendezvous hash of the
prompt's first key: equal for every gateway, so that a cold prefix is built on one node and not on each.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_WEIGHT = 5.0
DEFAULT_RATE = 1000.0
"""Tokens per second assumed while no node was measured. Only ratios matter then."""
TIE = 0.05
"""Scores within this share of the best one are equal: the estimates are no better than that."""


@dataclass(frozen=True)
class Candidate:
    """What is known of one node when a request is placed."""

    node: str
    matched_tokens: int
    """Leading prompt tokens the node holds."""
    queued_tokens: int
    """Prefill tokens ahead of this request, those dispatched and not yet reported included."""
    requests: int
    """Requests of this gateway on the node."""
    prefill_tokens_per_s: float
    """0: not measured."""


@dataclass(frozen=True)
class Decision:
    node: str
    matched_tokens: int
    expected_s: float
    """The score that won; seconds if the rates are right."""


def decide(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    *,
    session_node: str | None = None,
    anchor: bytes = b"",
    weight: float = DEFAULT_WEIGHT,
) -> Decision:
    """The best of ``candidates`` (at least one) for a prompt of ``prompt_tokens``.

    ``session_node``: where the session's last turn ran. ``anchor``: the prompt's first block key.
    """
    measured = [candidate.prefill_tokens_per_s for candidate in candidates if candidate.prefill_tokens_per_s > 0]
    fallback = sum(measured) / len(measured) if measured else DEFAULT_RATE

    def score(candidate: Candidate) -> float:
        rate = candidate.prefill_tokens_per_s if candidate.prefill_tokens_per_s > 0 else fallback
        uncached = max(prompt_tokens - candidate.matched_tokens, 0)
        return (max(candidate.queued_tokens, 0) + weight * uncached) / rate

    scored = [(score(candidate), candidate) for candidate in candidates]
    bar = min(value for value, _ in scored) * (1 + TIE)
    tied = [(value, candidate) for value, candidate in scored if value <= bar]
    value, best = min(
        tied,
        key=lambda pair: (
            pair[1].node != session_node,
            pair[1].requests,
            hashlib.sha256(anchor + pair[1].node.encode()).digest(),
        ),
    )
    return Decision(node=best.node, matched_tokens=best.matched_tokens, expected_s=value)


class Backlog:
    """Prefill tokens waiting at one node: our own counted from dispatch (ROU-02), others' from the node's reports.

    A report is up to a heartbeat old and already holds what we had under way when it was made; only its excess over
    that is other gateways' work.
    """

    def __init__(self) -> None:
        self._own: dict[str, int] = {}
        self._own_tokens = 0
        self._others = 0

    @property
    def tokens(self) -> int:
        return self._own_tokens + self._others

    def dispatched(self, request_id: str, tokens: int) -> None:
        self.prefilled(request_id)
        self._own[request_id] = tokens
        self._own_tokens += tokens

    def prefilled(self, request_id: str) -> None:
        """The request's prefill is done, or it ended. Repeating it changes nothing."""
        self._own_tokens -= self._own.pop(request_id, 0)

    def reported(self, queued_tokens: int) -> None:
        self._others = max(queued_tokens - self._own_tokens, 0)

    def clear(self) -> None:
        self._own.clear()
        self._own_tokens = self._others = 0
