"""The gateway's OpenAPI document: every route with the schemas of its bodies, from the models that check them.

A route's requests are read by hand (a body has bounds, and its errors name fields in the dialect's own way), so FastAPI
cannot know their schemas: they are told here. Pure.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kvgrove_gateway.api.anthropic import CountRequest, MessageRequest
from kvgrove_gateway.api.completions import CompletionRequest
from kvgrove_gateway.api.openai import ChatRequest
from kvgrove_gateway.explain.bodies import ExplainRequest

BODIES: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/messages": MessageRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/explain": ExplainRequest,
    "/admin/explain": ExplainRequest,
}
"""POST route -> what its body holds."""

STREAMED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
OPEN = frozenset({"/healthz", "/readyz"})

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": sorted(required), "properties": dict(required)}


_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_OPENAI_ANSWER = _object(
    {
        "id": _TEXT,
        "object": _TEXT,
        "created": _COUNT,
        "model": _TEXT,
        "choices": {"type": "array", "items": {"type": "object"}},
        "usage": _USAGE,
    }
)
_MODEL = _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT})
_ANSWERS: Mapping[str, Any] = {
    "/v1/chat/completions": _OPENAI_ANSWER,
    "/v1/completions": _OPENAI_ANSWER,
    "/v1/messages": _object(
        {
            "id": _TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": _TEXT,
            "content": {"type": "array", "items": {"type": "object"}},
            "usage": _object(
                {
                    "input_tokens": _COUNT,
                    "output_tokens": _COUNT,
                    "cache_creation_input_tokens": _COUNT,
                    "cache_read_input_tokens": _COUNT,
                    "cache_creation": _object(
                        {"ephemeral_5m_input_tokens": _COUNT, "ephemeral_1h_input_tokens": _COUNT}
                    ),
                }
            ),
        }
    ),
    "/v1/messages/count_tokens": _object({"input_tokens": _COUNT}),
    "/v1/explain": {"type": "object"},
    "/admin/explain": {"type": "object"},
    "/v1/models": _object({"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}}),
    "/v1/models/{name}": _MODEL,
}
_OPENAI_ERROR = _object(
    {
        "error": _object(
            {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            }
        )
    }
)
_ANTHROPIC_ERROR = _object(
    {"type": {"const": "error"}, "error": _object({"type": _TEXT, "message": _TEXT}), "request_id": _TEXT}
)


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of ``app``'s routes."""
    whole = get_openapi(
        title=app.title,
        version="v1",
        description="OpenAI's and Anthropic's APIs in front of a kvgrove fleet.",
        routes=app.routes,
    )
    keyed, schemas = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(BODIES.values())],
        ref_template="#/components/schemas/{model}",
    )
    references: dict[Any, dict[str, Any]] = {model: schema for (model, _), schema in keyed.items()}
    whole["components"] = {
        "schemas": schemas.get("$defs", {}),
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        },
    }
    for path, operations in whole["paths"].items():
        for operation in operations.values():
            _describe(path, operation, references)
    return whole


def _describe(path: str, operation: dict[str, Any], references: Mapping[Any, dict[str, Any]]) -> None:
    if path in BODIES:
        operation["requestBody"] = {"required": True, "content": _json(references[BODIES[path]])}
    if path not in OPEN:
        operation["security"] = [{"bearer": []}, {"key": []}]
    if path in _ANSWERS:
        content = _json(_ANSWERS[path])
        if path in STREAMED:
            content["text/event-stream"] = {"schema": _TEXT}
        error = _ANTHROPIC_ERROR if path.startswith("/v1/messages") else _OPENAI_ERROR
        operation["responses"] = {
            "200": {"description": "The answer", "content": content},
            "default": {"description": "An error, in the dialect's own shape", "content": _json(error)},
        }


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
