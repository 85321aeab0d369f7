"""The routing decision: the node that is expected to finish first, for everybody. Pure.

    score [s] = (queued + W * uncached + V * recent) / rate

- *queued*: prefill tokens ahead of the request, those just dispatched included (ROU-02);
- *uncached*: prompt tokens the node would have to compute, what fetching from slower tiers costs included. ``W`` weighs
  them against waiting: work done anew delays everyone behind it, and pushes out as many tokens of somebody else's;
- *recent*: prefill tokens placed on the node lately (`recent`). The queue forgets at once; caches do not: a node
  that was given more new tokens than others keeps what it holds for less long. New chains therefore go where least was
  built lately, and that evens out both the work and the age at which blocks are evicted.

*Bounded load:* a node whose recent work exceeds `BOUND` times the mean by more than this prompt is left out. Without
it, two chains that do not fit into one cache together would recompute each other's blocks there for ever, since even
half a match outweighs any other term.

One setting for all workloads. A node whose rate is not measured yet counts with the mean of the measured ones: an
unknown node is neither shunned nor flooded. The session's last node wins where, its recent work apart, it is within
`SESSION` of the best: it may hold more than the index knows. Scores within `TIE` of the best are equal, and go to the
node with fewer requests, then by rendezvous hash of the prompt's first key: equal for every gateway, so that a cold
prefix is built on one node and not on each.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

DEFAULT_WEIGHT: Final = 30.0
RECENT_WEIGHT: Final = 1.0
DEFAULT_RATE: Final = 1000.0
"""Tokens per second assumed while no node was measured. Only ratios matter then."""
TIE: Final = 0.02
"""In prefills of the prompt. The estimates are no better than that."""
SESSION: Final = 0.02
"""In prefills of the prompt."""
BOUND: Final = 1.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of one node when a request is placed."""

    node: str
    matched_tokens: int
    """Leading prompt tokens the node holds, or is computing for somebody already."""
    queued_tokens: int
    """Prefill tokens ahead of this request, those dispatched and not yet reported included."""
    requests: int
    """Requests of this gateway on the node."""
    prefill_tokens_per_s: float
    """0: not measured."""
    fetch_tokens: float = 0.0
    """What getting at the matched tokens costs, as prefill tokens: slower tiers, builds that may fail."""
    recent_tokens: float = 0.0
    """Prefill tokens placed on it lately, see `recent`."""


class Why(Enum):
    """What decided, in one word."""

    ONLY = "only"
    """There was no other node."""
    REUSE = "reuse"
    """It has more of the prompt than any other, or as much."""
    SESSION = "session"
    """The session was there before, and no other node is much better."""
    LOAD = "load"
    """Nobody has any of the prompt, or who has more of it is too busy or did too much lately."""


class Row(NamedTuple):
    """One line of an explanation."""

    node: str
    matched_tokens: int
    queued_tokens: int
    recent_tokens: float
    score_s: float
    left_out: bool
    """By bounded load."""


@dataclass(frozen=True, slots=True)
class Decision:
    node: str
    matched_tokens: int
    expected_s: float
    """Until the prompt is computed: queue and own prefill; seconds if the rates are right."""
    why: Why
    _candidates: Sequence[Candidate] = field(repr=False)
    _scores: Sequence[float] = field(repr=False)
    _left_out: Collection[str] = field(repr=False)

    def explain(self) -> list[Row]:
        """All candidates, best first. Made when asked for, not for each request (PER-03)."""
        rows = [
            Row(
                node=each.node,
                matched_tokens=each.matched_tokens,
                queued_tokens=each.queued_tokens,
                recent_tokens=each.recent_tokens,
                score_s=score,
                left_out=each.node in self._left_out,
            )
            for each, score in zip(self._candidates, self._scores, strict=True)
        ]
        return sorted(rows, key=lambda row: (row.node != self.node, row.left_out, row.score_s))


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
    rates = [each.prefill_tokens_per_s if each.prefill_tokens_per_s > 0 else fallback for each in candidates]
    recent = [each.recent_tokens / rate for each, rate in zip(candidates, rates, strict=True)]
    mean = sum(recent) / len(recent)
    scores: list[float] = []
    left_out: set[str] = set()
    for each, rate, lately in zip(candidates, rates, recent, strict=True):
        uncached = max(prompt_tokens - each.matched_tokens, 0) + each.fetch_tokens
        scores.append((max(each.queued_tokens, 0) + weight * uncached) / rate + RECENT_WEIGHT * (lately - mean))
        if lately > BOUND * mean + prompt_tokens / rate:
            left_out.add(each.node)
    fit = [at for at, each in enumerate(candidates) if each.node not in left_out]
    best = min(scores[at] for at in fit)
    own_s = prompt_tokens / fallback
    at = _break_tie(candidates, [at for at in fit if scores[at] <= best + TIE * own_s], anchor)
    returning = next((at for at in fit if candidates[at].node == session_node), at)
    ahead = scores[returning] - scores[at] - RECENT_WEIGHT * (recent[returning] - recent[at])
    if ahead <= SESSION * own_s:
        at = returning
    chosen = candidates[at]
    if len(candidates) == 1:
        why = Why.ONLY
    elif chosen.matched_tokens and chosen.matched_tokens == max(each.matched_tokens for each in candidates):
        why = Why.REUSE
    elif chosen.node == session_node:
        why = Why.SESSION
    else:
        why = Why.LOAD
    uncached = max(prompt_tokens - chosen.matched_tokens, 0) + chosen.fetch_tokens
    return Decision(
        node=chosen.node,
        matched_tokens=chosen.matched_tokens,
        expected_s=(max(chosen.queued_tokens, 0) + uncached) / rates[at],
        why=why,
        _candidates=candidates,
        _scores=scores,
        _left_out=left_out,
    )


def _break_tie(candidates: Sequence[Candidate], tied: Sequence[int], anchor: bytes) -> int:
    if len(tied) == 1:
        return tied[0]

    def order(at: int) -> tuple[int, bytes]:
        return candidates[at].requests, hashlib.sha256(anchor + candidates[at].node.encode()).digest()

    return min(tied, key=order)


class Backlog:
    """Prefill tokens waiting at one node: our own counted from dispatch (ROU-02), others' from the node's reports.

    A report is up to a heartbeat old and already holds what we had under way when it was made; only its excess over
    that is other gateways' work.
    """

    def __init__(self) -> None:
        self._own: dict[str, int] = {}
        self._own_tokens = 0
        self._others = 0
        self._surplus = 0

    @property
    def tokens(self) -> int:
        return self._own_tokens + self._others

    def dispatched(self, request_id: str, tokens: int) -> None:
        self.prefilled(request_id)
        self._own[request_id] = tokens
        self._own_tokens += tokens

    def started(self, request_id: str, tokens: int) -> None:
        """The node says how many tokens it really has to compute."""
        if request_id in self._own:
            surplus = tokens - self._own[request_id]
            self._own[request_id] = tokens
            self._own_tokens += surplus
            self._surplus += surplus

    def take_surplus(self) -> int:
        """By how much more (or less) nodes had to compute than was expected, since this was last asked."""
        surplus, self._surplus = self._surplus, 0
        return surplus

    def prefilled(self, request_id: str) -> None:
        """The request's prefill is done, or it ended. Repeating it changes nothing."""
        self._own_tokens -= self._own.pop(request_id, 0)

    def reported(self, queued_tokens: int) -> None:
        self._others = max(queued_tokens - self._own_tokens, 0)

    def clear(self) -> None:
        self._own.clear()
        self._own_tokens = self._others = self._surplus = 0
