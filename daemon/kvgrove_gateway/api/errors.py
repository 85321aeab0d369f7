"""An error in the dialect of the path that was called."""

from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kvgrove_gateway.api import anthropic_replies
from kvgrove_gateway.errors import ApiError
from kvgrove_gateway.http import JSON

ANTHROPIC = "/v1/messages"
"""Anthropic's paths begin so."""


def api_error(path: str, error: ApiError, request_id: str) -> Response:
    """``error`` as an answer to a request for ``path``."""
    if path.startswith(ANTHROPIC):
        body: dict[str, Any] = anthropic_replies.error_body(error.status, error.message, request_id)
    else:
        body = dict(error.body())
    headers = error.headers() | request_id_headers(path, request_id)
    return Response(msgspec.json.encode(body), error.status, headers, JSON)


def http_error(path: str, error: HTTPException, request_id: str) -> Response:
    """Paths and methods that do not exist."""
    message = f"{error.detail}: GET /openapi.json lists what there is."
    if path.startswith(ANTHROPIC):
        body: dict[str, Any] = anthropic_replies.error_body(error.status_code, message, request_id)
    else:
        kind = {"message": message, "type": "invalid_request_error", "param": None, "code": "no_such_endpoint"}
        body = {"error": kind}
    headers = {**(error.headers or {}), **request_id_headers(path, request_id)}
    return Response(msgspec.json.encode(body), error.status_code, headers, JSON)


def request_id_headers(path: str, request_id: str) -> dict[str, str]:
    """The header that the dialect's SDK reads."""
    return {"request-id" if path.startswith(ANTHROPIC) else "x-request-id": request_id}
