"""Money from token counts: exact, and nothing is counted twice (API-04)."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from kvgrove_gateway.costs import GIBIBYTE_HOUR, Prices, Tokens, costs
from kvgrove_protocol.control import PricingPlan

PLAN = PricingPlan(
    currency="EUR",
    input_per_million_tokens=0.6,
    cached_input_per_million_tokens=0.06,
    output_per_million_tokens=2.4,
    storage_per_gibibyte_hour=0.01,
)
PRICE = st.floats(0, 1_000_000, allow_nan=False).map(lambda price: round(price, 4))
COUNT = st.integers(0, 10**9)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=60), COUNT, PRICE, PRICE, PRICE)
def test_api_04_costs_equal_those_of_raw_tokens(
    runs: list[tuple[bool, int]], completion: int, one: float, other: float, output: float
) -> None:
    """Each token is priced on its own here: whatever way a prompt is split into reused and computed runs."""
    cached, full = sorted((one, other))
    plan = PricingPlan(
        input_per_million_tokens=full, cached_input_per_million_tokens=cached, output_per_million_tokens=output
    )
    raw = sum(Decimal(repr(cached if reused else full)) * count for reused, count in runs)
    answers = Decimal(repr(output)) * completion
    prompt = sum(count for _, count in runs)
    found = costs(Tokens(prompt, sum(count for reused, count in runs if reused), completion), Prices.of(plan))
    assert abs(found.cached * 1_000_000 - (raw + answers)) < Decimal("1e-9")
    assert abs(found.no_cache * 1_000_000 - (Decimal(repr(full)) * prompt + answers)) < Decimal("1e-9")
    assert found.net == found.saved >= 0


def test_the_figures_of_an_example() -> None:
    found = costs(Tokens(2_000_000, 1_500_000, 100_000), Prices.of(PLAN), byte_seconds=Decimal(20 * GIBIBYTE_HOUR))
    assert found.no_cache == Decimal("1.44")
    assert found.cached == Decimal("0.63")
    assert found.storage.quantize(Decimal("1e-12")) == Decimal("0.2")
    assert found.net.quantize(Decimal("1e-12")) == Decimal("0.61")


def test_storage_may_cost_more_than_reuse_saves() -> None:
    found = costs(Tokens(10, 5, 1), Prices.of(PLAN), byte_seconds=Decimal(GIBIBYTE_HOUR))
    assert found.net < 0 < found.saved


def test_reusable_token_ratio_is_of_prompt_tokens() -> None:
    assert Tokens(100, 25, 7).reusable_token_ratio == 0.25
    assert Tokens().reusable_token_ratio is None
