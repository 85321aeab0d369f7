"""Prefill tokens placed on each node, fading. Pure: time is given.

What a node computed anew it also stored, so this is work and cache turnover in one figure: see `decide` for its use.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final

RECENT_S: Final = 1200.0
"""Time constant: about as long as a cache that is worth routing to holds a block."""


class RecentWork:
    """Bounded by `follow`. A node that comes anew starts at the mean of the others.

    At nothing it would be sent all new chains until it had caught up with twenty minutes of the others' work.
    """

    def __init__(self, time_constant_s: float = RECENT_S) -> None:
        self._time_constant_s = time_constant_s
        self._tokens: dict[str, float] = {}
        self._at = -math.inf

    def follow(self, nodes: Collection[str]) -> None:
        """These are the nodes now; others are forgotten."""
        if self._tokens.keys() == set(nodes):
            return
        known = [tokens for node, tokens in self._tokens.items() if node in nodes]
        mean = sum(known) / len(known) if known else 0.0
        self._tokens = {node: self._tokens.get(node, mean) for node in nodes}

    def placed(self, node: str, tokens: float, now: float) -> None:
        """Of a node that `follow` does not know, nothing is kept."""
        self._fade(now)
        if node in self._tokens:
            self._tokens[node] += tokens

    def tokens(self, now: float) -> Mapping[str, float]:
        """By node. Valid until the next call."""
        self._fade(now)
        return self._tokens

    def _fade(self, now: float) -> None:
        if now > self._at:
            share = math.exp((self._at - now) / self._time_constant_s)
            self._tokens = {node: tokens * share for node, tokens in self._tokens.items()}
            self._at = now
