"""What cannot fit a model is refused before its tokens take memory."""

from __future__ import annotations

import json

import pytest
from prompt_fixtures import prompt_tokenizer

from kvgrove_gateway.fitting import PIECE_CHARS, TooLong, check_fits, texts_of
from kvgrove_prompt.assembly import Message, ToolCall
from kvgrove_prompt.tokenizer import PromptTokenizer

WORDS = "the cache of a prompt holds what many requests share and a question comes after it. "


class Watched(PromptTokenizer):
    """Notes the lengths of what it is asked to tokenise."""

    def __init__(self, inner: PromptTokenizer) -> None:
        self.__dict__.update(inner.__dict__)
        self.lengths: list[int] = []

    def encode_text(self, text: str) -> list[int]:
        self.lengths.append(len(text))
        return super().encode_text(text)


@pytest.fixture
def tokenizer() -> Watched:
    return Watched(prompt_tokenizer())


@pytest.mark.parametrize("text", [WORDS * 100_000, "x" * 8_000_000, "\u6f22" * 3_000_000])
def test_eight_megabytes_are_refused_after_a_little_of_them(tokenizer: Watched, text: str) -> None:
    with pytest.raises(TooLong) as caught:
        check_fits(tokenizer, [text], 8192, "messages")
    assert (caught.value.code, caught.value.field) == ("context_length_exceeded", "messages")
    assert max(tokenizer.lengths) <= PIECE_CHARS
    assert sum(tokenizer.lengths) <= 4 * PIECE_CHARS


def test_many_texts_count_together(tokenizer: Watched) -> None:
    with pytest.raises(TooLong):
        check_fits(tokenizer, [WORDS * 10] * 3000, 8192, "messages")


def test_calls_and_tools_count_too(tokenizer: Watched) -> None:
    call = ToolCall("f", json.dumps({"x": WORDS * 4000}))
    tool = {"type": "function", "function": {"name": "f", "description": WORDS * 4000}}
    for texts in (texts_of([Message("assistant", None, (call,))], []), texts_of([Message("user", "x")], [tool])):
        with pytest.raises(TooLong):
            check_fits(tokenizer, texts, 8192, "messages")


def test_what_would_fit_is_not_counted_beforehand(tokenizer: Watched) -> None:
    check_fits(tokenizer, [WORDS * 300], 8192, "messages")
    check_fits(tokenizer, [WORDS * 100_000], 0, "messages")
    assert tokenizer.lengths == []


def test_a_long_text_of_few_tokens_is_let_through(tokenizer: Watched) -> None:
    check_fits(tokenizer, [WORDS * 420], 8192, "messages")
    assert tokenizer.lengths
