"""The routing decision: the node where a request costs everybody least. Pure.

    score [s] = (queued + W * uncached) / rate
    W = (1 + reuse / (1 - reuse) * sqrt(pressure)) / (1 - busy)^2

- *queued*: prefill tokens ahead of the request, those just dispatched included (ROU-02);
- *uncached*: prompt tokens the node would have to compute, what fetching from slower tiers costs included;
- *busy*: the share of nodes that requests lately found with a queue. In a queue of utilisation ``u`` there are
  ``u / (1 - u)`` requests (M/M/1), so one more second of work adds ``1 / (1 - u)^2`` seconds to all stays together.
  Idle nodes make it 1: then a request is sent where it finishes first;
- *reuse*: the share of prompt tokens that lately needed no prefill. A token computed anew pushes out another, which is
  asked for again with about this chance, and pushes out a third: ``r + r^2 + ... = r / (1 - r)`` tokens more. It is an
  upper estimate, since what gives way is what is least likely to be asked for;
- *pressure*: prefill tokens placed on the node lately over the mean of all (`recent`). What a node computes it also
  stores, and one that stores more keeps blocks for less long, so that younger ones give way there. The root is damping.

Only differences between nodes matter: what all of them hold, or none, decides nothing, and then queue and pressure do.
A prefix that few nodes hold is computed on another one as soon as their queues exceed what it saves.

All of it is measured; there is nothing to set. A node whose rate is not measured yet counts with the mean of the
measured ones: an unknown node is neither shunned nor flooded. Scores within `TIE` of the best are equal: such a tie
goes to the session's last node, which may hold more than the index knows, then to the node with fewer requests, then
by rendezvous hash of the prompt's first key: equal for every gateway, so that a cold prefix is built on one node and
not on each.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

DEFAULT_RATE: Final = 1000.0
"""Tokens per second assumed while no node was measured. Only ratios matter then."""
TIE: Final = 0.02
"""In prefills of the prompt. The estimates are no better than that."""
MOST_BUSY: Final = 0.9
MOST_REUSE: Final = 0.95
"""Beyond these the estimates of W say nothing: it would grow without bound."""


class Lately(NamedTuple):
    """What requests found, of late."""

    busy: float = 0.0
    """Share of nodes with a queue, 0 to 1."""
    reuse: float = 0.0
    """Share of prompt tokens that needed no prefill, 0 to 1."""


class Candidate(NamedTuple):
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
    """The session was there before, and no other node is better."""
    LOAD = "load"
    """Nobody has any of the prompt, or who has more of it is too busy or stores too much."""


class Row(NamedTuple):
    """One line of an explanation."""

    node: str
    matched_tokens: int
    queued_tokens: int
    recent_tokens: float
    score_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    node: str
    matched_tokens: int
    expected_s: float
    """Until the prompt is computed: queue and own prefill; seconds if the rates are right."""
    why: Why
    _candidates: Sequence[Candidate] = field(repr=False)
    _scores: Sequence[float] = field(repr=False)

    def explain(self) -> list[Row]:
        """All candidates, best first. Made when asked for, not for each request (PER-03)."""
        rows = [
            Row(
                node=each.node,
                matched_tokens=each.matched_tokens,
                queued_tokens=each.queued_tokens,
                recent_tokens=each.recent_tokens,
                score_s=score,
            )
            for each, score in zip(self._candidates, self._scores, strict=True)
        ]
        return sorted(rows, key=lambda row: (row.node != self.node, row.score_s))


def decide(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    *,
    lately: Lately = Lately(),  # noqa: B008 - immutable
    session_node: str | None = None,
    anchor: bytes = b"",
) -> Decision:
    """The best of ``candidates`` (at least one) for a prompt of ``prompt_tokens``.

    ``session_node``: where the session's last turn ran. ``anchor``: the prompt's first block key.
    """
    measured = [candidate.prefill_tokens_per_s for candidate in candidates if candidate.prefill_tokens_per_s > 0]
    fallback = sum(measured) / len(measured) if measured else DEFAULT_RATE
    mean = sum([candidate.recent_tokens for candidate in candidates]) / len(candidates)
    delay = 1 / (1 - min(lately.busy, MOST_BUSY)) ** 2
    reuse = min(lately.reuse, MOST_REUSE)
    pushed_out = reuse / (1 - reuse)
    rates: list[float] = []
    scores: list[float] = []
    for _, matched, queued, _, rate, fetch, recent in candidates:
        if rate <= 0:
            rate = fallback  # noqa: PLW2901 - unknown
        pressure = math.sqrt(recent / mean) if mean > 0 and recent > 0 else float(mean <= 0)
        weight = (1 + pushed_out * pressure) * delay
        rates.append(rate)
        scores.append((max(queued, 0) + weight * (max(prompt_tokens - matched, 0) + fetch)) / rate)
    limit = min(scores) + TIE * prompt_tokens / fallback
    at = _break_tie(candidates, [at for at, score in enumerate(scores) if score <= limit], session_node, anchor)
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
    )


def _break_tie(candidates: Sequence[Candidate], tied: Sequence[int], session_node: str | None, anchor: bytes) -> int:
    if len(tied) == 1:
        return tied[0]
    for at in tied:
        if candidates[at].node == session_node:
            return at
    fewest = min([candidates[at].requests for at in tied])
    return min(
        [at for at in tied if candidates[at].requests == fewest],
        key=lambda at: hashlib.sha256(anchor + candidates[at].node.encode()).digest(),
    )


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
