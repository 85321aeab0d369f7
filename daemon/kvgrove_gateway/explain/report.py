"""What an explanation says: one closed, versioned document, read by people, scripts and the HTML page.

It goes to whoever sent the texts and nowhere else: never to a log or a metric (I12). Declared texts, which the caller
did not send, are left out of it: their pieces have a name and a length.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

VERSION = 1


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Piece(_Part, frozen=True, kw_only=True):
    """Prompt tokens ``start`` (inclusive) to ``end`` (exclusive) of one origin and one fate. Pieces tile the prompt."""

    start: int
    end: int
    origin: str
    """``template``, ``prefix:<name>``, ``document:<name>``, or a path in the request, like ``messages[2].content``."""
    message: int | None
    """Index into the request's messages, where it comes from one."""
    tier: str
    """Where it is reused from; empty: it is computed."""
    reason: str | None
    """Why it is computed (`MissReason`); None: it is reused, or nobody was asked."""
    text: str | None
    """None: a declared text, which whoever asks did not send."""


class NodeView(_Part, frozen=True, kw_only=True):
    """What one node would do with the prompt now."""

    node: str
    reused: dict[str, int] = {}
    """Tier -> prompt tokens."""
    missed: dict[str, int] = {}
    """Reason -> prompt tokens; with ``reused`` they add up to the prompt (I10)."""
    problem: str = ""
    """Code of why it could not say; the two others are empty then."""


class CandidateView(_Part, frozen=True, kw_only=True):
    """One line of the router's reckoning, best first."""

    node: str
    matched_tokens: int
    queued_tokens: int
    recent_tokens: float
    score_s: float


class RouteView(_Part, frozen=True, kw_only=True):
    """Why the router would choose the node; for operators."""

    node: str
    why: str
    matched_tokens: int
    expected_s: float
    candidates: list[CandidateView]


class PromptView(_Part, frozen=True, kw_only=True):
    """One prompt."""

    model: str
    """As the request names it."""
    namespace: str
    generation: str
    """Its first characters; empty where no fleet was asked."""
    tokens: int
    block_size: int
    node: str
    """Whose pieces these are: the one that would be sent the request. Empty: no fleet was asked."""
    reused_tokens: int
    missed: dict[str, int]
    pieces: list[Piece]
    nodes: list[NodeView] = []
    """The node above for callers, all that are connected for operators."""
    route: RouteView | None = None


class Side(_Part, frozen=True, kw_only=True):
    """The first token of one prompt that the other does not have there."""

    origin: str
    message: int | None
    token: int
    """Its position in the prompt, from 0."""
    text: str | None
    """Of that token; None: in a declared text."""
    before: str | None
    """Text of the few tokens before it in the same segment."""


class Parting(_Part, frozen=True, kw_only=True):
    """Where two prompts part."""

    token: int
    """Equal tokens before it; the length of the shorter one where it is a beginning of the other."""
    block: int
    """First block whose key differs: what is reused of one for the other ends before it."""
    because: str
    """What makes that block differ: ``tokens``, ``caller``, ``document``, ``namespace``, ``generation``, or ``nothing``
    (one prompt begins the other, and no full block differs)."""
    a: Side | None
    b: Side | None
    """None: the prompt has ended."""
    summary: str


class Change(_Part, frozen=True, kw_only=True):
    """A difference between the two request bodies."""

    kind: str
    """``appeared``, ``gone``, ``moved`` or ``changed``."""
    what: str
    """``tool <name>``, ``system block``, ``text block``, or another part of a message."""
    a: str | None
    b: str | None
    """Paths in the two bodies, like ``messages[3].content[0]``."""


class Report(_Part, frozen=True, kw_only=True):
    version: int = VERSION
    prompts: list[PromptView]
    parting: Parting | None = None
    """None: one prompt was given, or the two are the same."""
    changes: list[Change] = []
    assumed: bool = False
    """True: no fleet was asked, and the second prompt is shown as right after the first one had been served."""


def encode(report: Report) -> bytes:
    return msgspec.json.encode(report)


def decode(body: bytes) -> Report:
    """Raises msgspec's DecodeError for what is no report of this version."""
    return msgspec.json.decode(body, type=Report)


def as_mapping(report: Report) -> Mapping[str, Any]:
    """For templates."""
    plain: Mapping[str, Any] = msgspec.to_builtins(report)
    return plain
