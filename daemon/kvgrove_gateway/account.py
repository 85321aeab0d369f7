"""What a request cost and where it ran, as every dialect tells it.

The published identities come from one place: reused + missed = prompt (I10), and whatever a dialect splits that into
adds up to it again (API-04). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvgrove_gateway.ask import CacheClass
from kvgrove_gateway.reasons import HEADER, header
from kvgrove_gateway.route import Route
from kvgrove_protocol.data import Usage
from kvgrove_protocol.reasons import MissReason

NOT_STORED = frozenset(
    {
        MissReason.BYPASSED,
        MissReason.CACHE_ERROR,
        MissReason.CONTROL_PLANE_LOST,
        MissReason.FENCE_NEWER,
        MissReason.SCOPE_DENIED,
        MissReason.SUSPENDED,
        MissReason.UNCACHEABLE,
    }
)
"""Reasons under which what is computed is not kept."""


@dataclass(frozen=True)
class Mark:
    """A breakpoint in the assembled prompt: ``tokens`` of it come before, all of them in whole blocks."""

    tokens: int
    kept: CacheClass


@dataclass(frozen=True)
class Written:
    """Prompt tokens written to the cache up to the caller's breakpoints, by class."""

    short: int = 0
    """``5m``."""
    long: int = 0
    """``1h``."""

    @property
    def total(self) -> int:
        return self.short + self.long


def written(usage: Usage, marks: Sequence[Mark]) -> Written:
    """Anthropic's rule: past what was reused, up to the last ``1h`` mark is written for that long, and from there up to
    the last mark for 5 minutes. Nothing where what was computed was not kept.
    """
    if not NOT_STORED.isdisjoint(usage.missed):
        return Written()
    long_end = max([usage.reused, *(mark.tokens for mark in marks if mark.kept == "1h")])
    end = max([long_end, *(mark.tokens for mark in marks)])
    return Written(short=end - long_end, long=long_end - usage.reused)


@dataclass(frozen=True)
class Account:
    """Of one HTTP request: all its answers together."""

    usage: Usage
    node: str
    tier: str
    ttft_s: float
    route: Route | None = None
    """Only for a caller who may know."""
    marks: tuple[Mark, ...] = ()
    generation: str = ""
    """First 12 digits of the generation that answered."""
    reasons: bool = True
    """Whether the caller is told why tokens were computed."""

    def headers(self) -> dict[str, str]:
        """What the response's head says of it; final before the first token."""
        return {HEADER: header(self.usage.reused, self.usage.missed)} if self.reasons else {}

    def extension(self) -> dict[str, Any]:
        """What kvgrove adds to an answer."""
        return {
            "node": self.node,
            "generation": self.generation,
            "reused_tokens": self.usage.reused,
            **({"missed": self._missed()} if self.reasons else {}),
            "tier": self.tier,
            "ttft_s": round(self.ttft_s, 6),
            **({} if self.route is None else {"route": self.route.body()}),
        }

    def _missed(self) -> dict[str, int]:
        return {reason.value: count for reason, count in sorted(self.usage.missed.items())}


def together(accounts: Sequence[Account]) -> Account:
    """The account of several answers; the first says where it ran."""
    first, usages = accounts[0], [each.usage for each in accounts]
    missed: dict[MissReason, int] = {}
    for usage in usages:
        for reason, count in usage.missed.items():
            missed[reason] = missed.get(reason, 0) + count
    total = Usage(
        prompt=sum(each.prompt for each in usages),
        reused=sum(each.reused for each in usages),
        completion=sum(each.completion for each in usages),
        missed=missed,
    )
    return replace(first, usage=total)
