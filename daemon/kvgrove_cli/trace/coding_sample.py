"""One stream of requests out of recorded coding sessions.

Role: the sample that figures on coding traces refer to. Invariants: the sessions are real, their interleaving is made
up and seeded: the same file and seed give the same requests. Knows neither files nor caches.

The recipe: 100 sessions, at most the first 150 requests of each, idle gaps cut to 10 minutes, starts 60 s apart on
average (Poisson). 75 % of each session's tool and system tokens lie in one id space per model: what agents of one
vendor have in common. Fine blocks are coarsened to 512 tokens, each with all before it as its identity.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvgrove_cli.trace.requests import BLOCK_TOKENS, BlockIds, Request, Trace

SESSIONS: Final = 100
TURNS: Final = 150
LONGEST_GAP_MS: Final = 600_000.0
MEAN_START_MS: Final = 60_000.0
SHARED_PART: Final = 0.75


@dataclass(frozen=True, slots=True)
class Turn:
    at_ms: float
    """Since the session's start."""
    prompt_tokens: int
    blocks: list[int]
    """Fine ids, local to the session."""


@dataclass(frozen=True, slots=True)
class Session:
    model: str
    block_size: int
    shared_prefix_tokens: int
    turns: list[Turn]


def sample(sessions: Sequence[Session], *, seed: int) -> Trace:
    """The stream of ``seed``. Of fewer than `SESSIONS` sessions all are taken."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, and nothing secret
    ids = BlockIds()
    requests: list[Request] = []
    start = 0.0
    for number, session in enumerate(rng.sample(sessions, min(SESSIONS, len(sessions)))):
        at, last = start, None
        for turn in session.turns[:TURNS]:
            if last is not None:
                at += min(turn.at_ms - last, LONGEST_GAP_MS)
            last = turn.at_ms
            requests.append(Request(at, turn.prompt_tokens, _coarse(session, number, turn, ids), number))
        start += rng.expovariate(1 / MEAN_START_MS)
    requests.sort(key=lambda request: request.at_ms)
    return Trace("coding-sessions", requests, len(ids))


def _coarse(session: Session, number: int, turn: Turn, ids: BlockIds) -> list[int]:
    """Ids of 512-token blocks. Shared fine blocks are named by model and position, others by session and fine id."""
    shared = int(session.shared_prefix_tokens * SHARED_PART) // session.block_size
    width = BLOCK_TOKENS // session.block_size
    coarse: list[int] = []
    parent = -1
    for first in range(0, len(turn.blocks), width):
        fine = tuple(
            (session.model, at) if at < shared else (number, block)
            for at, block in enumerate(turn.blocks[first : first + width], start=first)
        )
        parent = ids.one((parent, fine))
        coarse.append(parent)
    return coarse
