"""Templates that re-write what was said are named with the first token that differs (PRO-06)."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_fixtures import ALL_TEMPLATES, custom_tokenizer, prompt_tokenizer, write_tokenizer

from kvgrove_prompt.assembly import Message, PrefixBody, assemble
from kvgrove_prompt.bundle import pack
from kvgrove_prompt.continuity import template_warnings
from kvgrove_prompt.divergence import common_tokens, parting
from kvgrove_prompt.prompt import pack_tokens
from kvgrove_prompt.tokenizer import PromptTokenizer

REWRITING = {"mistral", "qwen-thinking", "mistral-tools", "phi"}
"""System text or tools that move to the last turn; thoughts that are left out later."""


@pytest.mark.parametrize("family", sorted(set(ALL_TEMPLATES) - REWRITING))
def test_pro_06_most_formats_only_append(family: str) -> None:
    assert template_warnings(prompt_tokenizer(family)) == []


def test_pro_06_thoughts_left_out_later_are_named() -> None:
    [warning] = template_warnings(prompt_tokenizer("qwen-thinking"))
    assert warning.code == "history_rewritten"
    assert warning.turn == 1
    assert warning.segment == "template"  # the think marker that stands no more
    assert f"reuse ends at token {warning.position} (template)" in warning.message
    tokenizer = prompt_tokenizer("qwen-thinking")
    closed = assemble(
        tokenizer,
        [Message("system", "Be kind."), Message("user", "question 0"), Message("assistant", "answer 0", reasoning="t")],
        add_generation_prompt=False,
    )
    assert closed.ids[warning.position] == tokenizer.encode_control("<think>")[0]


def test_pro_06_a_system_text_that_moves_is_named() -> None:
    warnings = template_warnings(prompt_tokenizer("mistral"))
    assert "history_rewritten" in {warning.code for warning in warnings}
    assert all(warning.segment in ("template", "messages[0].content", "messages[1].content") for warning in warnings)
    assert not any("kind" in warning.message for warning in warnings)


def test_pro_06_an_answer_that_reads_otherwise_as_history_is_named() -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    [warning] = [each for each in template_warnings(custom_tokenizer(source)) if each.code == "answer_rewritten"]
    assert (warning.turn, warning.segment) == (1, "template")


def test_a_model_without_a_template_has_no_warnings(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    (directory / "tokenizer_config.json").unlink()
    assert template_warnings(PromptTokenizer.from_bundle(pack(directory))) == []


def test_pro_09_the_first_segment_that_differs_is_named() -> None:
    tokenizer = prompt_tokenizer()
    chat = [
        Message("system", "Be kind."),
        Message("user", "one"),
        Message("assistant", "two"),
        Message("user", "three"),
    ]
    whole = assemble(tokenizer, chat, prefix=PrefixBody("p", "Declared."))
    assert parting(whole, whole) is None
    for index in range(len(chat)):
        changed = [*chat[:index], Message(chat[index].role, "other"), *chat[index + 1 :]]
        found = parting(whole, assemble(tokenizer, changed, prefix=PrefixBody("p", "Declared.")))
        assert found is not None
        assert found.left is not None
        assert found.left.message == index
    shorter = assemble(tokenizer, chat[:2], prefix=PrefixBody("p", "Declared."), add_generation_prompt=False)
    found = parting(shorter, whole)
    assert found is not None
    assert (found.position, found.left) == (shorter.count, None)
    assert found.right is not None


@pytest.mark.parametrize(
    ("left", "right", "common"), [([], [], 0), ([1], [], 0), ([1, 2, 3], [1, 2, 4], 2), ([5], [5, 6], 1)]
)
def test_common_tokens(left: list[int], right: list[int], common: int) -> None:
    assert common_tokens(pack_tokens(left), pack_tokens(right)) == common
