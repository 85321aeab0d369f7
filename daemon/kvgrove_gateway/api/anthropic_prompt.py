"""Anthropic's tools, system text and messages -> the conversation that templates know, with its cache breakpoints.

One of Anthropic's messages may become several: each tool's result is a message of its own, ahead of the user's words.
``places`` says where in the body each came from, so that an error names a field that is there. Pure.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvgrove_gateway.ask import Breakpoint, ChatPrompt
from kvgrove_prompt.assembly import Message, ToolCall

if TYPE_CHECKING:
    from kvgrove_gateway.api.anthropic import (
        CountRequest,
        InputMessage,
        TextBlock,
        ToolDefinition,
        ToolResultBlock,
        ToolUseBlock,
    )

ERROR = "Error: "
"""Ahead of a tool's result that is an error."""


def lay_out(request: "CountRequest") -> tuple[ChatPrompt, list[Breakpoint]]:
    """The prompt and its breakpoints, in its order: tools, system, messages."""
    laid = _Laid()
    told = request.tools if request.tool_choice.type == "auto" else []  # without a choice the model knows of none
    for index, tool in enumerate(told):
        if tool.cache_control is not None:
            laid.breakpoints.append(Breakpoint(f"tools[{index}]", tool.cache_control.ttl))
    if request.system:
        laid.say("system", request.system, "system")
    for index, message in enumerate(request.messages):
        laid.take(message, f"messages[{index}]")
    if request.cache_control is not None:
        laid.breakpoints.append(Breakpoint(laid.last_origin, request.cache_control.ttl))
    prompt = ChatPrompt(
        tuple(laid.messages),
        places=tuple(laid.places),
        open_ended=request.messages[-1].role == "assistant",
        tools=tuple(_tool(each) for each in told),
        one_call=request.tool_choice.disable_parallel_tool_use,
    )
    return prompt, laid.breakpoints


class _Laid:
    """The conversation as it grows."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: list[str] = []
        self.breakpoints: list[Breakpoint] = []
        self._names: dict[str, str] = {}
        """Of tools, by the id of the call."""

    @property
    def last_origin(self) -> str:
        last = len(self.messages) - 1
        calls = self.messages[last].tool_calls
        return f"messages[{last}].tool_calls[{len(calls) - 1}]" if calls else f"messages[{last}].content"

    def take(self, message: "InputMessage", place: str) -> None:
        texts: list[TextBlock] = []
        calls: list[ToolUseBlock] = []
        for block in message.content:
            match block.type:
                case "text":
                    texts.append(block)
                case "tool_use":
                    calls.append(block)
                    self._names[block.id] = block.name
                case "tool_result":
                    self._result(block, place)
        if texts or calls or not message.content:
            self.say(message.role, texts, place, calls)

    def say(self, role: str, texts: Sequence["TextBlock"], place: str, calls: Sequence["ToolUseBlock"] = ()) -> None:
        origin = f"messages[{len(self.messages)}]"
        self.breakpoints += _in_texts(f"{origin}.content", texts)
        for number, call in enumerate(calls):
            if call.cache_control is not None:
                self.breakpoints.append(Breakpoint(f"{origin}.tool_calls[{number}]", call.cache_control.ttl))
        self._add(
            place,
            Message(
                role=role,
                content=None if calls and not texts else tuple(each.text for each in texts),
                tool_calls=tuple(
                    ToolCall(name=call.name, arguments=json.dumps(call.input, ensure_ascii=False), id=call.id)
                    for call in calls
                ),
            ),
        )

    def _result(self, block: "ToolResultBlock", place: str) -> None:
        origin = f"messages[{len(self.messages)}].content"
        self.breakpoints += _in_texts(origin, block.content)
        if block.cache_control is not None:
            self.breakpoints.append(Breakpoint(origin, block.cache_control.ttl))
        texts = [each.text for each in block.content]
        if block.is_error:
            texts = [ERROR + "\n".join(texts)]
        name = self._names.get(block.tool_use_id, "")
        self._add(place, Message(role="tool", content=tuple(texts), tool_call_id=block.tool_use_id, name=name))

    def _add(self, place: str, message: Message) -> None:
        self.messages.append(message)
        self.places.append(place)


def _in_texts(origin: str, blocks: Sequence["TextBlock"]) -> Iterator[Breakpoint]:
    for position, block in enumerate(blocks, 1):
        if block.cache_control is not None:
            before = "\n".join(each.text for each in blocks[:position])
            yield Breakpoint(origin, block.cache_control.ttl, before if position < len(blocks) else None)


def _tool(tool: "ToolDefinition") -> Mapping[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}
