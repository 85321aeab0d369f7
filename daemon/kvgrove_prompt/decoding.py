"""Text out of a stream of tokens: whole characters only, as soon as they are whole."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"

MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes, hence at most 4 tokens. What is still not whole after 8 never will be."""


class StreamDecoder:
    """Turns tokens into text piece by piece; the pieces add up to the text of the whole (where that is valid UTF-8).

    Some bytes of a character may come in one token and the rest in the next: such tokens are held back. A token's text
    may depend on the one before (byte fall-back, word starts), so the tokens of the last piece are decoded along as
    context. Memory and work per token are bounded by the two together. Not for use by several tasks at once.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """The text that became whole by ``ids``; may be empty."""
        return "".join(self._push_one(token_id) for token_id in ids)

    def flush(self) -> str:
        """The rest: a cut character reads as U+FFFD. The decoder is as new afterwards."""
        text = self._new_text() if self._held else ""
        self._context, self._held = [], []
        return text

    def _push_one(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._new_text()
        whole = text != "" and not text.endswith(REPLACEMENT)
        if not whole and len(self._held) < MAX_HELD_TOKENS:
            return ""
        self._context, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        before = self._decode(self._context) if self._context else ""
        return self._decode(self._context + self._held)[len(before) :]
