"""An answer under way: pieces of text in order, then the account of what it cost.

Closing it, once and in every case, frees the node and counts the request. A stop string ends the answer here and
cancels the rest at the node.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kvgrove_gateway.account import Account, Mark
from kvgrove_gateway.answer_stream import AnswerStream, Reply
from kvgrove_gateway.errors import ApiError, Failed, NodeLost, NodeRefused, SlowClient, Unavailable
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.output import AnswerText, Piece
from kvgrove_gateway.route import Route
from kvgrove_gateway.tool_calls import Told, ToolReader
from kvgrove_prompt.assembly import ToolCall
from kvgrove_prompt.prompt import Prompt
from kvgrove_protocol.data import Done, Token, TokenLogprob, Usage
from kvgrove_protocol.reasons import MissReason

OK = "ok"
CLIENT_GONE = "client_gone"


@dataclass(frozen=True)
class Origin:
    """Where an answer comes from, and what its prompt met there."""

    namespace: str
    node: str
    tier: str
    """Tier of the reused blocks; empty where nothing was reused."""
    ttft_s: float
    prefill_tokens_per_s: float
    """Of the node, as it measured it; 0 where it has not yet."""
    prompt_tokens: int
    reused: int
    missed: dict[MissReason, int]
    route: Route | None
    """How it was routed, for a caller who may know."""
    marks: tuple[Mark, ...] = ()
    generation: str = ""
    """First 12 digits of the generation that answers."""
    sibling: bool = False
    """The prompt is another answer's, and on its account."""
    reasons: bool = True
    """Whether the caller is told why tokens were computed."""


@dataclass(frozen=True)
class LogprobText:
    """A token's log probability with texts instead of ids; ``logprob`` is None for a prompt's first token."""

    token: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class AnswerPiece:
    text: str
    logprobs: tuple[LogprobText, ...] = ()
    call: ToolCall | None = None
    """A whole call of a tool, in the place of text."""


@dataclass(frozen=True, repr=False)
class Scored:
    """A prompt and the log probabilities of its tokens from the second on. Has no ``repr`` (I12)."""

    prompt: Prompt
    logprobs: Sequence[TokenLogprob]


class Answer:
    """One answer. `pieces` is read once; `close` may be called any number of times."""

    def __init__(
        self,
        origin: Origin,
        first: Token | Done,
        stream: AnswerStream,
        text: AnswerText,
        tools: ToolReader | None,
        *,
        one_call: bool,
        scored: Scored | None,
        prompt_text: Callable[[], str],
        token_text: Callable[[int], str],
        release: Callable[[], None],
        ended: Callable[[str, Usage], None],
        metrics: Metrics,
    ) -> None:
        """``ended`` hears once how it ended (`OK`, `CLIENT_GONE` or an error's code) and what it cost."""
        self.origin = origin
        self.finish_reason = ""
        """``stop``, ``length`` or ``tool_calls`` once all pieces are read."""
        self._first = first
        self._stream = stream
        self._text = text
        self._tools = tools
        self._one_call = one_call
        self._calls = 0
        self._scored = scored
        self._prompt_text = prompt_text
        self._token_text = token_text
        self._release = release
        self._ended = ended
        self._metrics = metrics
        self._generated = 0
        self._usage: Usage | None = None
        self._outcome = CLIENT_GONE
        self._closed = False

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the answer."""
        return self._text.stopped_by

    @property
    def account(self) -> Account:
        """What the answer cost so far; final once all pieces are read."""
        origin = self.origin
        usage = self._usage or Usage(
            prompt=origin.prompt_tokens, reused=origin.reused, completion=self._generated, missed=origin.missed
        )
        if origin.sibling:
            usage = Usage(prompt=0, reused=0, completion=usage.completion, missed={})
        return Account(
            usage,
            origin.node,
            origin.tier,
            origin.ttft_s,
            origin.route,
            origin.marks,
            origin.generation,
            origin.reasons,
        )

    def prompt_logprobs(self) -> list[LogprobText]:
        """Of the prompt's own tokens, where they were asked for; else empty."""
        if self._scored is None:
            return []
        ids = self._scored.prompt.ids
        return [LogprobText(self._token_text(ids[0]), None), *self._with_texts(self._scored.logprobs)]

    def prompt_text(self) -> str:
        """The prompt as a raw prompt's caller wrote it; its tokens' text where they wrote tokens."""
        return self._prompt_text()

    async def pieces(self) -> AsyncIterator[AnswerPiece]:
        """Text as it becomes certain. Raises ApiError if the answer breaks off."""
        try:
            reply: Reply = self._first
            while not isinstance(reply, Done):
                if isinstance(reply, Token):
                    for piece in self._take(reply):
                        for told in self._told(piece):
                            yield told
                    if self._text.stopped or self._called_enough:
                        for told in self._rest():
                            yield told
                        self._end("stop")
                        return
                reply = await self._stream.next()
            for told in [*self._told(self._text.finish()), *self._rest()]:
                yield told
            self._usage = reply.usage
            self._end("stop" if self._text.stopped else reply.finish_reason)
        except (NodeLost, NodeRefused, SlowClient) as error:
            ending = _broken_off(error)
            self._outcome = ending.code
            if isinstance(error, SlowClient):
                self._metrics.slow_clients.inc()
            raise ending from None

    def close(self) -> None:
        """The caller is done with it or has gone: free the node, count the request."""
        if self._closed:
            return
        self._closed = True
        self._release()
        self._ended(self._outcome, self.account.usage)
        origin = self.origin
        if not origin.sibling:
            self._metrics.requests.labels(origin.namespace, self._outcome).inc()
        self._metrics.answered(origin.namespace, self.account.usage, origin.tier, origin.prefill_tokens_per_s)

    def _take(self, reply: Token) -> list[Piece]:
        pieces = []
        for token_id, logprob in zip_longest(reply.token_ids, reply.logprobs):
            self._generated += 1
            if piece := self._text.add(token_id, logprob):
                pieces.append(piece)
            if self._text.stopped:
                break
        return pieces

    @property
    def _called_enough(self) -> bool:
        return self._one_call and self._calls > 0

    def _told(self, piece: Piece) -> list[AnswerPiece]:
        """``piece`` as callers read it: its calls of tools told apart from its text."""
        logprobs = self._with_texts(piece.logprobs)
        if self._tools is None:
            return [AnswerPiece(piece.text, logprobs)] if piece else []
        told = self._pieces_of(self._tools.add(piece.text))
        return [AnswerPiece("", logprobs), *told] if logprobs else told

    def _rest(self) -> list[AnswerPiece]:
        """What was held back for the sake of a call, at the end."""
        return [] if self._tools is None else self._pieces_of(self._tools.finish())

    def _pieces_of(self, told: Sequence[Told]) -> list[AnswerPiece]:
        pieces = []
        for each in told:
            if self._called_enough:
                break
            self._calls += isinstance(each, ToolCall)
            pieces.append(AnswerPiece(each) if isinstance(each, str) else AnswerPiece("", call=each))
        return pieces

    def _with_texts(self, entries: Sequence[TokenLogprob]) -> tuple[LogprobText, ...]:
        ids = {each.token_id for each in entries} | {other for each in entries for other, _ in each.top}
        texts = {token_id: self._token_text(token_id) for token_id in ids}
        return tuple(
            LogprobText(
                texts[each.token_id], each.logprob, tuple((texts[token_id], logprob) for token_id, logprob in each.top)
            )
            for each in entries
        )

    def _end(self, finish_reason: str) -> None:
        self.finish_reason = "tool_calls" if self._calls and finish_reason == "stop" else finish_reason
        self._outcome = OK


def _broken_off(error: NodeLost | NodeRefused | SlowClient) -> ApiError:
    if isinstance(error, NodeLost):
        return Unavailable("The node was lost while it answered: send the request again.", code="node_lost")
    if isinstance(error, SlowClient):
        return Failed("The answer was not read fast enough.", code=error.code)
    return Failed("The node failed while it answered.", code="node_error")
