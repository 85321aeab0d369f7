"""Traces of requests by OpenTelemetry: off unless an endpoint is set.

A trace begins with whoever calls (W3C ``traceparent``), goes through gateway and node, and ends at the engine's steps.
Spans say how long what took, how many tokens it was about and how it ended: never a text, a token id or a user (I12).
Where tracing is off, the caller's context still goes through to the node. Exporting is another thread's, with a bounded
queue that drops spans when it is full (I11); no request ever waits for it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kvgrove_protocol.errors import Terminal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

ENVIRONMENT: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""What OpenTelemetry's users set; an option of ours wins."""

Attribute = str | int | float | bool


class TracingUnusable(Terminal):
    """Traces are asked for, and cannot be made."""

    code = "tracing_unusable"


class Span:
    """One step of a request, from now on until `end`, which may be called twice: the first counts."""

    def __init__(self, span: OtelSpan | None, parent: str) -> None:
        self._span, self._parent, self._over = span, parent, False

    @property
    def traceparent(self) -> str:
        """What the next part takes as its parent."""
        if self._span is None:
            return self._parent
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, attributes: Mapping[str, Attribute] | None = None, *, error: str = "") -> None:
        """``error``: a code from a closed list; empty where it went well."""
        if self._span is not None and not self._over:
            self._over = True
            _finish(self._span, attributes or {}, error, None)


NO_SPAN: Final = Span(None, "")


class Tracing:
    """Makes spans. Without a tracer it makes none."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer: Tracer | None = provider.get_tracer("kvgrove") if provider is not None else None

    @property
    def on(self) -> bool:
        return self._tracer is not None

    def begin(self, name: str, parent: str = "", *, served: bool = False) -> Span:
        """A span that begins now. ``served``: it answers a call from outside of this process."""
        return Span(self._start(name, parent, served, None) if self._tracer is not None else None, parent)

    def record(
        self,
        name: str,
        parent: str,
        *,
        ended_ns: int,
        seconds: float,
        attributes: Mapping[str, Attribute] | None = None,
        error: str = "",
        served: bool = False,
    ) -> str:
        """A span that is over: it took ``seconds`` up to ``ended_ns`` since 1970. Answers what its parts take as
        parent."""
        if self._tracer is None:
            return parent
        span = self._start(name, parent, served, ended_ns - int(seconds * 1e9))
        _finish(span, attributes or {}, error, ended_ns)
        return Span(span, parent).traceparent

    def close(self) -> None:
        """Send what is still to be sent, for at most a few seconds."""
        if self._provider is not None:
            self._provider.shutdown()

    def _start(self, name: str, parent: str, served: bool, started_ns: int | None) -> OtelSpan:
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 - most processes do without
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        assert self._tracer is not None  # noqa: S101 - asked by the callers
        context = TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else None
        kind = SpanKind.SERVER if served else SpanKind.INTERNAL
        return self._tracer.start_span(name, context=context, kind=kind, start_time=started_ns)


NO_TRACING: Final = Tracing()


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--otlp-endpoint`` of every process that traces."""
    parser.add_argument(
        "--otlp-endpoint",
        default="",
        metavar="URL",
        help="send traces here, OTLP over HTTP, for example http://127.0.0.1:4318 (default: none)",
    )


def tracing(endpoint: str, service: str, member: str) -> Tracing:
    """Traces of ``member``, sent to an OTLP/HTTP ``endpoint``; empty: where OpenTelemetry's variables say, or none.

    Sampling and batching follow OpenTelemetry's own variables (``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_*``). Raises
    TracingUnusable where the packages are missing.
    """
    wanted = endpoint or next((os.environ[name] for name in ENVIRONMENT if os.environ.get(name)), "")
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NO_TRACING
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise TracingUnusable(
            "--otlp-endpoint: OpenTelemetry is not installed; install kvgrove[otel]", field="--otlp-endpoint"
        ) from None
    resource = Resource.create({"service.name": service, "service.instance.id": member})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None  # as the exporter does for the general variable
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return Tracing(provider)


def _finish(span: OtelSpan, attributes: Mapping[str, Attribute], error: str, ended_ns: int | None) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415

    span.set_attributes({f"kvgrove.{name}": value for name, value in attributes.items()})
    if error:
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end(ended_ns)
