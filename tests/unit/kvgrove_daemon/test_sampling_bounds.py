"""Numbers of a peer that would fail every sequence of a batch never reach the engine."""

import math

import pytest
import torch

from kvgrove_daemon.engine.sampling import Sampler, choose
from kvgrove_daemon.sampling_bounds import usable
from kvgrove_protocol.data import Sampling
from kvgrove_protocol.errors import Malformed

LOGITS = torch.tensor([[-60.0, 55.0, 1.0, 54.0]])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("top_p", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_logprobs", -1),
        ("top_logprobs", 21),
        ("top_k", -1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", math.nan),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(Malformed, match=field):
        usable(Sampling(**{field: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=5e-324),
        Sampling(temperature=1e-38),
        Sampling(temperature=1e-5),
        Sampling(top_p=5e-324),
        Sampling(top_p=1e-46),
        Sampling(temperature=1e-38, top_p=1e-300, seed=-(2**63)),
        Sampling(temperature=1e300, seed=2**64 - 1),
    ],
)
def test_the_extremes_of_what_makes_sense_choose_a_token(sampling: Sampling) -> None:
    (choice,) = choose(LOGITS, [Sampler(usable(sampling), entropy=1)])
    assert choice is not None
    if sampling.temperature < 1 or sampling.top_p < 1:
        assert choice.token_id == 1


def test_ordinary_settings_pass_as_they_are() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=3, top_logprobs=2)
    assert usable(sampling) == sampling
