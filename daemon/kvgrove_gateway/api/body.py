"""A request body -> a checked pydantic model, or a 400 that names the first field that is off.

The same for every dialect: strict types, closed objects, and no word of the value in the message (I12).
"""

from itertools import zip_longest
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from kvgrove_gateway.errors import BadRequest

M = TypeVar("M", bound=BaseModel)

MAX_NEW_TOKENS = 2**31 - 1
"""More than any model can give, and what every number on the wire to a node holds."""
MAX_MESSAGES = 4096
MAX_STOP_CHARS = 256
MAX_CHOICES = 16
"""Answers of one request: each takes a place on a node."""

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
NewTokens = Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Strict(BaseModel):
    """A closed object without coercion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Extension(Strict):
    """What kvgrove adds to a request."""

    prefix: Name | None = None
    """A declared stable prefix of the namespace; its documents come with it."""
    documents: list[Name] = Field([], max_length=256)
    """Declared documents, in any order: the namespace's own order counts."""
    session: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    """Narrows sharing within the verified user and keeps the conversation on its node. Never widens anything."""
    reasons: bool | None = None
    """Whether the answer is to say why tokens were computed; absent: as the gateway is set."""


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("stop_type", "Input should be a string or a list of strings")


def _as_switch(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    raise PydanticCustomError("switch_type", "Input should be a boolean or a number")


Switch = Annotated[
    bool | int | float | None, BeforeValidator(_as_switch, json_schema_input_type=bool | int | float | None)
]
"""Of a chat template: judged as one, for a union would name its members in the path of a refusal."""

StopList = Annotated[
    list[StopText], BeforeValidator(_as_list, json_schema_input_type=StopText | list[StopText]), Field(max_length=4)
]


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``; raises BadRequest."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequest(f"The body is not valid JSON: {problem}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    return fields


def check(model: type[M], fields: dict[str, Any]) -> M:
    """``fields`` as ``model``, null taken for absent; raises BadRequest."""
    present = {name: value for name, value in fields.items() if value is not None}
    try:
        return model.model_validate(present)
    except ValidationError as error:
        raise _first_problem(error, present) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply: flatten it.", code="invalid_json") from None


def drop_unsupported(fields: dict[str, Any], names: frozenset[str], neutral: dict[str, tuple[Any, ...]]) -> None:
    """Take fields without effect here out of ``fields``; raises BadRequest where a value would have one."""
    for name in [name for name in fields if name in names or name in neutral]:
        value = fields.pop(name)
        if value is not None and not any(_same(value, each) for each in neutral.get(name, ())):
            raise BadRequest(f"'{name}' is not supported: leave it out.", field=name, code="unsupported_parameter")


def refuse_other_parts(content: Any, path: str, known: frozenset[str]) -> None:
    """Refuse parts that are no text before anything else of them is looked at: nothing of the request is served."""
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind not in known:
            raise BadRequest(
                f"'{path}[{index}].type': models here read text and nothing else: leave the part out.",
                field=f"{path}[{index}].type",
                code="unsupported_content",
            )


def _same(value: Any, neutral: Any) -> bool:
    """Equal in JSON's eyes: false is not 0."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _first_problem(error: ValidationError, fields: dict[str, Any]) -> BadRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    field, message, kind = _path(first["loc"], fields), first["msg"], first["type"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):  # pydantic quotes the tag, which may be anything
        field = f"{field}.{first['ctx']['discriminator'].strip(chr(39))}"
        tags = first["ctx"].get("expected_tags")
        kind, message = ("missing", "") if tags is None else (kind, f"Input should be one of {tags}")
    if kind.startswith("rule_"):  # a rule over several fields names its field itself
        named, _, message = message.partition(": ")
        field = f"{field}.{named}" if field else named
    if kind == "missing":
        return BadRequest(f"'{field}' is required.", field=field, code="missing_required_parameter")
    if kind == "extra_forbidden":
        return BadRequest(f"'{field}' is not known: leave it out.", field=field, code="unknown_parameter")
    return BadRequest(f"'{field}': {message}.", field=field)


def _path(location: tuple[int | str, ...], value: Any) -> str:
    """``messages[0].content``, as OpenAI writes it. Names from the request are cut short.

    Pydantic's location also names the member of a union that it looked at: whatever leads nowhere in ``value``.
    """
    path = ""
    for part, following in zip_longest(location, location[1:]):
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
        elif isinstance(value, dict) and (following is None or _leads_on(value, part, following)):
            path += f".{part[:64]}" if path else part[:64]
            value = value.get(part)
    return path


def _leads_on(value: dict[str, Any], part: str, following: int | str) -> bool:
    """Whether ``part`` is a key of ``value`` and not the name of a union's member that is spelled like one."""
    return isinstance(value.get(part), dict | list) or (part in value and following not in value)
