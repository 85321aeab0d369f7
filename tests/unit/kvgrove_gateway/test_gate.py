"""The gate: who may come in, in which order that is judged, and what is written down of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Request, Response
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

from kvgrove_gateway.api.errors import api_error
from kvgrove_gateway.errors import Unauthorized
from kvgrove_gateway.identity.authenticator import Authenticator, credential
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.protection.audit import Value
from kvgrove_gateway.protection.figures import ProtectionFigures
from kvgrove_gateway.protection.gate import Gate, Guard, guard_of, identity_of, note_model
from kvgrove_gateway.protection.rates import TenantRates, parse_rate_limits
from kvgrove_protocol.identity import Caller

WHO = {
    "ann": Identity("ann", Caller(tenant="acme", user="ann"), None),
    "root": Identity("root", Caller(tenant="ops"), None, operator=True, monitor=True),
    "scraper": Identity("scraper", Caller(tenant="ops"), None, monitor=True),
}


class Door(Authenticator):
    def __init__(self) -> None:
        pass

    async def identify(self, headers: Any) -> Identity:
        try:
            return WHO[credential(headers)]
        except KeyError:
            raise Unauthorized("no") from None


class Desk:
    """A gate before an application that says who came in."""

    def __init__(self, limits: str = "{}") -> None:
        self.records: list[dict[str, Value]] = []
        self.denied: list[str] = []
        self.draining = False
        self.inside: Callable[[], None] = lambda: None
        figures = ProtectionFigures(CollectorRegistry())
        rates = TenantRates(lambda: parse_rate_limits(limits.encode()), clock=lambda: 0.0, figures=figures)
        self.gate = Gate(
            self.application,
            authenticator=Door(),
            rates=rates,
            audit=self,
            draining=lambda: self.draining,
            denied=self.denied.append,
            namespace_of=lambda identity, model: "team/bot" if model == "bot" and identity.key_id == "ann" else None,
            refuse=lambda path, error: api_error(path, error, "req_1"),
        )

    def record(self, event: str, **fields: Value) -> None:
        self.records.append({"event": event, **{name: value for name, value in fields.items() if value is not None}})

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside()
        request = Request(scope)
        if "state" in scope:
            note_model(request, request.query_params.get("model", ""))
            scope["route"] = type("Route", (), {"path": "/pattern/{name}"})
        await Response("in")(scope, receive, send)

    def visit(self, path: str, who: str | None, query: str = "", method: str = "GET") -> tuple[int, dict[bytes, bytes]]:
        sent: list[Message] = []
        headers = [] if who is None else [(b"authorization", f"Bearer {who}".encode())]
        scope: Scope = {
            "type": "http", "path": path, "method": method, "headers": headers, "query_string": query.encode(),
            "client": ("10.0.0.7", 1), "state": {},
        }  # fmt: skip

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            raise AssertionError("the gate reads no body")

        asyncio.run(self.gate(scope, receive, send))
        return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    ("path", "guard"),
    [
        ("/healthz", Guard.OPEN),
        ("/readyz", Guard.OPEN),
        ("/metrics", Guard.MONITOR),
        ("/admin", Guard.OPERATOR),
        ("/admin/explain", Guard.OPERATOR),
        ("/administrator", Guard.CALLER),
        ("/v1/chat/completions", Guard.CALLER),
        ("/healthz/", Guard.CALLER),
        ("/", Guard.CALLER),
        ("", Guard.CALLER),
    ],
)
def test_what_nobody_thought_of_needs_a_credential(path: str, guard: Guard) -> None:
    assert guard_of(path) is guard


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        ("/healthz", None, 200),
        ("/v1/models", None, 401),
        ("/v1/models", "nobody", 401),
        ("/v1/models", "ann", 200),
        ("/metrics", "ann", 403),
        ("/metrics", "scraper", 200),
        ("/metrics", "root", 200),
        ("/admin/x", "ann", 403),
        ("/admin/x", "scraper", 403),
        ("/admin/x", "root", 200),
    ],
)
def test_iso_14_who_comes_in_where(path: str, who: str | None, status: int) -> None:
    desk = Desk()
    assert desk.visit(path, who)[0] == status
    assert len(desk.denied) == (status in (401, 403))


def test_a_request_carries_the_identity_that_was_found_and_no_other() -> None:
    scope: Scope = {"type": "http", "state": {"kvgrove_identity": {"tenant": "forged"}}, "headers": []}
    with pytest.raises(TypeError):
        identity_of(Request(scope))


def test_while_draining_callers_are_sent_elsewhere_and_probes_and_operators_are_answered() -> None:
    desk = Desk()
    desk.draining = True
    status, headers = desk.visit("/v1/models", "ann")
    assert (status, headers[b"retry-after"], headers[b"connection"]) == (503, b"1", b"close")
    assert desk.visit("/v1/models", "nobody")[0] == 401
    assert desk.visit("/metrics", "root")[0] == 200
    assert desk.visit("/readyz", None)[0] == 200  # the application's own answer


def test_a_request_is_counted_while_it_is_under_way_and_not_afterwards_however_it_ends() -> None:
    desk = Desk("default: {concurrent_requests: 1}")
    seen: list[int] = []

    def fail() -> None:
        seen.append(desk.gate.under_way)
        raise RuntimeError("in the application")

    desk.inside = fail
    for _ in range(3):  # a place that is not given back would be missing the second time
        with pytest.raises(RuntimeError):
            desk.visit("/v1/models", "ann")
    assert (seen, desk.gate.under_way) == ([1, 1, 1], 0)
    assert [each["event"] for each in desk.records] == ["request"] * 3


def test_what_is_written_down() -> None:
    desk = Desk("tenants: {acme: {requests_per_minute: 2}}")
    desk.visit("/v1/secret-words", "ann", "model=bot")
    desk.visit("/v1/models", "ann", "model=secret-words", method="SECRET-WORDS")
    desk.visit("/v1/messages", "ann")
    desk.visit("/v1/secret-words", "secret-words")
    desk.visit("/admin/secret-words", "root")
    who = {"credential": "ann", "kind": "api_key", "tenant": "acme", "user": "ann", "client": "10.0.0.7"}
    assert desk.records == [
        who | {"event": "request", "method": "GET", "route": "/pattern/{name}", "status": 200, "namespace": "team/bot"},
        who | {"event": "request", "method": "-", "route": "/pattern/{name}", "status": 200},
        who | {"event": "request", "method": "GET", "route": "-", "status": 429, "code": "rate_limit_exceeded"},
        {
            "event": "denied",
            "method": "GET",
            "route": "-",
            "status": 401,
            "code": "invalid_api_key",
            "client": "10.0.0.7",
        },
        {
            "event": "admin",
            "method": "GET",
            "route": "/pattern/{name}",
            "status": 200,
            "client": "10.0.0.7",
            "credential": "root",
            "kind": "api_key",
            "tenant": "ops",
        },
    ]
