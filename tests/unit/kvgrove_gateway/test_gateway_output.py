"""Stop strings: never sent, never half sent, also over token seams."""

import itertools

import pytest

from kvgrove_gateway.output import AnswerText
from kvgrove_protocol.data import TokenLogprob


def run(pieces: list[str], stop: list[str]) -> tuple[list[str], AnswerText]:
    table = dict(enumerate(pieces))
    text = AnswerText(lambda token: table[token], lambda: "", stop=stop, skip=frozenset())
    sent = [text.add(token).text for token in table]
    sent.append(text.finish().text)
    return sent, text


@pytest.mark.parametrize("stop", [["END"], ["ND", "END"], ["END", "zzz"]])
def test_a_stop_string_is_found_however_it_is_cut(stop: list[str]) -> None:
    whole = "some text ENDing"
    for cuts in itertools.combinations(range(1, len(whole)), 2):
        parts = [whole[a:b] for a, b in itertools.pairwise((0, *cuts, len(whole)))]
        sent, text = run(parts, stop)
        assert text.stopped
        assert "".join(sent) == ("some text " if "END" in stop[0] or "END" in stop[-1] else "some text E")


def test_nothing_that_a_stop_string_takes_back_was_sent_before() -> None:
    sent, _ = run(["a", "E", "N", "x", "E", "N", "D"], ["END"])
    assert sent == ["a", "", "", "ENx", "", "", "", ""]


def test_what_was_held_back_comes_at_the_end() -> None:
    sent, text = run(["ab", "EN"], ["END"])
    assert "".join(sent) == "abEN"
    assert not text.stopped


def test_the_earliest_of_several_stops_counts() -> None:
    sent, _ = run(["one two three"], ["three", "two"])
    assert "".join(sent) == "one "


def test_log_probabilities_leave_with_their_text() -> None:
    table = {0: "a", 1: "E", 2: "N", 3: "b", 4: "", 5: "é"}
    text = AnswerText(lambda token: table[token], lambda: "", stop=["END"], skip=frozenset())
    seen = [[each.token_id for each in text.add(token, TokenLogprob(token, -1.0)).logprobs] for token in table]
    assert seen == [[0], [], [], [1, 2, 3], [], [4, 5]]


def test_log_probabilities_of_a_stop_string_are_not_sent() -> None:
    table = {0: "a", 1: "EN", 2: "D"}
    text = AnswerText(lambda token: table[token], lambda: "", stop=["END"], skip=frozenset())
    entries = [each.token_id for token in table for each in text.add(token, TokenLogprob(token, -1.0)).logprobs]
    assert entries + [each.token_id for each in text.finish().logprobs] == [0]


def test_end_tokens_have_no_text() -> None:
    text = AnswerText(lambda _: "wrong", lambda: "", stop=[], skip=frozenset({9}))
    assert not text.add(9)
