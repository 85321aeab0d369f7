"""The routing decision: the node where a request costs everybody least. Pure.

    score [s] = (queued + W * over * uncached) / rate
    W = max(1, FIT / (1 - reuse)^1.5 / (1 - busy)^3)

- *queued*: prefill tokens ahead of the request, those just dispatched included (ROU-02);
- *uncached*: prompt tokens the node would have to compute, what fetching from slower tiers costs included;
- *W*: what a token computed anew costs, in tokens of waiting; one for all nodes, so that on equal queues the longest
  match wins. *busy* is the share of nodes that requests lately found with a queue: where many have one, a second of
  work more delays many. *reuse* is the share of prompt tokens that lately needed no prefill: a token computed anew
  pushes out another, which is asked for again with about this chance, and so on: ``1 + r + r^2 + ... = 1 / (1 - r)``.
  The forms are those of a geometric series and of a queue near saturation; exponents and `FIT` are fitted (see docs).
  At least 1: on calm nodes a request is sent where it finishes first;
- *over*: bounded load. A node whose cache is *full* pushes out what is younger, the more it is given: such a node that
  was given more than the mean lately counts its uncached tokens by ``sqrt(recent / mean)``. A node with room pushes
  nothing out, and is never over: a fleet that is idle and not full follows the prefix and nothing else.

What all of them hold, or none, decides nothing, and then queues do. A prefix that few nodes hold is computed on another
one as soon as their queues exceed what it saves.

All of it is measured; there is nothing to set. A node whose rate is not measured yet counts with the mean of the
measured ones: an unknown node is neither shunned nor flooded. Scores within `TIE` of the best are equal. Of equals, the
longest match wins, then the session's last node, which may hold more than the index knows, then the node that was given
least lately, then the one with fewer requests, then rendezvous hash of the prompt's first key.
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
FIT: Final = 0.24
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
    full: bool = False
    """What it stores now pushes out something else."""


class Why(Enum):
    """What decided, in one word."""

    ONLY = "only"
    """There was no other node."""
    REUSE = "reuse"
    """It has more of the prompt than any other, or as much."""
    SESSION = "session"
    """The session was there before, and no other node is better."""
    LOAD = "load"
    """Nobody has any of the prompt, or who has more of it is too busy, or full and over its share."""


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
    weight = worth(lately)
    rates: list[float] = []
    scores: list[float] = []
    for _, matched, queued, _, rate, fetch, recent, full in candidates:
        if rate <= 0:
            rate = fallback  # noqa: PLW2901 - unknown
        over = math.sqrt(recent / mean) if full and recent > mean > 0 else 1.0
        rates.append(rate)
        scores.append((max(queued, 0) + weight * over * (max(prompt_tokens - matched, 0) + fetch)) / rate)
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


def worth(lately: Lately) -> float:
    """W: what a token computed anew costs, in tokens of waiting."""
    anew, idle = 1 - min(lately.reuse, MOST_REUSE), 1 - min(lately.busy, MOST_BUSY)
    return max(1.0, FIT / math.pow(anew, 1.5) / math.pow(idle, 3))


def _break_tie(candidates: Sequence[Candidate], tied: Sequence[int], session_node: str | None, anchor: bytes) -> int:
    longest = max([candidates[at].matched_tokens for at in tied])
    tied = [at for at in tied if candidates[at].matched_tokens == longest]
    if len(tied) == 1:
        return tied[0]
    for at in tied:
        if candidates[at].node == session_node:
            return at

    def given(at: int) -> tuple[float, int, bytes]:
        each = candidates[at]
        return each.recent_tokens, each.requests, hashlib.sha256(anchor + each.node.encode()).digest()

    return min(tied, key=given)


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
