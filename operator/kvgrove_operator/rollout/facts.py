"""What of a rollout must outlive the planner: durable before the plan that rests on it is sent.

Times are Unix seconds. Where all of it is lost, what the members hold is planned as one generation and nothing is
skipped: a rollout that was under way begins anew.
"""

import msgspec

from kvgrove_operator.rollout.table import Phase


class _Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Target(_Fact, frozen=True, kw_only=True):
    """A generation, and the ModelVersion that it is had from."""

    model: str
    generation: bytes = b""
    """Empty: not named yet."""


class Measures(_Fact, frozen=True, kw_only=True):
    """What gateways counted for one generation."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    ttft: tuple[int, ...] = ()
    """Requests by time to first token, in the buckets of `control.TTFT_BOUNDS_S`."""


class Baseline(_Fact, frozen=True, kw_only=True):
    """The counts of one boot of one gateway when the interval began."""

    candidate: Measures = Measures()
    active: Measures = Measures()


class Analysis(_Fact, frozen=True, kw_only=True):
    """The measurements of the step under way."""

    interval_from: float = 0.0
    """When the interval under way began."""
    baseline: dict[str, Baseline] = {}
    """``member/boot`` -> its counts then."""
    failures: int = 0
    """Since the shift began."""
    inconclusive: int = 0
    """In a row."""
    not_measured: int = 0
    """In a row."""
    passed: bool = False
    """Whether the last measurement of this step that told anything passed."""


class Refused(_Fact, frozen=True, kw_only=True):
    """What was rolled back because it failed, and under which declared limits: tried again only under others."""

    target: Target
    limits: bytes


class RolloutState(_Fact, frozen=True, kw_only=True):
    phase: Phase = Phase.PENDING
    active: Target | None = None
    """Promoted last; what a rollback goes to. None while nothing ever served."""
    candidate: Target | None = None
    """Where the rollout goes, or comes back from. None at an end."""
    previous: Target | None = None
    """Active before ``active``, until the window after ``promoted_at`` ends."""
    hosted: bool = False
    """Whether members were ever told to serve ``candidate``."""
    step: int = 0
    """Index of the step under way."""
    since: float = 0.0
    """When the phase, or the step, began."""
    started_at: float = 0.0
    promoted_at: float = 0.0
    stalled_in: Phase | None = None
    reason: str = ""
    """Why it is Stalled, or was rolled back: a condition reason."""
    analysis: Analysis = Analysis()
    refused: Refused | None = None
    suspended_at: float = 0.0
    """Since when its time stands still; 0: it does not."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """All generations that must be held."""
        return tuple(each for each in (self.active, self.candidate, self.previous) if each is not None)
