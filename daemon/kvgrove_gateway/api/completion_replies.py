"""OpenAI's completion answers, plain and in chunks, with the log probabilities of their older form.

With ``echo`` an answer begins with its prompt: as it was sent where that is a text, decoded where it is token ids.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvgrove_gateway.answer import Answer, AnswerPiece, LogprobText
from kvgrove_gateway.answers import Answers
from kvgrove_gateway.api.openai_replies import END, event, finite, usage_body
from kvgrove_gateway.errors import ApiError


@dataclass
class _Offsets:
    """Where each token's text begins in its answer."""

    at: int = 0

    def logprobs(self, entries: Sequence[LogprobText]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self.at)
            self.at += len(entry.token)
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [None if entry.logprob is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [
                None if entry.logprob is None else {text: finite(logprob) for text, logprob in entry.top}
                for entry in entries
            ],
            "text_offset": offsets,
        }


@dataclass(frozen=True)
class CompletionReplies:
    """The bodies of one request's answers."""

    id: str
    created: int
    model: str
    include_usage: bool
    logprobs: bool
    echo: bool

    async def whole(self, answers: Answers) -> bytes:
        """All of it in one body. Raises ApiError if an answer breaks off."""
        found = [[piece] if (piece := self._echoed(answer)) is not None else [] for answer in answers.all]
        async for index, piece in answers.pieces():
            if piece is not None:
                found[index].append(piece)
        choices = [
            {
                "index": index,
                "text": "".join(piece.text for piece in pieces),
                "logprobs": _Offsets().logprobs([each for piece in pieces for each in piece.logprobs])
                if self.logprobs
                else None,
                "finish_reason": answers.all[index].finish_reason,
            }
            for index, pieces in enumerate(found)
        ]
        account = answers.account
        return msgspec.json.encode(self._head(choices) | {"usage": usage_body(account), "kvgrove": account.extension()})

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """Chunk by chunk; the last one of each choice has its reason of the end, then the usage, if asked for."""
        offsets = [_Offsets() for _ in answers.all]
        left = len(answers.all)
        for index, answer in enumerate(answers.all):
            if (echoed := self._echoed(answer)) is not None:
                yield self._chunk(index, echoed, offsets[index])
        try:
            async for index, piece in answers.pieces():
                if piece is not None:
                    yield self._chunk(index, piece, offsets[index])
                    continue
                left -= 1
                closing = not left and not self.include_usage
                extension = {"kvgrove": answers.account.extension()} if closing else {}
                reason = answers.all[index].finish_reason
                yield self._chunk(index, AnswerPiece(""), offsets[index], finish_reason=reason, more=extension)
        except ApiError as error:
            yield event(error.body())
            return
        if self.include_usage:
            account = answers.account
            yield event(self._head([]) | {"usage": usage_body(account), "kvgrove": account.extension()})
        yield END

    def _echoed(self, answer: Answer) -> AnswerPiece | None:
        if not self.echo:
            return None
        return AnswerPiece(answer.prompt_text(), tuple(answer.prompt_logprobs()))

    def _chunk(
        self,
        index: int,
        piece: AnswerPiece,
        offsets: _Offsets,
        *,
        finish_reason: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        logprobs = offsets.logprobs(piece.logprobs) if self.logprobs and piece.logprobs else None
        choice = {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": finish_reason}
        body = self._head([choice])
        if self.include_usage:
            body["usage"] = None
        return event(body | (more or {}))

    def _head(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
