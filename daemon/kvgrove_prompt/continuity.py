"""Whether a template only ever appends: render(n) is a prefix of render(n+1), so that a turn reuses all before it.

Some formats re-write earlier turns (thoughts that are shown once and left out later, system text that moves into the
last turn). Nothing is wrong then but reuse: it ends at the first token that differs, which is what a warning names
(PRO-06). Found out with a small conversation, once for each template.
"""

import msgspec

from kvgrove_prompt.assembly import assemble
from kvgrove_prompt.divergence import parting
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.prompt import Prompt
from kvgrove_prompt.roles import ASSISTANT, SYSTEM, USER, Message
from kvgrove_prompt.tokenizer import PromptTokenizer

TURNS = 5


class TemplateWarning(msgspec.Struct, frozen=True):
    """``code``: ``history_rewritten`` (an earlier turn reads otherwise) or ``answer_rewritten`` (an answer reads
    otherwise as history than right behind the prompt that asked for it).

    ``turn``: the number of user turns after which it shows. ``position``: the first token that differs. ``segment``:
    whose it is, as `prompt.Segment.origin` has it; empty behind the end. Holds no text.
    """

    code: str
    turn: int
    position: int
    segment: str

    @property
    def message(self) -> str:
        where = f"token {self.position}" + (f" ({self.segment})" if self.segment else "")
        what = "answers" if self.code == "answer_rewritten" else "earlier turns"
        return f"the chat template re-writes {what}: with {self.turn} turns, reuse ends at {where}"


def template_warnings(tokenizer: PromptTokenizer) -> list[TemplateWarning]:
    """At most one warning of each code, with the fewest turns that show it. None for a model without a template."""
    if tokenizer.template is None:
        return []
    found: dict[str, TemplateWarning] = {}
    for leading in ([Message(SYSTEM, "Be kind.")], []):
        for turns in range(1, TURNS):
            before, after = leading + _chat(turns), leading + _chat(turns + 1)
            asked = _assembled(tokenizer, before, open_for_answer=True)
            closed = _assembled(tokenizer, after[: len(before) + 1], open_for_answer=False)
            longer = _assembled(tokenizer, after, open_for_answer=True)
            for code, shorter, whole in (
                ("answer_rewritten", asked, closed),
                ("history_rewritten", closed, longer),
                ("history_rewritten", asked, longer),
            ):
                warning = _warning(code, turns, shorter, whole)
                if warning is not None:
                    found.setdefault(code, warning)
    return list(found.values())


def _chat(turns: int) -> list[Message]:
    """``turns`` user messages with answers between, thoughts included, as models give them."""
    said: list[Message] = []
    for number in range(turns):
        said.append(Message(USER, f"question {number}"))
        said.append(Message(ASSISTANT, f"answer {number}", reasoning=f"thought {number}"))
    return said[:-1]


def _assembled(tokenizer: PromptTokenizer, messages: list[Message], *, open_for_answer: bool) -> Prompt | None:
    """None for what the template does not take, or not yet: some show no system text until the next question."""
    try:
        return assemble(tokenizer, messages, add_generation_prompt=open_for_answer)
    except (InvalidMessages, TemplateUnsupported):
        return None


def _warning(code: str, turns: int, shorter: Prompt | None, whole: Prompt | None) -> TemplateWarning | None:
    if shorter is None or whole is None:
        return None
    part = parting(shorter, whole)
    if part is None or part.left is None:
        return None  # equal, or the shorter one is a prefix
    return TemplateWarning(code, turns, part.position, part.left.origin)
