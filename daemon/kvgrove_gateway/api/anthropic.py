"""Anthropic's message request, as far as it has an effect here, and its cache breakpoints.

Closed like OpenAI's: what is accepted works, anything else is refused by name. ``metadata.user_id`` is carried by SDKs;
it is never identity (I2) and has no effect. A last message of the assistant is continued.

Breakpoints (``cache_control``) come in the order in which a prompt is laid out: tools, system, messages. At most four
of them, and none that lasts an hour behind one that lasts five minutes. They decide what is *reported* as written:
the cache itself is automatic. It finds the longest stored prefix however many blocks lie between it and a breakpoint,
so it never finds less than Anthropic's look-back of 20 blocks, and how long it keeps blocks is the namespace's to say.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kvgrove_gateway.api.anthropic_prompt import lay_out
from kvgrove_gateway.api.body import (
    MAX_MESSAGES,
    Extension,
    ModelName,
    NewTokens,
    StopList,
    Strict,
    check,
    drop_unsupported,
    read_object,
    refuse_other_parts,
)
from kvgrove_gateway.api.openai import MAX_CALLS, ToolName
from kvgrove_gateway.ask import Ask
from kvgrove_gateway.errors import BadRequest
from kvgrove_prompt.toolset import MAX_TOOLS
from kvgrove_protocol.data import Sampling

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "thinking": ({"type": "disabled"},),
}
UNSUPPORTED = frozenset({"container", "context_management", "mcp_servers", "output_config", "output_format"})

MAX_BREAKPOINTS = 4
SYSTEM_BLOCKS = frozenset({"text"})
MESSAGE_BLOCKS = frozenset({"text", "tool_use", "tool_result"})


def _as_blocks(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "Input should be a string or a list of blocks")


Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class CacheControl(Strict):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class TextBlock(Strict):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


TextBlocks = Annotated[list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])]


class ToolUseBlock(Strict):
    type: Literal["tool_use"]
    id: Id
    name: ToolName
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResultBlock(Strict):
    type: Literal["tool_result"]
    tool_use_id: Id
    content: TextBlocks = Field([])
    is_error: bool = False
    """Told to the model by ``Error: `` ahead of the result."""
    cache_control: CacheControl | None = None


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class InputMessage(Strict):
    role: Literal["user", "assistant"]
    content: Annotated[
        list[Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block]), Field(max_length=MAX_CALLS)
    ]

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        kinds = [each.type for each in self.content]
        if self.role == "user" and "tool_use" in kinds:
            raise PydanticCustomError("rule_tool_use", "content: tool_use blocks are the assistant's alone")
        if self.role == "assistant" and "tool_result" in kinds:
            raise PydanticCustomError("rule_tool_result", "content: tool_result blocks are the user's alone")
        if "tool_result" in kinds and "text" in kinds[: len(kinds) - kinds[::-1].index("tool_result")]:
            raise PydanticCustomError("rule_order", "content: tool_result blocks come ahead of all text")
        if "tool_use" in kinds and "text" in kinds[kinds.index("tool_use") :]:
            raise PydanticCustomError("rule_order", "content: tool_use blocks come behind all text")
        return self


class Metadata(Strict):
    user_id: str | None = Field(None, max_length=512)


class ToolDefinition(Strict):
    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    """A JSON Schema. The order of its keys does not matter to the cache."""
    cache_control: CacheControl | None = None


class ToolChoice(Strict):
    type: Literal["auto", "none"]
    disable_parallel_tool_use: bool = False
    """Ends an answer with its first call."""


class CountRequest(Strict):
    """What decides how many tokens a prompt has."""

    model: ModelName
    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: TextBlocks = Field([])
    tools: list[ToolDefinition] = Field([], max_length=MAX_TOOLS)
    tool_choice: ToolChoice = ToolChoice(type="auto")
    cache_control: CacheControl | None = None
    """A breakpoint behind the last message."""
    kvgrove: Extension = Extension()

    @model_validator(mode="after")
    def _breakpoints_fit(self) -> Self:
        blocks: list[TextBlock | ToolUseBlock | ToolResultBlock] = [*self.system]
        blocks += [block for message in self.messages for block in message.content]
        marked: list[ToolDefinition | TextBlock | ToolUseBlock | ToolResultBlock | CountRequest]
        marked = [*self.tools, *blocks, self]
        classes = [each.cache_control.ttl for each in marked if each.cache_control is not None]
        if len(classes) > MAX_BREAKPOINTS:
            raise PydanticCustomError(
                "rule_breakpoints", "cache_control: at most 4 blocks may have one, leave some out"
            )
        if "5m" in classes and "1h" in classes[classes.index("5m") :]:
            raise PydanticCustomError(
                "rule_ttl", "cache_control.ttl: one of '1h' must not come after one of '5m', put the longer ones first"
            )
        return self

    def ask(self) -> Ask:
        """The prompt alone: nothing is to be generated."""
        prompt, breakpoints = lay_out(self)
        return Ask(
            model=self.model,
            prompt=prompt,
            prompt_field="messages",
            limit=0,
            limit_field="max_tokens",
            sampling=Sampling(),
            call_prefix="toolu_",
            breakpoints=breakpoints,
            prefix=self.kvgrove.prefix,
            documents=self.kvgrove.documents,
            session=self.kvgrove.session,
            reasons=self.kvgrove.reasons,
        )


class MessageRequest(CountRequest):
    max_tokens: NewTokens
    stream: bool = False
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=2**31 - 1)
    stop_sequences: StopList = Field([])
    metadata: Metadata | None = None

    def ask(self) -> Ask:
        return replace(
            super().ask(),
            limit=self.max_tokens,
            sampling=Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k),
            stop=self.stop_sequences,
        )


def parse_message(body: bytes) -> MessageRequest:
    """A checked request; raises BadRequest naming the first field that is off, never quoting its value."""
    return check(MessageRequest, _fields(body))


def parse_count(body: bytes) -> CountRequest:
    """The same for a prompt that is only to be counted."""
    return check(CountRequest, _fields(body))


def _fields(body: bytes) -> dict[str, Any]:
    fields = read_object(body)
    drop_unsupported(fields, UNSUPPORTED, NEUTRAL)
    _refuse_what_cannot_be_done(fields)
    refuse_other_parts(fields.get("system"), "system", SYSTEM_BLOCKS)
    for index, message in enumerate(_objects(fields.get("messages"))):
        content = message.get("content")
        refuse_other_parts(content, f"messages[{index}].content", MESSAGE_BLOCKS)
        for number, block in enumerate(_objects(content)):
            path = f"messages[{index}].content[{number}].content"
            refuse_other_parts(block.get("content"), path, SYSTEM_BLOCKS)
    return fields


def _refuse_what_cannot_be_done(fields: dict[str, Any]) -> None:
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        raise BadRequest(
            "'tool_choice.type': a model cannot be made to call a tool here: use 'auto' or 'none'.",
            field="tool_choice.type",
            code="unsupported_parameter",
        )
    for index, tool in enumerate(_objects(fields.get("tools"))):
        if isinstance(kind := tool.get("type"), str) and kind != "custom":
            raise BadRequest(
                f"'tools[{index}].type': only tools that the caller runs can be declared here: leave it out.",
                field=f"tools[{index}].type",
                code="unsupported_parameter",
            )


def _objects(value: Any) -> Sequence[dict[str, Any]]:
    """The items of a list, what is no object taken for an empty one; none of anything else."""
    return [each if isinstance(each, dict) else {} for each in value] if isinstance(value, list) else ()
