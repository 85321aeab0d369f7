"""A collector of OTLP over HTTP on loopback: what it was sent, as spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class SeenSpan:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    seconds: float
    attributes: dict[str, Any]
    failed: bool


class Collector:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[SeenSpan] = []
        self.raw: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
                del format, arguments

            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self.raw.append(body)
            for resource in message.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for span in (each for scope in resource.scope_spans for each in scope.spans):
                    self._spans.append(
                        SeenSpan(
                            service=service,
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                            attributes=_values(span.attributes),
                            failed=span.status.code == 2,
                        )
                    )

    def spans(self, trace: str) -> dict[str, SeenSpan]:
        """Name -> span, of one trace."""
        with self._lock:
            return {span.name: span for span in self._spans if span.trace == trace}


@contextmanager
def collector() -> Iterator[Collector]:
    running = Collector()
    thread = threading.Thread(target=running.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()
        thread.join()


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
