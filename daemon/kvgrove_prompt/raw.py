"""A raw prompt: a text or token ids as they are, past any template, and all of it the caller's own.

Control markers in the text become control tokens, which a prompt that somebody has rendered needs: nobody else's words
are in it, and all of it is private. Exactly one BOS where the tokenizer knows one, also if the text brings it (PRO-01).
"""

from collections.abc import Sequence

from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.prompt import Prompt, Segment, pack_tokens
from kvgrove_prompt.tokenizer import PromptTokenizer
from kvgrove_protocol.chain import Span, SpanKind

ORIGIN = "prompt"


def raw_prompt(tokenizer: PromptTokenizer, content: str | Sequence[int]) -> Prompt:
    """The tokens of ``content``; raises InvalidMessages for ids the model has not, and for a text without tokens."""
    if isinstance(content, str):
        ids = tokenizer.encode_control(content, start=True)
        leading = list(tokenizer.leading_ids)
        if ids[: len(leading)] != leading:
            ids = leading + ids
    else:
        ids = list(content)
        if any(not 0 <= each < tokenizer.vocab_size for each in ids):
            raise InvalidMessages("prompt", f"holds a token id that is not below {tokenizer.vocab_size}")
    if not ids:
        raise InvalidMessages("prompt", "must hold at least one token")
    return Prompt(
        pack_tokens(ids),
        [Span(SpanKind.PRIVATE, 0, len(ids))],
        [Segment(ORIGIN, SpanKind.PRIVATE, 0, len(ids))],
    )
