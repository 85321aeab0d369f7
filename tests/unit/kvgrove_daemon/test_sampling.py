"""From logits to tokens."""

from __future__ import annotations

import math

import pytest
import torch

from kvgrove_daemon.engine.sampling import Choice, Sampler, choose, of_prompt
from kvgrove_protocol.data import Sampling

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def draw(settings: Sampling, times: int, entropy: int = 1) -> list[int]:
    sampler = Sampler(settings, entropy)
    choices = [choose(LOGITS[None], [sampler])[0] for _ in range(times)]
    return [choice.token_id for choice in choices if choice is not None]


def test_temperature_0_is_the_best_token_whatever_the_seed() -> None:
    assert set(draw(Sampling(temperature=0.0, top_p=0.1, seed=9), 20)) == {0}


def test_the_distribution_is_the_model_s_at_temperature_1() -> None:
    drawn = draw(Sampling(seed=4), 4000)
    for token, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert drawn.count(token) / 4000 == pytest.approx(probability, abs=0.03)


def test_temperature_flattens() -> None:
    assert draw(Sampling(temperature=5.0, seed=4), 1000).count(3) > draw(Sampling(seed=4), 1000).count(3) * 2


@pytest.mark.parametrize(
    ("top_p", "tokens"), [(0.4, {0}), (0.5, {0}), (0.51, {0, 1}), (0.9, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, tokens: set[int]) -> None:
    assert set(draw(Sampling(top_p=top_p, seed=4), 600)) == tokens


def test_a_seed_repeats_and_entropy_stands_in_for_one() -> None:
    settings = Sampling(seed=-7)
    assert draw(settings, 20, entropy=1) == draw(settings, 20, entropy=2)
    assert draw(Sampling(), 20, entropy=1) == draw(Sampling(), 20, entropy=1)
    assert draw(Sampling(), 20, entropy=1) != draw(Sampling(), 20, entropy=2)


def test_log_probabilities_are_the_model_s_own() -> None:
    settings = Sampling(temperature=3.0, top_p=0.1, top_logprobs=2, seed=1)
    (choice,) = choose(LOGITS[None], [Sampler(settings, 0)])
    assert choice is not None
    assert choice.logprob is not None
    assert choice.logprob.token_id == choice.token_id == 0
    assert choice.logprob.logprob == pytest.approx(math.log(0.5))
    assert [token for token, _ in choice.logprob.top] == [0, 1]
    assert [value for _, value in choice.logprob.top] == pytest.approx([math.log(0.5), math.log(0.3)])


def test_rows_are_judged_one_by_one() -> None:
    rows = LOGITS.repeat(5, 1)
    rows[1, 2] = float("nan")
    rows[2, 0] = float("inf")
    rows[3, 0] = float("-inf")  # a ruled-out token is no trouble
    greedy = [Sampler(Sampling(temperature=0.0), 0) for _ in range(5)]
    assert choose(rows, greedy) == [Choice(0), None, None, Choice(1), Choice(0)]


def test_half_precision_rows_are_welcome() -> None:
    assert choose(LOGITS[None].bfloat16(), [Sampler(Sampling(temperature=0.0), 0)]) == [Choice(0)]


@pytest.mark.parametrize(
    ("top_k", "tokens"), [(1, {0}), (2, {0, 1}), (4, {0, 1, 2, 3}), (9, {0, 1, 2, 3}), (0, {0, 1, 2, 3})]
)
def test_top_k_keeps_the_likeliest(top_k: int, tokens: set[int]) -> None:
    assert set(draw(Sampling(top_k=top_k, seed=4), 600)) == tokens


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Sampling(temperature=0.0), [0, 0, 0, 0]),
        (Sampling(temperature=0.0, presence_penalty=1.0), [0, 1, 0, 0]),
        (Sampling(temperature=0.0, frequency_penalty=1.0), [0, 1, 0, 2]),
        (Sampling(temperature=0.0, presence_penalty=-2.0), [0, 0, 0, 0]),
    ],
)
def test_penalties_are_taken_from_what_was_said(settings: Sampling, said: list[int]) -> None:
    """By hand, with logits log(.5, .3, .15, .05) = (-0.69, -1.20, -1.90, -3.00): what is said once loses 1, twice 2."""
    assert draw(settings, 4) == said


def test_penalties_of_one_row_leave_the_others_and_the_log_probabilities_alone() -> None:
    penalised = Sampler(Sampling(temperature=0.0, presence_penalty=2.0, top_logprobs=0), 0)
    plain = Sampler(Sampling(temperature=0.0), 0)
    rows = LOGITS.repeat(2, 1)
    first, second = choose(rows, [penalised, plain]), choose(rows, [penalised, plain])
    assert [choice.token_id for choice in first if choice] == [0, 0]
    assert [choice.token_id for choice in second if choice] == [1, 0]
    assert second[0] is not None
    assert second[0].logprob is not None
    assert second[0].logprob.logprob == pytest.approx(math.log(0.3))


def test_the_prompt_s_own_tokens_are_scored_row_by_row() -> None:
    entries = of_prompt(LOGITS.repeat(2, 1), [2, 0], 1)
    assert entries is not None
    assert [each.token_id for each in entries] == [2, 0]
    assert [each.logprob for each in entries] == pytest.approx([math.log(0.15), math.log(0.5)])
    assert [each.top[0][0] for each in entries] == [0, 0]
    assert of_prompt(torch.tensor([[math.nan, 1.0]]), [0], 0) is None
