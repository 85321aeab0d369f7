"""Telling a template's own text from the contents that went through it.

A template is rendered twice: as it is (the *direct* render, which is the truth) and with an unguessable mark before
and after each content. The marked render shows where contents lie; the direct one what they read there, since
templates may strip the edges of a content, which marks would hide. Laid over each other the two give pieces that add
up to the direct render exactly. Where they cannot be reconciled, nobody guesses: TemplateUnsupported.
Pure text: knows neither Jinja nor tokens.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from kvgrove_prompt.errors import TemplateUnsupported

_MARK = re.compile("([ae])([0-9]+)z")
"""What follows the sign of a mark."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a render: ``content`` is the number of the content it came from, None for the template's own text."""

    text: str
    content: int | None = None


class Marks:
    """The marks of one render. ``nonce``: unguessable lower-case letters and digits (case filters leave them alone)."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._sign = f"kv{nonce}"

    def wrap(self, number: int, text: str) -> str:
        return f"{self._sign}a{number}z{text}{self._sign}e{number}z"

    def split(self, marked: str) -> list[Piece]:
        """The pieces of a marked render; raises TemplateUnsupported if marks are lost, cut apart or out of order."""
        first, *others = marked.split(self._sign)
        pieces = [Piece(first)]
        open_number: int | None = None
        for each in others:
            mark = _MARK.match(each)
            if mark is None:
                raise _untraceable("it changes the letters of contents")
            number = int(mark[2])
            if (mark[1] == "a") is not (open_number is None) or (open_number not in (None, number)):
                raise _untraceable(f"it takes content {number if open_number is None else open_number} apart")
            open_number = number if mark[1] == "a" else None
            pieces.append(Piece(each[mark.end() :], open_number))
        if open_number is not None:
            raise _untraceable(f"it takes content {open_number} apart")
        if any(self._nonce in piece.text for piece in pieces):
            raise _untraceable("it changes the letters of contents")
        return pieces


def reconcile(marked: Sequence[Piece], direct: str) -> list[Piece]:
    """``marked`` with contents as they read in ``direct``: the texts add up to it exactly, empty pieces are left out.

    Raises TemplateUnsupported, naming the place, if the template's own text differs or a content reads otherwise than
    verbatim or stripped.
    """
    position = 0
    pieces: list[Piece] = []
    for index, piece in enumerate(marked):
        follow = marked[index + 1].text if index + 1 < len(marked) and marked[index + 1].content is None else ""
        for text in _readings(piece):
            if direct.startswith(text, position) and direct.startswith(follow, position + len(text)):
                break
        else:
            what = "its own text" if piece.content is None else f"content {piece.content}"
            raise _untraceable(f"{what} differs from character {position} on when contents are marked")
        if text:
            pieces.append(Piece(text, piece.content))
        position += len(text)
    if position != len(direct):
        raise _untraceable(f"its own text differs from character {position} on when contents are marked")
    return pieces


MAX_BLANKS = 64
"""At either edge of a content for which every way of stripping is looked for."""


def _readings(piece: Piece) -> Iterator[str]:
    """How ``piece`` may read in the direct render: a template may strip some or all blanks from a content's edges."""
    text = piece.text
    yield text
    if piece.content is None:
        return
    bare = text.strip()
    lead, trail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip()) if bare else 0
    if max(lead, trail) > MAX_BLANKS:
        yield from (text.lstrip(), text.rstrip(), bare)
        return
    for begin in range(lead + 1):
        for end in range(len(text), len(text) - trail - 1, -1):
            yield text[begin:end]


def _untraceable(problem: str) -> TemplateUnsupported:
    return TemplateUnsupported(
        f"the chat template changes contents in a way that cannot be traced: {problem}", field="chat_template"
    )
