"""Anthropic's message request, as far as it has an effect here, and its cache breakpoints.

Closed like OpenAI's: what is accepted works, anything else is refused by name. ``metadata.user_id`` is carried by SDKs;
it is never identity (I2) and has no effect. A last message of the assistant is continued.

Breakpoints (``cache_control``) come in the order in which a prompt is laid out: tools, system, messages. At most four
of them, and none that lasts an hour behind one that lasts five minutes. They decide what is *reported* as written:
the cache itself is automatic. It finds the longest stored prefix however many blocks lie between it and a breakpoint,
so it never finds less than Anthropic's look-back of 20 blocks, and how long it keeps blocks is the namespace's to say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

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
from kvgrove_gateway.ask import Ask, Breakpoint, ChatPrompt
from kvgrove_prompt.assembly import Message
from kvgrove_protocol.data import Sampling

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "standard_only"),
    "thinking": ({"type": "disabled"},),
    "tools": ([],),
    "tool_choice": ({"type": "auto"}, {"type": "none"}),
}
UNSUPPORTED = frozenset({"container", "context_management", "mcp_servers", "output_config", "output_format"})

MAX_BREAKPOINTS = 4
BLOCKS = frozenset({"text"})


def _as_blocks(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise PydanticCustomError("content_type", "Input should be a string or a list of blocks")


class CacheControl(Strict):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class TextBlock(Strict):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


Blocks = Annotated[list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])]


class InputMessage(Strict):
    role: Literal["user", "assistant"]
    content: Blocks


class Metadata(Strict):
    user_id: str | None = Field(None, max_length=512)


class CountRequest(Strict):
    """What decides how many tokens a prompt has."""

    model: ModelName
    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Blocks = Field([])
    kvgrove: Extension = Extension()

    @model_validator(mode="after")
    def _breakpoints_fit(self) -> Self:
        classes = [each.kept for each in self.breakpoints()]
        if len(classes) > MAX_BREAKPOINTS:
            raise PydanticCustomError(
                "too_many", f"cache_control: at most {MAX_BREAKPOINTS} blocks may have one, leave some out"
            )
        if "5m" in classes and "1h" in classes[classes.index("5m") :]:
            raise PydanticCustomError(
                "ttl_order", "cache_control.ttl: one of '1h' must not come after one of '5m', put the longer ones first"
            )
        return self

    def breakpoints(self) -> list[Breakpoint]:
        """In the order of the prompt."""
        system = [("messages[0].content", self.system)] if self.system else []
        first = len(system)
        said = [(f"messages[{first + index}].content", each.content) for index, each in enumerate(self.messages)]
        return [found for origin, blocks in system + said for found in _in_blocks(origin, blocks)]

    def ask(self) -> Ask:
        """The prompt alone: nothing is to be generated."""
        system = [Message(role="system", content=_text(self.system))] if self.system else []
        said = [Message(role=each.role, content=_text(each.content)) for each in self.messages]
        return Ask(
            model=self.model,
            prompt=ChatPrompt((*system, *said), open_ended=self.messages[-1].role == "assistant"),
            prompt_field="messages",
            limit=0,
            limit_field="max_tokens",
            sampling=Sampling(),
            breakpoints=self.breakpoints(),
            prefix=self.kvgrove.prefix,
            documents=self.kvgrove.documents,
            session=self.kvgrove.session,
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
    refuse_other_parts(fields.get("system"), "system", BLOCKS)
    messages = fields.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            refuse_other_parts(message.get("content"), f"messages[{index}].content", BLOCKS)
    return fields


def _in_blocks(origin: str, blocks: Sequence[TextBlock]) -> Iterator[Breakpoint]:
    for position, block in enumerate(blocks, 1):
        if block.cache_control is not None:
            text = _text(blocks[:position]) if position < len(blocks) else None
            yield Breakpoint(origin, block.cache_control.ttl, text)


def _text(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)
