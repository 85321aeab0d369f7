"""Which generation answers a conversation while there are several (OPS-14)."""

from collections.abc import Mapping

import pytest

from kvgrove_gateway.conversations import Conversations, Offer, by_weight, share
from kvgrove_gateway.generation_counts import GenerationCounts
from kvgrove_protocol.canonical import digest
from kvgrove_protocol.control import TTFT_BOUNDS_S, ModelPlan
from kvgrove_protocol.identity import Caller

OLD, NEW = (ModelPlan(name=name, path=f"/models/{name}", generation=name.encode() * 16) for name in ("v1", "v2"))
CALLER = Caller(tenant="acme", user="ann")
Said = list[tuple[str, str]]


def offers(weight: int) -> list[Offer]:
    return [Offer(OLD, 100), Offer(NEW, weight)]


def choose(
    gateway: Conversations,
    said: Said,
    weight: int,
    *,
    caller: Caller = CALLER,
    held: Mapping[str, int] | None = None,
    offered: list[Offer] | None = None,
    answers: bool = True,
) -> str:
    async def tokens(model: ModelPlan) -> int:
        return (held or {}).get(model.name, 0)

    how = gateway.choose if answers else gateway.foresee
    choosing = how(offered or offers(weight), gateway.of("uid", caller, said), tokens)
    try:
        choosing.send(None)
    except StopIteration as done:
        chosen: ModelPlan = done.value
        return chosen.name
    raise AssertionError("it waits for something")


def gateway(seed: bytes = b"a") -> Conversations:
    return Conversations(seed * 32, 100)


def question(number: int) -> Said:
    return [("system", "You help."), ("user", f"question {number}")]


@pytest.mark.parametrize("weight", [0, 10, 50, 100])
def test_new_conversations_are_shared_out_by_weight_and_all_gateways_agree(weight: int) -> None:
    one, other = gateway(b"a"), gateway(b"b")
    placed = [choose(one, question(number), weight) for number in range(2000)]
    assert placed == [choose(other, question(number), weight) for number in range(2000)]
    assert abs(placed.count("v2") / 20 - weight) < 3


def test_who_was_on_the_new_one_at_a_lower_weight_is_on_it_at_a_higher_one() -> None:
    at = {weight: {n for n in range(500) if choose(gateway(), question(n), weight) == "v2"} for weight in (10, 50, 100)}
    assert at[10] < at[50] < at[100]


def test_a_session_handle_places_all_that_is_said_under_it() -> None:
    caller = Caller(tenant="acme", user="ann", session="s1")
    assert len({choose(gateway(), question(n), 50, caller=caller) for n in range(50)}) == 1


def test_callers_with_one_question_are_shared_out_too() -> None:
    placed = {choose(gateway(), question(1), 50, caller=Caller(tenant="acme", user=str(n))) for n in range(50)}
    assert placed == {"v1", "v2"}


def test_ops_14_a_conversation_stays_where_its_history_is() -> None:
    here = gateway()
    first = question(1)
    assert choose(here, first, 0) == "v1"
    second = [*first, ("assistant", "yes"), ("user", "and then?")]
    assert choose(here, second, 100) == "v1"
    assert choose(here, [*second, ("assistant", "no"), ("user", "why?")], 100) == "v1"
    assert choose(here, first, 100) == "v2", "the same question anew is a new conversation"
    assert choose(here, second, 100) == "v2", "which this is now the next turn of"


def test_a_request_that_is_only_looked_at_is_no_turn_of_a_conversation() -> None:
    here = gateway()
    first = question(1)
    second = [*first, ("assistant", "yes"), ("user", "and then?")]
    assert choose(here, first, 0, answers=False) == "v1"
    assert len(here) == 0
    assert choose(here, second, 100) == "v2", "nobody was answered before"
    choose(here, first, 0)
    assert choose(here, second, 100, answers=False) == "v1", "what would be, with the history there is"
    assert len(here) == 2


def test_ops_14_a_conversation_of_another_gateway_goes_where_its_blocks_are() -> None:
    said: Said = [*question(1), ("assistant", "yes"), ("user", "and then?")]
    assert choose(gateway(), said, 100, held={"v1": 640, "v2": 0}) == "v1"
    assert choose(gateway(), said, 100, held={"v1": 320, "v2": 640}) == "v2"
    assert choose(gateway(), said, 100) == "v2", "nobody holds it"


def test_a_generation_that_is_planned_no_more_answers_nobody() -> None:
    here = gateway()
    first = question(1)
    choose(here, first, 100)
    second = [*first, ("assistant", "yes"), ("user", "and then?")]
    assert choose(here, second, 0, offered=[Offer(OLD, 100)]) == "v1"


def test_i11_what_is_remembered_is_bounded_and_can_be_given_up() -> None:
    here = Conversations(b"k" * 32, 10)
    for number in range(50):
        choose(here, question(number), 0)
    assert len(here) == 10
    assert (here.forget(), len(here)) == (10, 0)


def test_shares_are_even() -> None:
    shares = [share(digest("test", number)) for number in range(1000)]
    assert 45 < sum(shares) / 1000 < 55
    assert all(0 <= each < 100 for each in shares)
    assert by_weight([Offer(OLD, 100)], digest("test", 1)) is OLD


def test_counts_are_of_planned_generations_and_tell_failures_and_times_apart() -> None:
    counts = GenerationCounts()
    old, new = ("uid", b"old"), ("uid", b"new")
    counts.keep([old, new])
    counts.answered(new, ttft_s=0.0, prompt_tokens=100, reused_tokens=60, failed=False)
    counts.answered(new, ttft_s=1e9, prompt_tokens=100, reused_tokens=0, failed=True)
    counts.refused(new)
    counts.refused(("uid", b"unknown"))
    first, second = counts.reports("uid", [b"old", b"new"])
    assert (first.requests, first.generation) == (0, b"old")
    assert (second.requests, second.failed, second.prompt_tokens, second.reused_tokens) == (3, 2, 200, 60)
    assert (second.ttft[0], second.ttft[-1], len(second.ttft)) == (1, 1, len(TTFT_BOUNDS_S) + 1)
    counts.keep([old])
    assert counts.reports("uid", [b"new"])[0].requests == 0
