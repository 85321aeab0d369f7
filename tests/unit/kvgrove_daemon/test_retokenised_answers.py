"""An answer that comes back as other tokens: reuse ends where the tokens differ, and the reason says why (COR-15)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner_rig import BLOCK, Make, RunnerRig, rigs

from kvgrove_daemon.answers import GivenAnswers
from kvgrove_daemon.cache.chains import Chain
from kvgrove_protocol.chain import Span, SpanKind
from kvgrove_protocol.reasons import MissReason

USER, MARKER, ANSWER = 2 * BLOCK + 4, 3, 3 * BLOCK
EARLIEST = BLOCK
"""Of the answer: where the tokens begin to differ, so that some of the answer is reused."""


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


class Conversation:
    """A first turn that was answered, and second turns that send the answer back in one way or another."""

    def __init__(self, rig: RunnerRig) -> None:
        self.rig = rig
        draw = random.Random(5)
        self.first = [draw.randrange(300, 1000) for _ in range(USER + MARKER)]
        self.second = [draw.randrange(300, 1000) for _ in range(2 * BLOCK)]
        rig.ask("first", self.first, spans=self.spans(), new=ANSWER)
        rig.drain()
        self.said = rig.answer("first")
        assert len(self.said) == ANSWER

    def spans(self, *pieces: int) -> list[Span]:
        kinds, spans = (SpanKind.PRIVATE, SpanKind.TEMPLATE), list[Span]()
        for at, length in enumerate((USER, MARKER, *pieces)):
            start = spans[-1].end if spans else 0
            spans.append(Span(kinds[at % 2], start, start + length))
        return spans

    def next_turn(self, name: str, said: list[int], tenant: str = "acme") -> tuple[int, dict[MissReason, int]]:
        """Send ``said`` back with another question; tokens reused and missed."""
        prompt = [*self.first, *said, *self.first[USER:], *self.second]
        spans = self.spans(len(said), MARKER, len(self.second))
        self.rig.ask(name, prompt, spans=spans, tenant=tenant, new=1)
        self.rig.drain()
        self.rig.answer(name)
        done = self.rig.heard[name].done
        assert done is not None
        return done.usage.reused, done.usage.missed

    def retokenised(self) -> tuple[int, list[int]]:
        """The answer in other tokens of equal text, and where it begins to differ."""
        vocabulary = self.rig.model.tokenizer._control
        for at in range(EARLIEST, ANSWER - 2 * BLOCK + 8):
            token = vocabulary.id_to_token(self.said[at]) or ""  # a model may say ids that its tokenizer never gives
            ids = [vocabulary.token_to_id(char) for char in token]
            if len(ids) > 1 and None not in ids:
                said = [*self.said[:at], *ids, *self.said[at + 1 :]]
                assert self.rig.model.tokenizer.decode(said) == self.rig.model.tokenizer.decode(self.said)
                return at, said
        raise AssertionError("no token of the answer can be cut in two")


@pytest.fixture
def conversation(make: Make) -> Conversation:
    return Conversation(make())


def test_cor_15_reuse_ends_with_the_block_before_the_first_differing_id_and_says_why(
    conversation: Conversation,
) -> None:
    at, said = conversation.retokenised()
    reused, missed = conversation.next_turn("second", said)
    position = USER + MARKER + at
    assert reused == position // BLOCK * BLOCK
    end = USER + MARKER + len(said)
    assert missed[MissReason.RETOKENISED] == -(-end // BLOCK) * BLOCK - reused
    assert MissReason.NEW in missed  # the question is new


def test_cor_15_the_same_ids_are_reused_and_nothing_is_called_retokenised(conversation: Conversation) -> None:
    reused, missed = conversation.next_turn("second", conversation.said)
    assert reused == (USER + MARKER + ANSWER - 1) // BLOCK * BLOCK  # the last token of an answer has no KV yet
    assert MissReason.RETOKENISED not in missed


def test_cor_15_another_text_is_new(conversation: Conversation) -> None:
    at, _ = conversation.retokenised()
    other = [*conversation.said[:at], 301, *conversation.said[at + 1 :]]
    assert conversation.next_turn("second", other)[1].keys() == {MissReason.NEW, MissReason.PARTIAL_BLOCK}


def test_i2_isolated_nobody_learns_that_another_tenants_answer_had_this_text(conversation: Conversation) -> None:
    """The other tenant has blocks of its own up to the very difference, and was never given that answer."""
    rig = conversation.rig
    at, said = conversation.retokenised()
    own = [*conversation.first, *said[:at], *[301] * BLOCK]
    spans = conversation.spans(len(own) - len(conversation.first))
    rig.ask("own", own, spans=spans, tenant="other", new=1)
    rig.drain()
    rig.answer("own")
    reused, missed = conversation.next_turn("second", said, tenant="other")
    assert reused == (USER + MARKER + at) // BLOCK * BLOCK
    assert missed.keys() == {MissReason.NEW, MissReason.PARTIAL_BLOCK}


def test_i11_bounded_answers_forget_the_oldest() -> None:
    answers = GivenAnswers(capacity=2)
    for number in range(5):
        answers.record(b"realm", Chain("n", b"root", b"%04d" % number, [], BLOCK), b"idid", lambda ids: ids.decode())
    assert len(answers) == 2
