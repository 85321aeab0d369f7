"""The two paths of explanations: `/v1/explain` for every caller, `/admin/explain` for operators.

Operators are told of all nodes, of the router's reckoning, and may ask on behalf of any caller (``callers``): that is
how a miss across realms is looked into, and the only way. Who is an operator the gate has judged, and each use is in
the audit log.
"""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response

from kvgrove_gateway.explain.bodies import parse_asked
from kvgrove_gateway.explain.report import encode
from kvgrove_gateway.explain.service import Explainer
from kvgrove_gateway.http import JSON, read_body, unless_gone
from kvgrove_gateway.identity.caller import Identity
from kvgrove_gateway.protection.gate import note_model

CALLERS_PATH = "/v1/explain"
OPERATORS_PATH = "/admin/explain"


class ExplainRoutes:
    """HTTP around an `Explainer`; who is let in, and how many at once, is the application's."""

    def __init__(
        self,
        explainer: Explainer,
        *,
        identify: Callable[[Request], Identity],
        admit: Callable[[], None],
        leave: Callable[[], None],
        body_bytes: int,
    ) -> None:
        """``body_bytes``: of one request body; two of them are taken. ``admit`` counts a request under way, or raises;
        ``leave`` ends it."""
        self._explainer = explainer
        self._identify = identify
        self._admit = admit
        self._leave = leave
        self._body_bytes = 2 * body_bytes

    def add_to(self, app: FastAPI) -> None:
        app.add_api_route(CALLERS_PATH, self.for_callers, methods=["POST"], response_class=Response)
        app.add_api_route(OPERATORS_PATH, self.for_operators, methods=["POST"], response_class=Response)

    async def for_callers(self, request: Request) -> Response:
        return await self._explain(request, self._identify(request), operator=False)

    async def for_operators(self, request: Request) -> Response:
        return await self._explain(request, self._identify(request), operator=True)

    async def _explain(self, request: Request, identity: Identity, *, operator: bool) -> Response:
        self._admit()
        try:
            asked = parse_asked(await read_body(request, self._body_bytes), on_behalf=operator)
            note_model(request, asked.prompts[0].ask.model)
            report = await unless_gone(request, self._explainer.explain(identity, asked, operator=operator))
            return Response(encode(report), media_type=JSON)
        finally:
            self._leave()
