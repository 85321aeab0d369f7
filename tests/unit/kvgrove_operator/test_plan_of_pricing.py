"""Prices reach every member as they are declared."""

from planning_rig import Planning, namespace, only, ready

from kvgrove_protocol.control import PricingPlan


def test_prices_are_planned_as_declared_and_absent_without_them() -> None:
    planning = Planning()
    assert only(planning(namespace(), observed=ready("m1"))).pricing is None
    declared = {
        "currency": "EUR",
        "inputPerMillionTokens": 0.6,
        "cachedInputPerMillionTokens": 0.06,
        "outputPerMillionTokens": 2.4,
        "storagePerGibibyteHour": 0.01,
    }
    assert only(planning(namespace(pricing=declared), observed=ready("m1"))).pricing == PricingPlan(
        currency="EUR",
        input_per_million_tokens=0.6,
        cached_input_per_million_tokens=0.06,
        output_per_million_tokens=2.4,
        storage_per_gibibyte_hour=0.01,
    )
