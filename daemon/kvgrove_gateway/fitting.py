"""Refuses texts that cannot fit a model before their tokens take memory.

A tokeniser keeps some 400 bytes for each token of a text while it works: without this, one body of 8 MiB would cost a
gateway more than a gigabyte to learn that no model takes it. Such a text is counted piece by piece first, and no
further than to the model's length. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvgrove_prompt.assembly import Message
from kvgrove_prompt.errors import InvalidMessages
from kvgrove_prompt.tokenizer import PromptTokenizer

BYTES_A_TOKEN = 4
"""What a token stands for in most texts. Those that would fit by this are not counted beforehand."""
PIECE_CHARS = 1 << 16
SLACK_TOKENS = 16
"""A piece counts so much less than it has: a cut may make tokens that the whole text has not."""


def texts_of(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a caller's messages and tools put into a prompt, about as a template writes it."""
    said = [text for each in messages for text in (each.text, each.reasoning, *(c.arguments for c in each.tool_calls))]
    return [*said, *(json.dumps(tool, ensure_ascii=False) for tool in tools)]


class TooLong(InvalidMessages):
    """The text has more tokens than the model takes."""

    code = "context_length_exceeded"


def check_fits(tokenizer: PromptTokenizer, texts: Sequence[str], max_model_len: int, field: str) -> None:
    """Raises TooLong for texts that surely do not fit together; ``max_model_len`` 0: not known, anything may fit."""
    if not max_model_len or sum(len(text) for text in texts) <= BYTES_A_TOKEN * max_model_len:
        return
    counted = 0
    for text in texts:
        for start in range(0, len(text), PIECE_CHARS):
            counted += len(tokenizer.encode_text(text[start : start + PIECE_CHARS])) - SLACK_TOKENS
            if counted > max_model_len:
                raise TooLong(
                    field, f"has more than the {max_model_len} tokens that this model takes: shorten the {field}"
                )
