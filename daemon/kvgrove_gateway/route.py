"""How a request was routed, for whoever may know: a response header and a part of the answer's ``kvgrove``.

What is told is of the request itself: the node that answers, how much of *its own* prompt was expected there, what
decided, and how long the prompt was expected to take. No keys, no other prompt's blocks, and of other nodes nothing:
they stay in `Decision.explain`, inside the gateway.

Even so it is no matter for every caller (I2). The match counts blocks of declared prefixes that another tenant's
request is computing at this moment, and the expected time holds everybody's queue: both tell that somebody else is
there, finer than the time to the first token does. So it takes two consents: the gateway's setting, off by default, and
a key that is marked ``explain``, which operators give to themselves. Anyone else's answer is the same whatever the
setting, and ``usage`` and ``missed`` remain what callers see: the node's account of what they reused.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from kvgrove_gateway.router.decide import Decision

HEADER: Final = "x-kvgrove-route"


@dataclass(frozen=True, slots=True)
class Route:
    """Of the attempt that was answered."""

    node: str
    matched_tokens: int
    """Leading prompt tokens that the node was thought to hold, or to be computing."""
    why: str
    """`decide.Why`: ``only``, ``reuse``, ``session`` or ``load``."""
    expected_s: float
    """Until the prompt is computed, as expected when it was sent: queue and own prefill."""
    attempt: int
    """From 1; above, other nodes failed it or the plan moved on."""

    @classmethod
    def of(cls, decision: Decision, attempt: int) -> "Route":
        return cls(decision.node, decision.matched_tokens, decision.why.value, decision.expected_s, attempt)

    def header(self) -> str:
        """``node=N; matched=TOKENS; why=WORD; expected=SECONDS; attempt=N``; the node's name percent-encoded."""
        fields = {
            "node": quote(self.node, safe=""),
            "matched": self.matched_tokens,
            "why": self.why,
            "expected": f"{self.expected_s:.3f}",
            "attempt": self.attempt,
        }
        return "; ".join(f"{name}={value}" for name, value in fields.items())

    def body(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "matched_tokens": self.matched_tokens,
            "why": self.why,
            "expected_s": round(self.expected_s, 6),
            "attempt": self.attempt,
        }
