"""The gate: every request passes it before the API, and carries the identity that it found there (ASGI middleware).

============================  ======================================================================
``/healthz``, ``/readyz``,    anybody: they tell nothing of callers
``/openapi.json``
``/metrics``                  credentials of monitors and operators
``/admin``, ``/admin/...``    credentials of operators; each use is audited
everything else               any credential, within its tenant's allowances, while not draining
============================  ======================================================================

The default is the last row, so that a new route is guarded before anybody thinks of it. Order of judgement: credential,
role, draining, allowance. The body is not touched: whoever is refused here has cost no parsing.

An identity counts for the request that brought it: a key that is revoked, or a token that expires, while an answer is
under way lets that answer end; the next request, also on the same connection, is refused.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

from fastapi import Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvgrove_gateway.errors import ApiError, Forbidden, Unauthorized, Unavailable
from kvgrove_gateway.identity.authenticator import Authenticator
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.protection.audit import Audit
from kvgrove_gateway.protection.rates import TenantRates

_IDENTITY = "kvgrove_identity"
_OUTCOME = "kvgrove_outcome"
_MODEL = "kvgrove_model"
NO_ROUTE = "-"
"""In the audit log: a path that the API does not have. The path itself may hold anything."""


class Guard(Enum):
    """Who may come in."""

    OPEN = "open"
    MONITOR = "monitor"
    OPERATOR = "operator"
    CALLER = "caller"


_OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})


def guard_of(path: str) -> Guard:
    if path in _OPEN:
        return Guard.OPEN
    if path == "/metrics":
        return Guard.MONITOR
    if path == "/admin" or path.startswith("/admin/"):
        return Guard.OPERATOR
    return Guard.CALLER


def identity_of(request: Request) -> Identity:
    """Of a request that has passed the gate."""
    identity = request.scope["state"][_IDENTITY]
    if not isinstance(identity, Identity):
        raise TypeError("the gate was not passed")
    return identity


def note_outcome(request: Request, error: ApiError) -> None:
    """Why the request was refused: its code goes into the audit log."""
    request.scope["state"][_OUTCOME] = error.code


def note_model(request: Request, model: str) -> None:
    """What the request asked for; the audit log names it where it is a namespace that the caller may use."""
    request.scope["state"][_MODEL] = model


class Gate:
    """Wraps the API."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        rates: TenantRates,
        audit: Audit,
        draining: Callable[[], bool],
        denied: Callable[[str], None],
        namespace_of: Callable[[Identity, str], str | None],
        refuse: Callable[[str, ApiError], Response],
    ) -> None:
        """``denied``: counts a refusal by its code. ``namespace_of``: the name of the namespace that an identity may
        use under a model's name. ``refuse``: a path and an error -> the answer in the dialect of that path."""
        self._app = app
        self._authenticator = authenticator
        self._rates = rates
        self._audit = audit
        self._draining = draining
        self._denied = denied
        self._namespace_of = namespace_of
        self._refuse = refuse
        self.under_way = 0
        """Requests of callers that have not ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither web sockets nor lifespan events are served here
        guard = guard_of(scope["path"])
        if guard is Guard.OPEN:
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, send, closing=self._draining)
        state = scope.setdefault("state", {})
        entered = False
        try:
            identity = state[_IDENTITY] = await self._authenticator.identify(scope["headers"])
            self._admit(guard, identity)
            entered = guard is Guard.CALLER
        except ApiError as error:
            state[_OUTCOME] = error.code
            if isinstance(error, Unauthorized | Forbidden):
                self._denied(error.code)
            try:
                await self._refuse(scope["path"], error)(scope, receive, visit.send)
            finally:
                self._record(guard, visit)
            return
        self.under_way += entered
        try:
            await self._app(scope, receive, visit.send)
        finally:
            self.under_way -= entered
            if entered:
                self._rates.end(identity.caller.tenant or "")
            self._record(guard, visit)

    def _admit(self, guard: Guard, identity: Identity) -> None:
        if guard is Guard.OPERATOR and not identity.operator:
            raise Forbidden("An operator's credential is needed here.", code="operators_only")
        if guard is Guard.MONITOR and not identity.monitor:
            raise Forbidden("A monitor's or an operator's credential is needed here.", code="operators_only")
        if guard is Guard.CALLER:
            if self._draining():
                raise Unavailable("The gateway is shutting down: send the request again.", code="draining")
            self._rates.begin(identity.caller.tenant or "")

    def _record(self, guard: Guard, visit: "_Visit") -> None:
        scope, state = visit.scope, visit.scope["state"]
        identity: Identity | None = state.get(_IDENTITY)
        status = visit.status
        refused = status in (401, 403)
        event = "denied" if refused else "admin" if guard in (Guard.OPERATOR, Guard.MONITOR) else "request"
        who: dict[str, Any] = {}
        if identity is not None:
            who = {
                "credential": identity.key_id,
                "kind": identity.kind,
                "tenant": identity.caller.tenant,
                "user": identity.caller.user,
            }
            if (model := state.get(_MODEL)) is not None:
                who["namespace"] = self._namespace_of(identity, model)
        client = scope.get("client")
        self._audit.record(
            event,
            method=scope["method"] if scope["method"] in _METHODS else NO_ROUTE,
            route=_route(scope),
            status=status,
            code=state.get(_OUTCOME),
            client=client[0] if client else None,
            **who,
        )


_METHODS = frozenset({"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Visit:
    """One request's way out: notes the status, and closes the connection where the gateway is draining."""

    def __init__(self, scope: Scope, send: Send, *, closing: Callable[[], bool]) -> None:
        self.scope = scope
        self.status: int | None = None
        """None: the caller left before there was an answer."""
        self._send = send
        self._closing = closing

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._closing():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        await self._send(message)


def _route(scope: Scope) -> str:
    """The route's pattern: a path itself may hold anything, also text that is nobody's business."""
    path = getattr(scope.get("route"), "path", None)
    if isinstance(path, str):
        return path
    return scope["path"] if scope["path"] == "/metrics" else NO_ROUTE
