"""The HTTP application: routes, who is let in, and nothing of how a request is served.

Order of judgement: credential, load, body, request, namespace. An unauthenticated caller learns nothing, and costs no
parsing.
"""

import re
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from kvgrove_gateway.answer import Answer
from kvgrove_gateway.api import openai_replies
from kvgrove_gateway.api.openai import ChatRequest, parse_chat
from kvgrove_gateway.api.openai_replies import LogprobText, Replies
from kvgrove_gateway.board import PlanBoard
from kvgrove_gateway.chat import Chat, ChatCall
from kvgrove_gateway.errors import ApiError, Busy, Forbidden, NotFound, Unauthorized, Unavailable
from kvgrove_gateway.explain.routes import ExplainRoutes
from kvgrove_gateway.explain.service import Explainer
from kvgrove_gateway.http import (
    JSON,
    ClientGone,
    EventStream,
    error_response,
    http_error_response,
    read_body,
    unless_gone,
)
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.metrics import NO_NAMESPACE, Metrics
from kvgrove_gateway.protection.gate import identity_of, note_model, note_outcome
from kvgrove_gateway.route import HEADER
from kvgrove_gateway.settings import Limits

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
        app.add_exception_handler(ClientGone, _on_client_gone)
        app.add_exception_handler(HTTPException, _on_http_error)
        return app

    # -- chat ------------------------------------------------------------------------------------------------------

    async def chat_completions(self, request: Request) -> Response:
        arrived = self._clock()
        identity = self._identify(request)
        self._admit()
        handed_over = False
        try:
            call = self._parse(await read_body(request, self._limits.body_bytes), identity, arrived, request)
            answer = await unless_gone(request, self._chat.begin(call))
            replies = Replies(call.id, int(self._now()), call.request.model)
            if not call.request.stream:
                whole = await unless_gone(request, _whole(answer, replies, call.request))
                return Response(whole, headers=_route_header(answer), media_type=JSON)
            handed_over = True
            events = _events(answer, replies, call.request)
            return EventStream(events, lambda: self._stream_closed(answer), _route_header(answer))
        finally:
            if not handed_over:
                self._leave()

    def _parse(self, body: bytes, identity: Identity, arrived: float, request: Request) -> ChatCall:
        try:
            parsed = parse_chat(body)
        except ApiError as error:
            self._metrics.requests.labels(NO_NAMESPACE, error.code).inc()
            raise
        note_model(request, parsed.model)
        trace = request.headers.get("traceparent", "")
        return ChatCall(
            id=f"chatcmpl-{self._new_id()}",
            identity=identity,
            request=parsed,
            arrived=arrived,
            traceparent=trace if _TRACEPARENT.fullmatch(trace) else "",
        )

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

    def _stream_closed(self, answer: Answer) -> None:
        answer.close()
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
        return error_response(error)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_http_error(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return http_error_response(error)


def _route_header(answer: Answer) -> dict[str, str]:
    """Empty for a caller who may not know."""
    route = answer.origin.route
    return {} if route is None else {HEADER: route.header()}


async def _whole(answer: Answer, replies: Replies, request: ChatRequest) -> bytes:
    try:
        texts: list[str] = []
        logprobs: list[LogprobText] = []
        async for piece in answer.pieces():
            texts.append(piece.text)
            logprobs += piece.logprobs
        found = logprobs if request.logprobs else None
        return replies.plain("".join(texts), found, answer.finish_reason, answer.account)
    finally:
        answer.close()


async def _events(answer: Answer, replies: Replies, request: ChatRequest) -> AsyncIterator[bytes]:
    usage = request.include_usage
    yield replies.first(include_usage=usage)
    try:
        async for piece in answer.pieces():
            yield replies.text(piece.text, piece.logprobs if request.logprobs else None, include_usage=usage)
    except ApiError as error:  # the status line is long gone: the error travels as an event
        yield openai_replies.error_event(error.body())
        return
    yield replies.last(answer.finish_reason, answer.account, include_usage=usage)
    if usage:
        yield replies.usage(answer.account)
    yield openai_replies.END
