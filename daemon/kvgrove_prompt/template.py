"""A model's chat template: turns in, pieces of text out that say whose they are.

Only the model's own template is ever rendered, never one from a request. Rendering is deterministic but for the
clock (``strftime_now``), which is read once a render.
Knows roles and texts; documents, prefixes and tokens are the callers' business.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec

from kvgrove_prompt.errors import InvalidMessages, TemplateUnsupported
from kvgrove_prompt.sandbox import MAX_RENDERED_CHARS, TEMPLATE_ERRORS, Sandbox, TooMuchText
from kvgrove_prompt.seams import Marks, Piece, reconcile


def new_nonce() -> str:
    """128 random bits as lower-case hex."""
    return secrets.token_hex(16)


def local_now() -> datetime:
    return datetime.now(UTC).astimezone()


class Turn(msgspec.Struct, frozen=True):
    """One message as the template sees it: its content is ``parts`` joined."""

    role: str
    parts: tuple[str, ...]


class ChatTemplate:
    """A compiled chat template. Raises TemplateUnsupported if it does not compile."""

    def __init__(
        self,
        source: str,
        *,
        named_tokens: Mapping[str, str],
        nonce: Callable[[], str] = new_nonce,
        now: Callable[[], datetime] = local_now,
        max_chars: int = MAX_RENDERED_CHARS,
    ) -> None:
        self._sandbox = Sandbox(source, max_chars=max_chars)
        self._named_tokens = dict(named_tokens)
        self._nonce = nonce
        self._now = now

    def render(self, turns: Sequence[Turn], *, add_generation_prompt: bool = True) -> list[Piece]:
        """The prompt as pieces that add up to what the template renders; a piece's ``content`` numbers all parts of
        all turns, from 0. Contents may come in any order. Empty parts, and blank contents that the template treats
        apart, have no piece of their own.

        Raises InvalidMessages if the template refuses the turns, TemplateUnsupported if contents cannot be told from
        the template's text or one of them is left out.
        """
        now = self._now()
        direct = self._direct(_messages(turns), add_generation_prompt, now)
        # A blank content is marked if the template does not mind; many test whether a content is empty.
        blanks = any(part and not part.strip() for turn in turns for part in turn.parts)
        if blanks:
            try:
                return self._traced(turns, add_generation_prompt, now, direct, mark_blank=True)
            except TemplateUnsupported:
                pass  # the template treats blank contents apart: they become part of its own text
        return self._traced(turns, add_generation_prompt, now, direct, mark_blank=False)

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message's text comes out, and ahead of the first user message's."""
        try:
            pieces = self.render([Turn("system", ("a",)), Turn("user", ("b",))])
        except (InvalidMessages, TemplateUnsupported):
            return False
        return [piece.content for piece in pieces if piece.content is not None] == [0, 1]

    def _traced(
        self, turns: Sequence[Turn], add_generation_prompt: bool, now: datetime, direct: str, *, mark_blank: bool
    ) -> list[Piece]:
        marks = Marks(self._nonce())
        marked_turns: list[Turn] = []
        expected: dict[int, int] = {}
        number = 0
        for index, turn in enumerate(turns):
            parts: list[str] = []
            for part in turn.parts:
                if part.strip() or (part and mark_blank):
                    parts.append(marks.wrap(number, part))
                    expected[number] = index
                else:
                    parts.append(part)
                number += 1
            marked_turns.append(Turn(turn.role, tuple(parts)))
        try:
            marked = self._sandbox.render(self._variables(_messages(marked_turns), add_generation_prompt), now)
        except (*TEMPLATE_ERRORS, TooMuchText):
            raise TemplateUnsupported(
                "the chat template fails when contents are marked: it depends on how they begin or end",
                field="chat_template",
            ) from None
        pieces = marks.split(marked)
        lost = expected.keys() - {piece.content for piece in pieces}
        if lost:
            raise TemplateUnsupported(
                f"the chat template leaves out content of turn {expected[min(lost)]}", field="chat_template"
            )
        return reconcile(pieces, direct)

    def _direct(self, messages: list[dict[str, str]], add_generation_prompt: bool, now: datetime) -> str:
        try:
            return self._sandbox.render(self._variables(messages, add_generation_prompt), now)
        except TooMuchText:
            raise InvalidMessages("messages", "render to more text than any model takes") from None
        except TEMPLATE_ERRORS as error:
            raise InvalidMessages("messages", f"the model's chat template refuses them: {error}") from None

    def _variables(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> dict[str, Any]:
        return self._named_tokens | {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }


def _messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": "".join(turn.parts)} for turn in turns]
