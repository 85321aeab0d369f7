"""One request as the pipeline sees it, whatever dialect it came in.

A dialect's parser makes it, and nothing behind the parser looks at a body again. What a dialect cannot say is a default
here. Holds no identity: that comes from the credential alone (I2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvgrove_prompt.roles import ROLES, Message
from kvgrove_protocol.data import Sampling

CacheClass = Literal["5m", "1h"]


@dataclass(frozen=True, repr=False)
class ChatPrompt:
    """Messages, to be put through the model's chat template. Has no ``repr``: it holds prompt text (I12)."""

    messages: tuple[Message, ...]
    places: tuple[str, ...] = ()
    """Where in the body each message comes from, where that is not ``messages[i]``."""
    open_ended: bool = False
    """The answer continues the last message."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """As OpenAI writes them. An answer's calls are read where there are any."""
    one_call: bool = False
    """The answer ends with its first call of a tool."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Switches for the chat template."""


@dataclass(frozen=True, repr=False)
class RawPrompt:
    """A text or token ids as they are, past any template. Has no ``repr``: it holds prompt text (I12)."""

    content: str | tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Breakpoint:
    """Where a caller says that a prompt prefix ends that is worth keeping.

    ``origin``: the segment's, as `kvgrove_prompt.prompt.Segment` names it. ``text``: that segment's text up to here;
    None: all of it.
    """

    origin: str
    kept: CacheClass
    text: str | None = None


@dataclass(frozen=True, repr=False, kw_only=True)
class Ask:
    """What is asked for. ``limit``: tokens to generate at most, None for as many as fit."""

    model: str
    prompt: ChatPrompt | RawPrompt
    prompt_field: str
    """The field that holds the prompt, for whoever is told that it is too long."""
    limit: int | None
    limit_field: str
    sampling: Sampling
    stop: Sequence[str] = ()
    prompt_logprobs: int | None = None
    call_prefix: str = "call_"
    """What the ids of tool calls begin with."""
    breakpoints: Sequence[Breakpoint] = ()
    prefix: str | None = None
    documents: Sequence[str] = ()
    session: str | None = None
    reasons: bool | None = None
    """Whether the answer is to say why tokens were computed; None: as the gateway is set."""

    @property
    def said(self) -> list[tuple[str, str]]:
        """Role and text of each message, calls of tools included, in order; what has no roles is one of no role."""
        if isinstance(self.prompt, ChatPrompt):
            return [(ROLES.get(each.role, each.role), _text(each)) for each in self.prompt.messages]
        content = self.prompt.content
        return [("", content if isinstance(content, str) else " ".join(map(str, content)))]


def _text(message: Message) -> str:
    return "".join([message.text, *(f"{call.name}{call.arguments}" for call in message.tool_calls)])
