"""OpenAI's chat request, as far as it has an effect here.

Closed: what is accepted works, and anything else is refused by name with the cure. A field whose value says exactly
what happens anyway (a penalty of 0, null) is taken. ``user`` is carried by OpenAI's SDKs; it is never identity (I2) and
has no effect. ``top_k`` is an addition that vLLM and others take too.

Two refusals keep the cache honest. A message part that is no text (an image, a file, whatever comes next) has no
content here that a key could stand for: left out, its prompt would meet the blocks of the text alone, and the answer
would be given blindly (COR-08). Whatever is asked *about the prompt's own tokens* (``echo``, ``prompt_logprobs``) is
what reuse does not compute (COR-11); completions have it, and bypass the cache for it.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kvgrove_gateway.api.body import (
    MAX_CHOICES,
    MAX_MESSAGES,
    Extension,
    ModelName,
    NewTokens,
    Penalty,
    Seed,
    StopList,
    Strict,
    Switch,
    check,
    drop_unsupported,
    read_object,
    refuse_other_parts,
)
from kvgrove_gateway.ask import Ask, ChatPrompt
from kvgrove_gateway.errors import BadRequest
from kvgrove_prompt.assembly import Message, ToolCall
from kvgrove_prompt.roles import ROLES, TOOL
from kvgrove_prompt.toolset import MAX_TOOLS
from kvgrove_protocol.data import Sampling

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Fields of OpenAI that are not supported, and their values that change nothing."""

UNSUPPORTED = frozenset(
    {
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
)

MESSAGE_EXTRAS = frozenset({"annotations", "audio", "function_call", "refusal"})
"""Fields of OpenAI's messages that are taken only where null or empty: replies that are sent back have them."""

TEXT_PARTS = frozenset({"text"})
MAX_CALLS = 256

ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Role = Literal[
    "system", "developer", "user", "human", "prompter", "assistant", "bot", "ai", "gpt", "model",
    "tool", "function", "ipython", "observation",
]  # fmt: skip
"""`kvgrove_prompt.roles.ROLES`: OpenAI's, and names that other formats have for them."""


def _as_parts(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "Input should be a string or a list of text parts")


class TextPart(Strict):
    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    name: ToolName
    arguments: str
    """The text of a JSON object, as the model wrote it."""


class MessageToolCall(Strict):
    id: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Strict):
    role: Role
    content: Annotated[
        list[TextPart] | None, BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart] | None)
    ] = None
    """A string, or text parts, which are joined by newlines; nothing only where tools are called."""
    tool_calls: list[MessageToolCall] | None = Field(None, max_length=MAX_CALLS)
    tool_call_id: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    name: ToolName | None = None
    """Of a tool, where its result is told."""
    reasoning_content: str | None = None
    """What the model thought ahead of its reply, where its template takes that apart."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        is_result = ROLES[self.role] == TOOL
        if self.content is None and not self.tool_calls and not self.reasoning_content:
            raise PydanticCustomError("rule_content", "content: is required where no tool is called")
        if is_result and self.tool_call_id is None and self.role == "tool":
            raise PydanticCustomError("rule_result", "tool_call_id: is required of a tool's result")
        if not is_result and (self.name is not None or self.tool_call_id is not None):
            named = "name" if self.name is not None else "tool_call_id"
            raise PydanticCustomError(
                "rule_result", "{named}: has no effect but of a tool's result, leave it out", {"named": named}
            )
        return self

    def message(self) -> Message:
        return Message(
            role=self.role,
            content=None if self.content is None else tuple(part.text for part in self.content),
            tool_calls=tuple(
                ToolCall(name=each.function.name, arguments=each.function.arguments, id=each.id)
                for each in self.tool_calls or ()
            ),
            tool_call_id=self.tool_call_id or "",
            name=self.name or "",
            reasoning=self.reasoning_content or "",
        )


class FunctionTool(Strict):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema. The order of its keys does not matter to the cache."""
    strict: Literal[False] | None = None
    """What a model writes is not held to the schema here."""


class Tool(Strict):
    type: Literal["function"]
    function: FunctionTool


class StreamOptions(Strict):
    include_usage: bool = False


class Generation(Strict):
    """What OpenAI's two ways to ask for text have in common."""

    model: ModelName
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    """Choose among so many of the likeliest tokens; 0 and -1: among all."""
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    seed: Seed | None = None
    stop: StopList = Field([])
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    user: str | None = Field(None, max_length=512)
    kvgrove: Extension = Extension()

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, top_logprobs: int | None) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            top_logprobs=top_logprobs,
        )

    @model_validator(mode="after")
    def _streams(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("rule_stream", "stream_options: only allowed with 'stream': true")
        return self


class ChatRequest(Generation):
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: NewTokens | None = None
    max_completion_tokens: NewTokens | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] = Field([], max_length=MAX_TOOLS)
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    """False ends an answer with its first call."""
    chat_template_kwargs: dict[str, Switch] = Field(default_factory=dict)
    """Switches of the model's own chat template, such as ``enable_thinking``."""

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("rule_logprobs", "top_logprobs: only allowed with 'logprobs': true")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError("rule_limits", "max_tokens: differs from max_completion_tokens, send one of them")
        return self

    def ask(self) -> Ask:
        newer = self.max_completion_tokens is not None
        return Ask(
            model=self.model,
            prompt=ChatPrompt(
                tuple(each.message() for each in self.messages),
                # Without a choice the model is not told of them, so that it cannot call any.
                tools=tuple(each.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for each in self.tools)
                if self.tool_choice == "auto"
                else (),
                one_call=not self.parallel_tool_calls,
                options=self.chat_template_kwargs,
            ),
            prompt_field="messages",
            limit=self.max_completion_tokens if newer else self.max_tokens,
            limit_field="max_completion_tokens" if newer else "max_tokens",
            sampling=self.sampling((self.top_logprobs or 0) if self.logprobs else None),
            stop=self.stop,
            prefix=self.kvgrove.prefix,
            documents=self.kvgrove.documents,
            session=self.kvgrove.session,
            reasons=self.kvgrove.reasons,
        )


def parse_chat(body: bytes) -> ChatRequest:
    """A checked request; raises BadRequest naming the first field that is off, never quoting its value."""
    fields = read_object(body)
    drop_unsupported(fields, UNSUPPORTED, NEUTRAL)
    _refuse_forced_calls(fields)
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_plain_message(each, position) for position, each in enumerate(messages)]
    return check(ChatRequest, fields)


def _refuse_forced_calls(fields: dict[str, Any]) -> None:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) or choice == "required":
        raise BadRequest(
            "'tool_choice': a model cannot be made to call a tool here: use 'auto' or 'none'.",
            field="tool_choice",
            code="unsupported_parameter",
        )
    for index, tool in enumerate(fields["tools"] if isinstance(fields.get("tools"), list) else ()):
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and function.get("strict") is True:
            raise BadRequest(
                f"'tools[{index}].function.strict': calls are not held to their schema here: leave it out.",
                field=f"tools[{index}].function.strict",
                code="unsupported_parameter",
            )


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
    refuse_other_parts(plain.get("content"), f"messages[{position}].content", TEXT_PARTS)
    return plain
