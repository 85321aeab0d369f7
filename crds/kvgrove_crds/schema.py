"""From pydantic's JSON schema to a Kubernetes structural schema.

Structural means: a type at every node, no references, no alternatives of types, nothing that closes an object (the API
server prunes or refuses unknown fields by itself). The default of an object is written out in full, although the API
server would fill in ``{}`` from the fields below: it judges defaults by our CEL rules before it does so.
"""

from typing import Any

from pydantic import BaseModel

_REF_PREFIX = "#/$defs/"
_DROPPED = frozenset(
    {"title", "$defs", "additionalProperties", "anyOf", "$ref", "default", "const", "exclusiveMinimum"}
)
_SCALARS = {"integer": "int64", "number": "double"}

Schema = dict[str, Any]

_OF_THE_API_SERVER: Schema = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object"},
}


class UnstructuralSchema(TypeError):
    """A model uses a type that a structural schema cannot express. Names the place."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}; give the field another type or its own JSON schema")


def structural_schema(model: type[BaseModel]) -> Schema:
    """The schema of a resource kind. ``metadata`` stays open: the API server owns it."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    own = {name: child for name, child in source["properties"].items() if name not in _OF_THE_API_SERVER}
    schema = _convert({**source, "properties": own}, source["$defs"], model.__name__)
    return {**schema, "properties": {**_OF_THE_API_SERVER, **schema["properties"]}}


def _convert(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    node = _resolve(node, definitions, path)
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if node.get("x-kubernetes-int-or-string"):
        return result
    kind = node.get("type")
    if not isinstance(kind, str):
        raise UnstructuralSchema(path, "no single type")
    if "const" in node:
        result["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:  # Kubernetes has the JSON schema draft where this is a flag
        result |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if kind in _SCALARS:
        result.setdefault("format", _SCALARS[kind])
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if kind == "array":
        result["items"] = _convert(node["items"], definitions, f"{path}[]")
    if kind == "object":
        result |= _object(node, definitions, path)
    return result


def _object(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    if "properties" in node:
        fields = {name: _field(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()}
        return {"properties": fields}
    values = node.get("additionalProperties")
    if not isinstance(values, dict):
        raise UnstructuralSchema(path, "an object of unknown shape")
    return {"additionalProperties": _convert(values, definitions, f"{path}.*")}


def _field(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    result = _convert(node, definitions, path)
    default = _without_empty(_resolve(node, definitions, path).get("default"))
    if result.get("properties") and isinstance(node.get("default"), dict) and default != _filled_in(result):
        raise UnstructuralSchema(path, "an object's default differs from the defaults of its fields")
    if default not in (None, [], {}):
        result["default"] = default
    return result


def _filled_in(schema: Schema) -> Schema:
    """What the API server makes of ``{}``, less objects that stay empty."""
    defaults = {
        name: _filled_in(child) if child.get("properties") else child["default"]
        for name, child in schema["properties"].items()
        if "default" in child
    }
    return {name: default for name, default in defaults.items() if default != {}}


def _without_empty(default: Any) -> Any:
    """An absent optional field, list or map means the same as an empty one, so its default is not written."""
    if not isinstance(default, dict):
        return default
    kept = {name: _without_empty(value) for name, value in default.items()}
    return {name: value for name, value in kept.items() if value not in (None, [], {})}


def _resolve(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    """Follows references and unwraps ``X | None``; what stands beside a reference (a description) wins."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].removeprefix(_REF_PREFIX)]
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        elif "anyOf" in node:
            branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
            if len(branches) != 1:
                raise UnstructuralSchema(path, "alternatives of types")
            node = {**branches[0], **{key: value for key, value in node.items() if key != "anyOf"}}
        else:
            return node
