"""One render of one conversation: the template's text in pieces that say whose they are. Pure; plain data in and out.

Contents are traced as `seams` describes. Where a template looks into contents, fewer of them are marked: first blank
ones are left alone (many templates ask whether a content is empty), then identifiers (some check the length of a call's
id). An identifier that could be part of a control marker is never left alone.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from kvgrove_prompt.conversation import Conversation, Words, view
from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.sandbox import TEMPLATE_ERRORS, Sandbox, TooMuchText
from kvgrove_prompt.seams import Marks, Piece, reconcile

_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Job(msgspec.Struct, frozen=True):
    """What is to be rendered, and everything that may decide how.

    ``nonce``: unguessable lower-case letters and digits. ``now``: what the template's clock says, as ISO 8601.
    ``traced``: False gives the bare text in one piece.
    """

    conversation: Conversation
    nonce: str
    now: str
    named_tokens: dict[str, str] = {}
    markers: list[str] = []
    """Control markers of the tokenizer."""
    traced: bool = True


def render(sandbox: Sandbox, job: Job) -> list[Piece]:
    """Pieces that add up to what the template renders; a piece's ``content`` is the number of a text (see `view`).

    Contents may come in any order. Empty ones, and those that had to be left unmarked, have no piece of their own.
    Raises InvalidMessages if the template refuses the conversation, TemplateUnsupported if texts cannot be told from
    the template's own or one that is required is left out.
    """
    words: list[Words] = []
    direct = _direct(sandbox, job, words)
    if not job.traced:
        return [Piece(direct)]
    blank = {number for number, each in enumerate(words) if each.text and not each.text.strip()}
    plain = {number for number, each in enumerate(words) if each.plain and _is_plain(each.text, job.markers)}
    left_alone: list[set[int]] = [set()]
    for more in (blank, plain):
        if more:
            left_alone.append(left_alone[-1] | more)
    for number, unmarked in enumerate(left_alone):
        try:
            return _traced(sandbox, job, words, unmarked, direct)
        except TemplateUnsupported:
            if number == len(left_alone) - 1:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _traced(sandbox: Sandbox, job: Job, words: Sequence[Words], unmarked: set[int], direct: str) -> list[Piece]:
    marks = Marks(job.nonce)
    marked_numbers = {number for number, each in enumerate(words) if each.text and number not in unmarked}
    numbers = iter(range(len(words)))

    def mark(each: Words) -> str:
        number = next(numbers)
        return marks.wrap(number, each.text) if number in marked_numbers else each.text

    try:
        marked = sandbox.render(_variables(job, view(job.conversation, mark)), _clock(job))
    except (*TEMPLATE_ERRORS, TooMuchText):
        raise TemplateUnsupported(
            "the chat template fails when contents are marked: it depends on how they begin or end",
            field="chat_template",
        ) from None
    pieces = marks.split(marked)
    seen = {piece.content for piece in pieces}
    for number in sorted(marked_numbers - seen):
        if words[number].required:
            raise TemplateUnsupported(f"the chat template leaves out {words[number].place}", field="chat_template")
    tools = {words[number].place for number in marked_numbers if words[number].place.startswith("tools")}
    for lost in sorted(tools - {words[number].place for number in seen if number is not None}):
        raise TemplateUnsupported(f"the chat template leaves out {lost}", field="chat_template")
    return reconcile(pieces, direct)


def _direct(sandbox: Sandbox, job: Job, words: list[Words]) -> str:
    """What the template renders of the texts as they are; adds them to ``words``, by number."""
    viewed = view(job.conversation, lambda each: _listed(words, each))
    try:
        return sandbox.render(_variables(job, viewed), _clock(job))
    except TooMuchText:
        raise InvalidMessages("messages", "render to more text than any model takes") from None
    except TEMPLATE_ERRORS as error:
        raise InvalidMessages("messages", f"the model's chat template refuses them: {error}") from None


def _variables(job: Job, viewed: dict[str, Any]) -> dict[str, Any]:
    return {**viewed, **job.named_tokens}


def _clock(job: Job) -> datetime:
    return datetime.fromisoformat(job.now)


def _listed(words: list[Words], each: Words) -> str:
    words.append(each)
    return each.text


def _is_plain(text: str, markers: Sequence[str]) -> bool:
    """Whether no marker can come about where ``text`` stands, whatever stands beside it."""
    return _IDENTIFIER.fullmatch(text) is not None and not any(_touches(text, marker) for marker in markers)


def _touches(text: str, marker: str) -> bool:
    if text in marker or marker in text:
        return True
    return any(
        marker.startswith(text[-length:]) or marker.endswith(text[:length])
        for length in range(1, min(len(text), len(marker)))
    )
