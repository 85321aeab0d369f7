"""Tokens of an answer -> text to send, with stop strings found and nothing sent that a stop string would take back.

Text is held back only while it may be the beginning of a stop string, or half of a character. A token's log probability
leaves together with the last of its text, so that both agree in every chunk.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvgrove_protocol.data import TokenLogprob


@dataclass(frozen=True)
class Piece:
    """What may be sent now."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs)


class AnswerText:
    """One answer's text as it grows."""

    def __init__(
        self, push: Callable[[int], str], flush: Callable[[], str], *, stop: Sequence[str], skip: frozenset[int]
    ) -> None:
        """``push``/``flush``: the incremental decoder. ``skip``: tokens that end an answer and have no text."""
        self._push, self._flush = push, flush
        self._stop = tuple(stop)
        self._longest = max((len(each) for each in self._stop), default=0)
        self._skip = skip
        self._held = ""
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # (position in text where it ends, entry)
        self._released = 0
        self.stopped_by: str | None = None
        """The stop string that was met: what follows is not part of the answer."""

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def add(self, token_id: int, logprob: TokenLogprob | None = None) -> Piece:
        """Take one token; returns what may be sent now. Tokens after a met stop string are ignored."""
        if self.stopped or token_id in self._skip:
            return Piece("")
        text = self._push(token_id)
        if logprob is not None:
            # A token that is half a character leaves with the character's end: hence at least one position further.
            self._waiting.append((self._released + len(self._held) + max(len(text), 1), logprob))
        return self._advance(text)

    def finish(self) -> Piece:
        """The rest, once no token follows."""
        if self.stopped:
            return Piece("")
        piece = self._advance(self._flush())
        if self.stopped:
            return piece
        rest = self._release(len(self._held), everything=True)
        return Piece(piece.text + rest.text, piece.logprobs + rest.logprobs)

    def _advance(self, text: str) -> Piece:
        self._held += text
        cuts = [(found, each) for each in self._stop if (found := self._held.find(each)) >= 0]
        if cuts:
            cut, self.stopped_by = min(cuts, key=lambda found: found[0])
            return self._release(cut)
        return self._release(len(self._held) - self._possible_stop())

    def _possible_stop(self) -> int:
        """Length of the longest tail that a stop string begins with."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(each.startswith(tail) for each in self._stop):
                return length
        return 0

    def _release(self, count: int, *, everything: bool = False) -> Piece:
        text, self._held = self._held[:count], self._held[count:]
        self._released += len(text)
        logprobs: list[TokenLogprob] = []
        while self._waiting and (everything or self._waiting[0][0] <= self._released):
            logprobs.append(self._waiting.popleft()[1])
        return Piece(text, tuple(logprobs))
