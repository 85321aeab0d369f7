"""What was placed lately, fading: tokens for each node, reuse and busy nodes for all. Pure: time is given.

What a node computed anew it also stored, so its tokens are work and cache turnover in one figure. See `decide` for the
use of all three.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final

from kvgrove_gateway.router.decide import Lately

RECENT_S: Final = 1200.0
"""Time constant: about as long as a cache that is worth routing to holds a block."""


class RecentWork:
    """Bounded by `follow`. A node that comes anew starts at the mean of the others.

    At nothing it would look as if whatever it holds stayed for ever, until it had caught up with the others.
    """

    def __init__(self, time_constant_s: float = RECENT_S) -> None:
        self._time_constant_s = time_constant_s
        self._tokens: dict[str, float] = {}
        self._prompts = self._uncached = 0.0  # tokens of all nodes
        self._requests = self._busy = 0.0
        self._at = -math.inf

    def follow(self, nodes: Collection[str]) -> None:
        """These are the nodes now; others are forgotten."""
        if self._tokens.keys() == set(nodes):
            return
        known = [tokens for node, tokens in self._tokens.items() if node in nodes]
        mean = sum(known) / len(known) if known else 0.0
        self._tokens = {node: self._tokens.get(node, mean) for node in nodes}

    def placed(self, node: str, prompt_tokens: int, uncached_tokens: int, busy: float, now: float) -> None:
        """A request was sent to ``node`` while a share of ``busy`` nodes had a queue."""
        self._fade(now)
        self._prompts += prompt_tokens
        self._requests += 1
        self._busy += busy
        self._computed(node, uncached_tokens)

    def corrected(self, node: str, surplus_tokens: int, now: float) -> None:
        """The node had to compute so many tokens more (or less) than was expected when they were placed."""
        self._fade(now)
        self._computed(node, surplus_tokens)

    def tokens(self, now: float) -> Mapping[str, float]:
        """By node. Valid until the next call."""
        self._fade(now)
        return self._tokens

    @property
    def lately(self) -> Lately:
        return Lately(
            busy=self._busy / self._requests if self._requests else 0.0,
            reuse=max(1 - self._uncached / self._prompts, 0.0) if self._prompts else 0.0,
        )

    def _computed(self, node: str, tokens: int) -> None:
        self._uncached += tokens
        if node in self._tokens:
            self._tokens[node] += tokens

    def _fade(self, now: float) -> None:
        if now > self._at:
            share = math.exp((self._at - now) / self._time_constant_s)
            self._tokens = {node: tokens * share for node, tokens in self._tokens.items()}
            self._prompts *= share
            self._uncached *= share
            self._requests *= share
            self._busy *= share
            self._at = now
