"""Optional sides of a namespace: response caches, KV events, prices, alert thresholds."""

from typing import Annotated

from pydantic import Field

from kvgrove_crds.base import Spec
from kvgrove_crds.cel import Rule, when
from kvgrove_crds.durations import Between, Duration
from kvgrove_crds.names import Shape
from kvgrove_crds.namespace_delivery import Ratio

Currency = Annotated[
    str, Shape("[A-Z]{3}", 3, "a currency is three capital letters", "write its ISO 4217 code, like EUR")
]
Price = Annotated[float, Field(ge=0, le=1_000_000)]
After = Annotated[Duration, Between("1s", "168h")]


class EventsSpec(Spec):
    """KV events carry token ids by their nature."""

    export: bool = False
    """Publish this namespace's KV events on the export socket."""


class ExactResponseCache(Spec):
    """Whole answers to byte-equal requests of the same realm, for deterministic requests only."""

    enabled: bool = False
    """Off unless asked for."""
    ttl: Annotated[Duration, Between("1s", "720h")] = Duration("10m")
    """How long an answer may be served."""
    max_entries: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """Answers kept per gateway."""


class SemanticResponseCache(Spec):
    """Whole answers to requests of the same meaning in the same realm. A similar question is not an equal one."""

    enabled: bool = False
    """Off unless asked for."""
    ttl: Annotated[Duration, Between("1s", "720h")] = Duration("10m")
    """How long an answer may be served."""
    threshold: Annotated[float, Field(ge=0.8, le=1)] = 0.95
    """Lowest cosine similarity of the last user message. Callers may raise it for a request, never lower it."""
    max_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    """Answers kept per gateway."""


class ResponseCacheSpec(Spec):
    """Caches of whole answers. Both off by default."""

    exact: ExactResponseCache = ExactResponseCache()
    """Answers to equal requests."""
    semantic: SemanticResponseCache = SemanticResponseCache()
    """Answers to similar requests."""


class PricingSpec(Spec):
    """Prices by which savings are shown. They decide nothing."""

    rules = (
        Rule(
            cel="self.cachedInputPerMillionTokens <= self.inputPerMillionTokens",
            says="cachedInputPerMillionTokens is at most inputPerMillionTokens",
            cure="lower it: a reused token saves the difference",
            broken=lambda p: when(p.cached_input_per_million_tokens > p.input_per_million_tokens),
        ),
    )

    currency: Currency = "USD"
    """ISO 4217 code."""
    input_per_million_tokens: Price
    """Price of a million computed prompt tokens."""
    cached_input_per_million_tokens: Price = 0.0
    """Price of a million reused prompt tokens."""
    output_per_million_tokens: Price = 0.0
    """Price of a million generated tokens."""
    storage_per_gibibyte_hour: Price = 0.0
    """Price of keeping a GiB of the namespace's blocks for an hour, on whatever tier."""


class AlertsSpec(Spec):
    """Thresholds of this namespace's alerts."""

    enabled: bool = True
    """Whether alert rules are made for it."""
    minimum_hit_ratio: Ratio | None = None
    """Alert below this token-weighted hit ratio (0 to 1). Absent: no such alert."""
    evictions_per_second: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    """Alert above this rate per node. Absent: no such alert."""
    warmup_stuck_after: After = Duration("30m")
    """Alert when a warm-up is older."""
    invalidation_overdue_after: After = Duration("5m")
    """Alert when an invalidation is older."""
    erase_overdue_after: After = Duration("1h")
    """Alert when an erasure is older."""
