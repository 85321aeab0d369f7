"""What a chat template takes: system text, two turns of one speaker in a row, tools, thinking. One policy per template.

A template may declare its policy in a comment, which is part of its text and so of its digest and the generation:

    {#- kvgrove: system=fold consecutive=merge alias.narrator=assistant -#}

What it does not declare is found out by rendering small conversations, which gives the same answer in every process.
Where a conversation does not fit, the policy says what happens, and nothing is guessed (PRO-04).
"""

import re
from enum import StrEnum
from typing import Protocol

import msgspec

from kvgrove_prompt.conversation import Conversation, Turn
from kvgrove_prompt.errors import InvalidMessages, TemplateTooSlow, TemplateUnsupported
from kvgrove_prompt.roles import ASSISTANT, ROLES, SYSTEM, TOOL, USER, SystemRole, ToolCall
from kvgrove_prompt.seams import Piece
from kvgrove_prompt.toolset import canonical


class Consecutive(StrEnum):
    """Two turns of the same speaker in a row. Tools' results are never joined with anything."""

    KEEP = "keep"
    """As two turns; a template that refuses them refuses the request."""
    MERGE = "merge"
    """As one turn, their texts a blank line apart."""
    REFUSE = "refuse"


class Thinking(StrEnum):
    """What becomes of thoughts in earlier replies."""

    APART = "apart"
    """The template takes them apart from the reply, and decides itself which of them to show."""
    DROPPED = "dropped"
    """The template shows the reply alone."""
    KEPT = "kept"
    """They are ordinary words of the reply."""


class RolePolicy(msgspec.Struct, frozen=True):
    system: SystemRole = SystemRole.NATIVE
    consecutive: Consecutive = Consecutive.KEEP
    tools: bool = False
    """Whether declared tools are shown to the model."""
    calls: bool = False
    """Whether replies may call tools, and results come back."""
    parsed_arguments: bool = False
    """Whether the template wants arguments as objects; otherwise their text stays as it is."""
    thinking: Thinking = Thinking.KEPT
    aliases: dict[str, str] = msgspec.field(default_factory=lambda: dict(ROLES))


class Rendering(Protocol):
    """What is asked of a template here."""

    def render(self, conversation: Conversation) -> list[Piece]: ...

    def render_bare(self, conversation: Conversation) -> str: ...


_DECLARATION = re.compile(r"\{#-?\s*kvgrove:\s*(?P<entries>[^#]*?)\s*-?#\}")

_PROBE_TOOL = canonical(
    [
        {
            "type": "function",
            "function": {
                "name": "probe",
                "description": "none",
                "parameters": {"type": "object", "properties": {"k": {"type": "string", "description": "key"}}},
            },
        }
    ]
)
_PROBE_ARGUMENTS = '{"k":  "v"}'
"""Two blanks: re-serialised, the text would be another."""
_PROBE_ID = "probe0001"
"""Some formats want nine letters and digits."""


def policy_of(template: Rendering, source: str) -> RolePolicy:
    """Declared in ``source``, else found out; raises TemplateUnsupported for a declaration that is not understood, and
    TemplateTooSlow for a template that hangs."""
    policy = RolePolicy(
        system=SystemRole.NATIVE if _takes_system(template) else SystemRole.FOLD,
        consecutive=Consecutive.KEEP if _takes_two_in_a_row(template) else Consecutive.MERGE,
        tools=_contents(template, Conversation([Turn(USER, ("a",))], tools=_PROBE_TOOL)) is not None,
        thinking=_thinking(template),
    )
    for parsed in (False, True):
        if _takes_calls(template, parsed=parsed):
            policy = msgspec.structs.replace(policy, calls=True, parsed_arguments=parsed)
            break
    return _declared(source, policy)


def _declared(source: str, policy: RolePolicy) -> RolePolicy:
    found = _DECLARATION.search(source)
    for entry in found["entries"].split() if found else ():
        name, separator, value = entry.partition("=")
        try:
            if name == "system" and separator:
                policy = msgspec.structs.replace(policy, system=SystemRole(value))
            elif name == "consecutive" and separator:
                policy = msgspec.structs.replace(policy, consecutive=Consecutive(value))
            elif name.startswith("alias.") and value in (SYSTEM, USER, ASSISTANT, TOOL):
                aliases = policy.aliases | {name.removeprefix("alias."): value}
                policy = msgspec.structs.replace(policy, aliases=aliases)
            else:
                raise ValueError(entry)
        except ValueError:
            raise TemplateUnsupported(
                f"the chat template declares '{entry[:64]}': use system=native|fold|refuse, "
                "consecutive=keep|merge|refuse or alias.<role>=system|user|assistant|tool",
                field="chat_template",
            ) from None
    return policy


def _contents(template: Rendering, conversation: Conversation) -> list[Piece] | None:
    """The pieces of a probe that are contents; None if the template does not take it. Raises TemplateTooSlow."""
    try:
        return [piece for piece in template.render(conversation) if piece.content is not None]
    except TemplateTooSlow:
        raise  # says nothing of what the template takes
    except (InvalidMessages, TemplateUnsupported):
        return None


def _takes_system(template: Rendering) -> bool:
    """Whether a system message's text comes out, and ahead of the first user message's."""
    pieces = _contents(template, Conversation([Turn(SYSTEM, ("a",)), Turn(USER, ("b",))]))
    return pieces is not None and [piece.content for piece in pieces] == [0, 1]


def _takes_two_in_a_row(template: Rendering) -> bool:
    return _contents(template, Conversation([Turn(USER, ("a",)), Turn(USER, ("b",))])) is not None


def _takes_calls(template: Rendering, *, parsed: bool) -> bool:
    turns = [
        Turn(USER, ("a",)),
        Turn(ASSISTANT, ("",), tool_calls=(ToolCall("probe", _PROBE_ARGUMENTS, _PROBE_ID),)),
        Turn(TOOL, ("b",), tool_call_id=_PROBE_ID, name="probe"),
    ]
    pieces = _contents(template, Conversation(turns, tools=_PROBE_TOOL, parsed_arguments=parsed))
    if pieces is None:
        pieces = _contents(template, Conversation(turns, parsed_arguments=parsed))
    if pieces is None:
        return False
    texts = [piece.text for piece in pieces]
    return {"k", "v"} <= set(texts) if parsed else _PROBE_ARGUMENTS in texts


def _thinking(template: Rendering) -> Thinking:
    apart = Conversation(
        [Turn(USER, ("a",)), Turn(ASSISTANT, ("c",), reasoning="b")], add_generation_prompt=False
    )  # fmt: skip
    pieces = _contents(template, apart)
    if pieces is not None and "b" in [piece.text for piece in pieces]:
        return Thinking.APART
    within = Conversation([Turn(USER, ("a",)), Turn(ASSISTANT, ("<think>0</think>1",))], add_generation_prompt=False)
    try:
        shown = template.render_bare(within)
    except TemplateTooSlow:
        raise
    except (InvalidMessages, TemplateUnsupported):
        return Thinking.KEPT
    return Thinking.DROPPED if "0</think>" not in shown else Thinking.KEPT
