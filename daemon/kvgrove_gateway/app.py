"""The HTTP application: routes, who is let in, and nothing of how a request is served.

Order of judgement: credential, load, body, request, namespace. An unauthenticated caller learns nothing, and costs no
parsing.
"""

import re
from collections.abc import Callable
from typing import Protocol, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from kvgrove_gateway.answer import Answer
from kvgrove_gateway.answers import Answers, begin_all
from kvgrove_gateway.api import endpoints, openai_replies, openapi
from kvgrove_gateway.api.anthropic import parse_count
from kvgrove_gateway.api.anthropic_replies import token_count
from kvgrove_gateway.api.endpoints import Endpoint
from kvgrove_gateway.api.errors import api_error, http_error, request_id_headers
from kvgrove_gateway.board import PlanBoard
from kvgrove_gateway.chat import Call, Chat
from kvgrove_gateway.errors import ApiError, Busy, Forbidden, NotFound, Unauthorized, Unavailable
from kvgrove_gateway.explain.routes import ExplainRoutes
from kvgrove_gateway.explain.service import Explainer
from kvgrove_gateway.http import JSON, ClientGone, EventStream, read_body, unless_gone
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.metrics import NO_NAMESPACE, Metrics
from kvgrove_gateway.protection.gate import identity_of, note_model, note_outcome
from kvgrove_gateway.route import HEADER
from kvgrove_gateway.settings import Limits

T = TypeVar("T")

CLIENT_CLOSED_REQUEST = 499
"""Status nobody reads: the caller has left."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Health(Protocol):
    """What the probes ask."""

    def not_ready_reason(self) -> str | None:
        """Why no request should come here now; None if all is well."""

    @property
    def draining(self) -> bool: ...


class Api:
    """The handlers, with what they need."""

    def __init__(
        self,
        *,
        board: PlanBoard,
        chat: Chat,
        explainer: Explainer,
        health: Health,
        metrics: Metrics,
        refresh_metrics: Callable[[], None],
        limits: Limits,
        clock: Callable[[], float],
        now: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """``refresh_metrics``: sets the gauges that are only looked up on a scrape. ``clock``: the chat service's, for
        spans of time; ``now``: seconds since 1970, for what callers are told."""
        self._board = board
        self._chat = chat
        self._explainer = explainer
        self._health = health
        self._metrics = metrics
        self._refresh_metrics = refresh_metrics
        self._limits = limits
        self._clock = clock
        self._now = now
        self._new_id = new_id
        self._under_way = 0

    def application(self) -> FastAPI:
        app = FastAPI(title="kvgrove gateway", docs_url=None, redoc_url=None)
        app.add_api_route("/v1/chat/completions", self.chat_completions, methods=["POST"], response_class=Response)
        app.add_api_route("/v1/completions", self.completions, methods=["POST"], response_class=Response)
        app.add_api_route("/v1/messages", self.messages, methods=["POST"], response_class=Response)
        app.add_api_route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"], response_class=Response)
        app.add_api_route("/v1/models", self.models, methods=["GET"], response_class=Response)
        app.add_api_route("/v1/models/{name:path}", self.model, methods=["GET"], response_class=Response)
        ExplainRoutes(
            self._explainer,
            identify=self._identify,
            admit=self._admit,
            leave=self._leave,
            body_bytes=self._limits.body_bytes,
        ).add_to(app)
        app.add_api_route("/healthz", self.healthz, methods=["GET"], response_class=PlainTextResponse)
        app.add_api_route("/readyz", self.readyz, methods=["GET"], response_class=PlainTextResponse)
        app.add_api_route("/metrics", self.metrics, methods=["GET"], response_class=PlainTextResponse)
        app.add_exception_handler(ApiError, self._on_api_error)
        app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]  # FastAPI's way to replace it
        app.add_exception_handler(ClientGone, _on_client_gone)
        app.add_exception_handler(HTTPException, self._on_http_error)
        return app

    # -- text ------------------------------------------------------------------------------------------------------

    async def chat_completions(self, request: Request) -> Response:
        return await self._generate(request, endpoints.CHAT)

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, endpoints.COMPLETIONS)

    async def messages(self, request: Request) -> Response:
        return await self._generate(request, endpoints.MESSAGES)

    async def count_tokens(self, request: Request) -> Response:
        identity = self._identify(request)
        self._admit()
        try:
            ask = self._parse(await read_body(request, self._limits.body_bytes), lambda body: parse_count(body).ask())
            note_model(request, ask.model)
            call = Call(id="", identity=identity, ask=ask, arrived=self._clock())
            return Response(token_count(await unless_gone(request, self._chat.count(call))), media_type=JSON)
        finally:
            self._leave()

    async def _generate(self, request: Request, endpoint: Endpoint) -> Response:
        arrived = self._clock()
        identity = self._identify(request)
        self._admit()
        handed_over = False
        try:
            parsed = self._parse(await read_body(request, self._limits.body_bytes), endpoint.parse)
            note_model(request, parsed.asks[0].model)
            call_id = f"{endpoint.id_prefix}{self._new_id()}"
            trace = request.headers.get("traceparent", "")
            calls = [
                Call(
                    id=f"{call_id}-{position}" if position else call_id,
                    identity=identity,
                    ask=ask,
                    arrived=arrived,
                    traceparent=trace if _TRACEPARENT.fullmatch(trace) else "",
                )
                for position, ask in enumerate(parsed.asks)
            ]
            answers = await unless_gone(request, begin_all(self._chat.begin, calls, parsed.choices))
            replies = parsed.replies(call_id, int(self._now()))
            headers = _route_header(answers.first) | answers.account.headers()
            headers |= request_id_headers(request.url.path, call_id)
            if not parsed.stream:
                try:
                    whole = await unless_gone(request, replies.whole(answers))
                finally:
                    answers.close()
                return Response(whole, headers=headers, media_type=JSON)
            handed_over = True
            return EventStream(replies.events(answers), lambda: self._stream_closed(answers), headers)
        finally:
            if not handed_over:
                self._leave()

    def _parse(self, body: bytes, parse: Callable[[bytes], T]) -> T:
        try:
            return parse(body)
        except ApiError as error:
            self._metrics.requests.labels(NO_NAMESPACE, error.code).inc()
            raise

    def _identify(self, request: Request) -> Identity:
        return identity_of(request)

    def _admit(self) -> None:
        if self._health.draining:
            raise Unavailable("The gateway is shutting down: send the request again.", code="draining")
        if self._under_way >= self._limits.requests:
            raise Busy("Too many requests are under way: try again shortly.")
        self._under_way += 1
        self._metrics.in_flight.set(self._under_way)

    def _leave(self) -> None:
        self._under_way -= 1
        self._metrics.in_flight.set(self._under_way)

    def _stream_closed(self, answers: Answers) -> None:
        answers.close()
        self._leave()

    # -- the rest --------------------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        names = self._board.current.visible(self._identify(request))
        return Response(openai_replies.models(names, 0), media_type=JSON)

    async def model(self, request: Request, name: str) -> Response:
        identity = self._identify(request)
        if name not in self._board.current.visible(identity):
            raise NotFound("The model does not exist, or not for this API key: see GET /v1/models.", field="model")
        return Response(openai_replies.model(name, 0), media_type=JSON)

    async def healthz(self) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self) -> Response:
        reason = self._health.not_ready_reason()
        return PlainTextResponse("ok\n") if reason is None else PlainTextResponse(f"{reason}\n", 503)

    async def metrics(self) -> Response:
        self._refresh_metrics()
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def _on_api_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, ApiError):
            raise error
        note_outcome(request, error)
        if isinstance(error, (Unauthorized, Forbidden)):
            self._metrics.denied.labels(error.code).inc()
        return api_error(request.url.path, error, f"req_{self._new_id()}")

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        return http_error(request.url.path, error, f"req_{self._new_id()}")


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _route_header(answer: Answer) -> dict[str, str]:
    """Empty for a caller who may not know."""
    route = answer.origin.route
    return {} if route is None else {HEADER: route.header()}
