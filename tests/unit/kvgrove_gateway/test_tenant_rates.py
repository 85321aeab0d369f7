"""Allowances: bursts, refilling, what a refusal says, and how many tenants are remembered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from kvgrove_gateway.errors import BadRequest, Busy
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.identity.files import BrokenFile
from kvgrove_gateway.protection.figures import ProtectionFigures
from kvgrove_gateway.protection.rates import RateLimits, TenantRates, TokenBucket, parse_rate_limits
from kvgrove_protocol.identity import Caller


class Desk:
    def __init__(self, text: str = "{}", **more: Any) -> None:
        self.now = 1000.0
        self.limits: RateLimits = parse_rate_limits(text.encode())
        self.registry = CollectorRegistry()
        self.rates = TenantRates(
            lambda: self.limits, clock=lambda: self.now, figures=ProtectionFigures(self.registry), **more
        )

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def visit(self, tenant: str = "acme") -> None:
        self.rates.begin(tenant)
        self.rates.end(tenant)

    def wait(self, tenant: str = "acme") -> int:
        """Seconds to wait; 0: let in."""
        try:
            self.visit(tenant)
        except Busy as busy:
            return busy.retry_after_s or 0
        return 0

    def charge(self, tokens: int, tenant: str = "acme") -> int:
        identity = Identity(key_id="k", caller=Caller(tenant=tenant), namespaces=None)
        try:
            self.rates.charge(identity, tokens, "prompt")
        except Busy as busy:
            return busy.retry_after_s or 0
        return 0


def test_without_limits_everybody_is_let_in() -> None:
    desk = Desk()
    assert all(desk.wait() == 0 for _ in range(1000))
    assert desk.charge(10**9) == 0


def test_a_minutes_allowance_may_be_used_at_once_and_comes_back_evenly() -> None:
    desk = Desk("default: {requests_per_minute: 6}")
    assert [desk.wait() for _ in range(7)] == [0] * 6 + [10]
    desk.now += 9.9
    assert desk.wait() == 1
    desk.now += 0.2
    assert [desk.wait(), desk.wait()] == [0, 10]
    desk.now += 3600
    assert [desk.wait() for _ in range(7)] == [0] * 6 + [10]  # never more than one minute's
    assert desk.count("kvgrove_gateway_rate_limited_total", limit="requests") == 4


def test_a_refusal_says_what_and_until_when() -> None:
    desk = Desk("default: {requests_per_minute: 1}")
    desk.visit()
    with pytest.raises(Busy) as caught:
        desk.visit()
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert caught.value.headers() == {"Retry-After": "60"}
    assert "1 requests per minute" in caught.value.message
    assert "acme" not in caught.value.message


def test_tenants_have_allowances_of_their_own() -> None:
    desk = Desk("{default: {requests_per_minute: 1}, tenants: {big: {requests_per_minute: 3}, free: {}}}")
    assert [desk.wait("a"), desk.wait("a") > 0, desk.wait("b")] == [0, True, 0]
    assert [desk.wait("big") for _ in range(4)] == [0, 0, 0, 20]
    assert all(desk.wait("free") == 0 for _ in range(50))


def test_prompt_tokens_are_charged_and_too_long_a_prompt_is_no_matter_of_waiting() -> None:
    desk = Desk("default: {prompt_tokens_per_minute: 600}")
    assert [desk.charge(500), desk.charge(200)] == [0, 10]
    desk.now += 10
    assert desk.charge(200) == 0
    with pytest.raises(BadRequest) as caught:
        desk.charge(601)
    assert (caught.value.field, caught.value.code) == ("prompt", "prompt_above_rate_limit")
    assert "600" in caught.value.message
    assert desk.charge(600, "other") == 0


def test_requests_at_once_are_bounded_and_a_refused_one_takes_no_place() -> None:
    desk = Desk("default: {concurrent_requests: 2, requests_per_minute: 10}")
    desk.rates.begin("acme")
    desk.rates.begin("acme")
    assert [desk.wait() for _ in range(20)] == [1] * 20
    assert desk.wait("other") == 0
    desk.rates.end("acme")
    assert desk.wait() == 0  # those that were refused have not used the minute's allowance either


def test_a_changed_limit_counts_at_once() -> None:
    desk = Desk("default: {requests_per_minute: 2}")
    assert [desk.wait() for _ in range(3)] == [0, 0, 30]
    desk.limits = parse_rate_limits(b"default: {requests_per_minute: 60}")
    desk.now += 1
    assert [desk.wait(), desk.wait()] == [0, 1]
    desk.limits = parse_rate_limits(b"{}")
    assert desk.wait() == 0
    desk.limits = parse_rate_limits(b"default: {requests_per_minute: 1}")
    assert [desk.wait(), desk.wait()] == [0, 60]


def test_i11_bounded_quiet_tenants_are_forgotten_and_lose_nothing() -> None:
    desk = Desk("default: {requests_per_minute: 60}", max_buckets=10)
    for number in range(1000):
        desk.visit(f"t{number}")
        desk.now += 1
        assert len(desk.rates) <= 10
    assert desk.count("kvgrove_gateway_rate_buckets_dropped_total") == 0


def test_i11_bounded_a_flood_of_tenants_is_counted_and_never_ends_one_that_is_under_way() -> None:
    desk = Desk("default: {requests_per_minute: 1, concurrent_requests: 1}", max_buckets=10)
    desk.rates.begin("held")
    for number in range(100):
        desk.visit(f"t{number}")
    assert len(desk.rates) <= 10
    assert desk.count("kvgrove_gateway_rate_buckets_dropped_total") >= 89
    assert desk.wait("held") == 1  # its place is taken still
    desk.rates.end("held")


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.floats(0, 200, allow_nan=False), st.integers(1, 10**6)), max_size=30),
)
def test_a_bucket_gives_at_most_its_rate_and_its_word_holds(capacity: int, steps: list[tuple[float, int]]) -> None:
    """Over any time: one capacity and what came back since; and whoever waits as told is served."""
    now = 0.0
    bucket = TokenBucket(capacity, capacity, now)
    given_out = 0
    for pause, amount in steps:
        now += pause
        bucket.settle(capacity, now)
        wait = bucket.take(amount)
        if not wait:
            given_out += amount
        elif amount <= capacity:
            told = TokenBucket(bucket.capacity, bucket.level, now)
            told.settle(capacity, now + wait + 1e-6)
            assert told.take(amount) == 0
        assert given_out <= capacity + capacity / 60 * now + 1e-3
        assert 0 <= bucket.level <= capacity


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("default: {requests: 5}", "default.requests"),
        ("tenants: {a: {requests_per_minute: 0}}", "tenants.a.requests_per_minute"),
        ("tenants: {a: {prompt_tokens_per_minute: 1.5}}", "tenants.a.prompt_tokens_per_minute"),
        ("tenants: {a: {concurrent_requests: true}}", "tenants.a.concurrent_requests"),
        ("tenant: {}", "tenant"),
    ],
)
def test_the_file_is_closed_and_names_the_field(text: str, field: str) -> None:
    with pytest.raises(BrokenFile) as caught:
        parse_rate_limits(text.encode())
    assert caught.value.field == field
