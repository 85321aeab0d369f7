"""Spans reach a collector whole, in the caller's trace, and cost nothing where nobody asked for them."""

from __future__ import annotations

import time

import pytest
from otlp_collector import collector

from kvgrove_link.tracing import ENVIRONMENT, NO_TRACING, tracing

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENVIRONMENT, "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def test_spans_continue_the_callers_trace_and_carry_counts_and_ends() -> None:
    with collector() as seen:
        made = tracing(seen.endpoint, "kvgrove-daemon", "node-0")
        outer = made.begin("chat", CALLER, served=True)
        inner = made.record(
            "generate", outer.traceparent, ended_ns=time.time_ns(), seconds=1.5, attributes={"prompt_tokens": 7}
        )
        made.record("prefill", inner, ended_ns=time.time_ns(), seconds=0.5, error="engine_failure")
        outer.end({"attempts": 2})
        outer.end({"attempts": 3})
        made.close()
        spans = seen.spans(TRACE)
    assert spans["chat"].parent == "b7ad6b7169203331"
    assert spans["generate"].parent == spans["chat"].id
    assert spans["prefill"].parent == spans["generate"].id
    assert spans["chat"].attributes == {"kvgrove.attempts": 2}
    assert spans["generate"].attributes == {"kvgrove.prompt_tokens": 7}
    assert spans["generate"].seconds == pytest.approx(1.5)
    assert (spans["prefill"].failed, spans["prefill"].attributes) == (True, {"error.type": "engine_failure"})
    assert not spans["generate"].failed


def test_without_an_endpoint_the_callers_context_goes_through_untouched() -> None:
    assert tracing("", "kvgrove-gateway", "g") is NO_TRACING
    span = NO_TRACING.begin("chat", CALLER)
    assert span.traceparent == CALLER
    assert NO_TRACING.record("x", CALLER, ended_ns=1, seconds=0.0) == CALLER
    span.end({"a": 1}, error="x")


def test_a_caller_without_a_trace_begins_one() -> None:
    with collector() as seen:
        made = tracing(seen.endpoint, "kvgrove-gateway", "g")
        span = made.begin("chat")
        trace = span.traceparent.split("-")[1]
        span.end()
        made.close()
        assert seen.spans(trace)["chat"].parent == ""


def test_opentelemetrys_own_variables_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as seen:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", seen.endpoint)
        made = tracing("", "kvgrove-gateway", "g")
        made.begin("chat", CALLER).end()
        made.close()
        assert "chat" in seen.spans(TRACE)
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        assert tracing("", "kvgrove-gateway", "g") is NO_TRACING


def test_a_caller_that_does_not_sample_is_not_sampled_here() -> None:
    with collector() as seen:
        made = tracing(seen.endpoint, "kvgrove-gateway", "g")
        span = made.begin("chat", CALLER.removesuffix("01") + "00")
        assert span.traceparent.endswith("-00")
        span.end()
        made.close()
        assert not seen.spans(TRACE)
