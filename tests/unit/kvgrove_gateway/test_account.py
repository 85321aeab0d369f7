"""The published identities, for a thousand random splits (API-04), and where breakpoints lie."""

from __future__ import annotations

import random

import pytest
from prompt_fixtures import prompt_tokenizer

from kvgrove_gateway.account import NOT_STORED, Account, Mark, together, written
from kvgrove_gateway.api import anthropic_replies, openai_replies
from kvgrove_gateway.ask import Breakpoint
from kvgrove_gateway.breakpoints import marks
from kvgrove_prompt.assembly import Message, assemble
from kvgrove_protocol.data import Usage
from kvgrove_protocol.reasons import MissReason

PRICES = {"input": 3.0, "short": 3.75, "long": 6.0, "read": 0.3, "output": 15.0}


def random_account(draw: random.Random) -> Account:
    prompt = draw.randint(1, 5000)
    reused = draw.randint(0, (prompt - 1) // 32) * 32
    missed = {MissReason.NEW: prompt - reused}
    ends = sorted(draw.randint(0, prompt // 32) * 32 for _ in range(draw.randint(0, 4)))
    hours = draw.randint(0, len(ends))
    made = tuple(Mark(end, "1h" if number < hours else "5m") for number, end in enumerate(ends))
    usage = Usage(prompt=prompt, reused=reused, completion=draw.randint(0, 99), missed=missed)
    return Account(usage, "n", "", 0.1, marks=made)


def cost_of_tokens(account: Account) -> float:
    """Token by token, by the rule as it is published: read, else written for the longest that covers it, else plain."""
    usage, cost = account.usage, account.usage.completion * PRICES["output"]
    hour = max((mark.tokens for mark in account.marks if mark.kept == "1h"), default=0)
    short = max((mark.tokens for mark in account.marks), default=0)
    for token in range(usage.prompt):
        kind = "read" if token < usage.reused else "long" if token < hour else "short" if token < short else "input"
        cost += PRICES[kind]
    return cost


def test_api_04_the_identities_hold_and_the_cost_is_that_of_the_tokens() -> None:
    draw = random.Random(4)
    for _ in range(1000):
        account = random_account(draw)
        usage = account.usage
        told = anthropic_replies.usage_body(account)
        kept = told["cache_creation"]
        total = told["input_tokens"] + told["cache_creation_input_tokens"] + told["cache_read_input_tokens"]
        assert total == usage.prompt
        assert sum(kept.values()) == told["cache_creation_input_tokens"]
        assert min(*kept.values(), told["input_tokens"]) >= 0
        cost = (
            told["input_tokens"] * PRICES["input"]
            + kept["ephemeral_5m_input_tokens"] * PRICES["short"]
            + kept["ephemeral_1h_input_tokens"] * PRICES["long"]
            + told["cache_read_input_tokens"] * PRICES["read"]
            + told["output_tokens"] * PRICES["output"]
        )
        assert cost == pytest.approx(cost_of_tokens(account))
        openai = openai_replies.usage_body(account)
        assert openai["prompt_tokens"] == total
        assert openai["prompt_tokens_details"]["cached_tokens"] == told["cache_read_input_tokens"]
        assert openai["total_tokens"] == total + told["output_tokens"]


@pytest.mark.parametrize("reason", sorted(NOT_STORED))
def test_nothing_is_written_where_nothing_was_kept(reason: MissReason) -> None:
    usage = Usage(prompt=100, reused=0, completion=1, missed={reason: 100})
    assert written(usage, [Mark(64, "5m")]).total == 0


def test_several_answers_add_up() -> None:
    draw = random.Random(5)
    accounts = [random_account(draw) for _ in range(5)]
    total = together(accounts).usage
    assert total.prompt == sum(each.usage.prompt for each in accounts)
    assert total.reused + sum(total.missed.values()) == total.prompt


def test_marks_are_whole_blocks_of_prefixes_that_are_long_enough() -> None:
    tokenizer = prompt_tokenizer()
    words = "the cache of a prompt holds what many requests share "
    messages = [Message("system", words * 20), Message("user", (words * 5, words * 30))]
    prompt = assemble(tokenizer, messages)
    ends = {each.origin: each.end for each in prompt.segments}
    points = [
        Breakpoint("messages[0].content", "1h"),
        Breakpoint("messages[1].content", "5m", words * 5),
        Breakpoint("messages[1].content", "5m"),
        Breakpoint("tools[0]", "5m"),
    ]
    found = marks(points, prompt, tokenizer, block_size=16, minimum=0)
    assert [mark.kept for mark in found] == ["1h", "5m", "5m"]  # there is no tool
    assert all(mark.tokens % 16 == 0 for mark in found)
    assert found[0].tokens == ends["messages[0].content"] // 16 * 16
    assert found[0].tokens < found[1].tokens < found[2].tokens <= prompt.count
    assert len(marks(points, prompt, tokenizer, block_size=16, minimum=found[2].tokens)) == 1
