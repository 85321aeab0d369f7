"""What prompts cost with and without the cache, by a namespace's prices. Pure, exact decimals.

Four figures, each from raw token counts, so that nothing is counted twice (API-04):

    no cache = prompt * input + completion * output
    cached   = (prompt - reused) * input + reused * cached input + completion * output
    storage  = byte seconds * price of a byte second
    net      = no cache - cached - storage

Prices decide nothing; they are the caller's, not the machine's.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from kvgrove_protocol.control import PricingPlan

MILLION: Final = 1_000_000
GIBIBYTE_HOUR: Final = (1 << 30) * 3600
"""Byte seconds."""


@dataclass(frozen=True)
class Tokens:
    """``reused`` is a part of ``prompt``."""

    prompt: int = 0
    reused: int = 0
    completion: int = 0

    @property
    def reusable_token_ratio(self) -> float | None:
        """Share of prompt tokens that were reused (ReusableTokenRatio); None without a prompt."""
        return self.reused / self.prompt if self.prompt else None


@dataclass(frozen=True)
class Prices:
    """Of one token, and of a byte kept for a second."""

    currency: str
    input: Decimal
    cached_input: Decimal
    output: Decimal
    byte_second: Decimal

    @classmethod
    def of(cls, plan: PricingPlan) -> "Prices":
        return cls(
            currency=plan.currency,
            input=_decimal(plan.input_per_million_tokens) / MILLION,
            cached_input=_decimal(plan.cached_input_per_million_tokens) / MILLION,
            output=_decimal(plan.output_per_million_tokens) / MILLION,
            byte_second=_decimal(plan.storage_per_gibibyte_hour) / GIBIBYTE_HOUR,
        )


@dataclass(frozen=True)
class Costs:
    """In the prices' currency."""

    no_cache: Decimal
    cached: Decimal
    storage: Decimal

    @property
    def saved(self) -> Decimal:
        """By reuse alone."""
        return self.no_cache - self.cached

    @property
    def net(self) -> Decimal:
        return self.saved - self.storage


def costs(tokens: Tokens, prices: Prices, *, byte_seconds: Decimal = Decimal(0)) -> Costs:
    answers = tokens.completion * prices.output
    return Costs(
        no_cache=tokens.prompt * prices.input + answers,
        cached=(tokens.prompt - tokens.reused) * prices.input + tokens.reused * prices.cached_input + answers,
        storage=byte_seconds * prices.byte_second,
    )


def _decimal(price: float) -> Decimal:
    """The number as it was written: 0.6, and not the binary fraction next to it."""
    return Decimal(repr(price))
