"""OpenAI's chat request, as far as it has an effect here.

Closed: what is accepted works, and anything else is refused by name with the cure. A field whose value says exactly
what happens anyway (``n: 1``, a penalty of 0, null) is taken. ``user`` is carried by OpenAI's SDKs; it is never
identity (I2) and has no effect.

Two refusals keep the cache honest. A message part that is no text (an image, a file, whatever comes next) has no
content here that a key could stand for: left out, its prompt would meet the blocks of the text alone, and the answer
would be given blindly (COR-08). Whatever is asked *about the prompt's own tokens* (``echo``, ``prompt_logprobs``) is
what reuse does not compute (COR-11).
"""

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from kvgrove_gateway.errors import BadRequest

MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_MESSAGES = 4096
MAX_NEW_TOKENS = 2**31 - 1
"""More than any model can give, and what every number on the wire to a node holds."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),  # without tools it says nothing
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),  # likewise
}
"""Fields of OpenAI that are not supported, and their values that change nothing."""

UNSUPPORTED = frozenset(NEUTRAL) | {
    "audio",
    "function_call",
    "functions",
    "metadata",
    "prediction",
    "prompt_logprobs",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "safety_identifier",
    "verbosity",
    "web_search_options",
}

MESSAGE_EXTRAS = frozenset({"annotations", "audio", "function_call", "name", "refusal", "tool_calls", "tool_call_id"})
"""Fields of OpenAI's messages that are taken only where null or empty: replies that are sent back have them."""


def _as_parts(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "Input should be a string or a list of text parts")


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("stop_type", "Input should be a string or a list of strings")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_as_parts)]
    """A string, or text parts, which are joined by newlines."""

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.content)


class StreamOptions(_Strict):
    include_usage: bool = False


class Extension(_Strict):
    """What kvgrove adds to a request."""

    prefix: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """A declared stable prefix of the namespace; its documents come with it."""
    documents: list[Annotated[str, StringConstraints(min_length=1, max_length=253)]] = Field([], max_length=256)
    """Declared documents, in any order: the namespace's own order counts."""
    session: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    """Narrows sharing within the verified user and keeps the conversation on its node. Never widens anything."""


class ChatRequest(_Strict):
    model: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_NEW_TOKENS)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]],
        BeforeValidator(_as_list),
        Field(max_length=MAX_STOPS),
    ] = []
    n: Literal[1] = 1
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    user: str | None = Field(None, max_length=512)
    kvgrove: Extension = Extension()

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("needs_stream", "stream_options: only allowed with 'stream': true")
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("needs_logprobs", "top_logprobs: only allowed with 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError("two_limits", "max_tokens: differs from max_completion_tokens, send one of them")
        return self

    @property
    def limit(self) -> int | None:
        """Tokens to generate at most, as asked for."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def parse_chat(body: bytes) -> ChatRequest:
    """A checked request; raises BadRequest naming the first field that is off, never quoting its value."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequest(f"The body is not valid JSON: {problem}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    _refuse_unsupported(fields)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_plain_message(each, position) for position, each in enumerate(messages)]
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise _first_problem(error) from None


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name in [name for name in fields if name in UNSUPPORTED]:
        value = fields.pop(name)
        if value is not None and not any(_same(value, neutral) for neutral in NEUTRAL.get(name, ())):
            raise BadRequest(f"'{name}' is not supported: leave it out.", field=name, code="unsupported_parameter")


def _plain_message(message: Any, position: int) -> Any:
    if not isinstance(message, dict):
        return message
    plain = dict(message)
    for name in [name for name in message if name in MESSAGE_EXTRAS]:
        if message[name] not in (None, []):
            raise BadRequest(
                f"'messages[{position}].{name}' is not supported: leave it out.",
                field=f"messages[{position}].{name}",
                code="unsupported_parameter",
            )
        del plain[name]
    _refuse_other_parts(plain.get("content"), f"messages[{position}].content")
    return plain


def _refuse_other_parts(content: Any, path: str) -> None:
    """Parts that are no text, before anything else of them is looked at: nothing of the request is served."""
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and isinstance(kind := part.get("type"), str) and kind != "text":
            raise BadRequest(
                f"'{path}[{index}].type': models here read text and nothing else: leave the part out.",
                field=f"{path}[{index}].type",
                code="unsupported_content",
            )


def _same(value: Any, neutral: Any) -> bool:
    """Equal in JSON's eyes: false is not 0."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _first_problem(error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field, message, kind = _path(first["loc"]), first["msg"], first["type"]
    if not field:  # a rule over several fields names its field itself
        field, _, message = message.partition(": ")
    if kind == "missing":
        return BadRequest(f"'{field}' is required.", field=field, code="missing_required_parameter")
    if kind == "extra_forbidden":
        return BadRequest(f"'{field}' is not known: leave it out.", field=field, code="unknown_parameter")
    return BadRequest(f"'{field}': {message}.", field=field)


def _path(location: tuple[int | str, ...]) -> str:
    """``messages[0].content``, as OpenAI writes it. Names from the request are cut short."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:64]}" if path else part[:64]
    return path
