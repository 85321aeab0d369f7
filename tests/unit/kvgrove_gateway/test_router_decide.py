"""The routing decision, and the backlog it is made from."""

import pytest

from kvgrove_gateway.router.decide import FIT, MOST_BUSY, MOST_REUSE, Backlog, Candidate, Lately, Why, decide, worth


def node(name: str, matched: int = 0, queued: int = 0, requests: int = 0, rate: float = 1000.0) -> Candidate:
    return Candidate(
        node=name, matched_tokens=matched, queued_tokens=queued, requests=requests, prefill_tokens_per_s=rate
    )


def test_the_node_that_holds_the_prefix_wins() -> None:
    assert decide([node("a"), node("b", matched=900)], 1000).node == "b"


def test_on_equal_queues_the_longest_match_wins_whatever_the_node_computed_lately() -> None:
    """An idle fleet follows the prefix: a node that was given all work so far, and one that was given none."""
    for queue in (0, 5000):
        for lately in (Lately(), Lately(reuse=0.9), Lately(busy=0.8, reuse=0.5)):
            holder = candidate_with_recent("a", 1e6, matched=100)._replace(queued_tokens=queue, requests=9)
            others = [candidate_with_recent(name, 0.0)._replace(queued_tokens=queue) for name in "bcd"]
            shorter = candidate_with_recent("e", 0.0, matched=70)._replace(queued_tokens=queue)
            chosen = decide([holder, shorter, *others], 1000, lately=lately, session_node="b")
            assert (chosen.node, chosen.why) == ("a", Why.REUSE)


@pytest.mark.parametrize(
    ("lately", "weight"),
    [
        (Lately(), 1.0),
        (Lately(busy=0.5), FIT * 8),
        (Lately(reuse=0.9), FIT * 10**1.5),
        (Lately(busy=0.5, reuse=0.9), FIT * 8 * 10**1.5),
        (Lately(busy=1.0, reuse=1.0), FIT / (1 - MOST_REUSE) ** 1.5 / (1 - MOST_BUSY) ** 3),
    ],
)
def test_what_a_match_is_worth_follows_from_how_busy_nodes_are_and_how_much_is_reused(
    lately: Lately, weight: float
) -> None:
    """Affinity yields as soon as the queue exceeds what the match saves everybody."""
    assert worth(lately) == pytest.approx(weight)
    saved = weight * 900
    shorter, longer = (int(saved * 0.95), int(saved * 1.05))
    assert decide([node("a"), node("b", matched=900, queued=shorter)], 1000, lately=lately).node == "b"
    assert decide([node("a"), node("b", matched=900, queued=longer)], 1000, lately=lately).node == "a"


def test_what_is_at_hand_beats_what_has_to_be_fetched() -> None:
    slow, near = node("a", matched=900)._replace(fetch_tokens=270.0), node("b", matched=900, queued=200)
    assert decide([slow, near], 1000).node == "b"
    assert decide([slow, near._replace(queued_tokens=300)], 1000).node == "a"


def test_what_every_node_holds_decides_nothing() -> None:
    lately = Lately(busy=0.5, reuse=0.9)
    nodes = [node("a", matched=900, queued=100), node("b", matched=900)]
    assert decide(nodes, 1000, lately=lately).node == "b"


def test_a_hot_prefix_is_computed_on_another_node_under_rising_load() -> None:
    nodes = [node("holder", matched=9000), *(node(name) for name in "abc")]
    lately = Lately(busy=0.5, reuse=0.5)
    queues = [
        queue for queue in range(500, 90_000, 1000)
        if decide([nodes[0]._replace(queued_tokens=queue), *nodes[1:]], 10_000, lately=lately).node == "holder"
    ]  # fmt: skip
    assert queues == list(range(500, 49_000, 1000))  # 9,000 tokens, each worth 0.24 * 2^1.5 * 2^3 of the queue's
    assert decide([nodes[0]._replace(queued_tokens=49_500), *nodes[1:]], 10_000, lately=lately).why is Why.LOAD


def test_rou_03_a_cold_prompt_goes_to_the_idle_node_whatever_caches_hold() -> None:
    assert decide([node("a", queued=3000), node("b")], 1000).node == "b"


def test_a_faster_node_is_preferred() -> None:
    assert decide([node("a", rate=500), node("b", rate=2000)], 1000).node == "b"


def test_an_unmeasured_node_counts_as_average() -> None:
    assert decide([node("a", rate=0, queued=100), node("b", rate=100, queued=5000)], 1000).node == "a"
    assert decide([node("a", rate=0, queued=5000), node("b", rate=100, queued=100)], 1000).node == "b"


def test_the_session_breaks_ties_and_nothing_more() -> None:
    tied = [node(name) for name in "abcd"]
    for name in "abcd":
        assert decide(tied, 1000, session_node=name).node == name
    assert decide([node("a"), node("b", matched=800)], 1000, session_node="a").node == "b"


def test_ties_are_broken_alike_everywhere_and_spread_over_prompts() -> None:
    tied = [node(name) for name in "abcd"]
    chosen = [decide(tied, 1000, anchor=bytes([number])).node for number in range(64)]
    assert chosen == [decide(tied[::-1], 1000, anchor=bytes([number])).node for number in range(64)]
    assert set(chosen) == set("abcd")


def test_fewer_requests_break_a_tie_before_the_hash() -> None:
    assert decide([node("a", requests=2), node("b", requests=1)], 1000).node == "b"


def test_our_own_tokens_count_from_dispatch_until_their_prefill_is_done() -> None:
    """ROU-02: long prompts are spread before any of them has answered."""
    backlogs = {name: Backlog() for name in "abcd"}
    chosen = []
    for number in range(8):
        decision = decide([node(name, queued=each.tokens) for name, each in backlogs.items()], 32_000)
        backlogs[decision.node].dispatched(str(number), 32_000)
        chosen.append(decision.node)
    assert sorted(chosen) == sorted("abcd" * 2)


def test_a_report_adds_others_tokens_and_never_ours_twice() -> None:
    backlog = Backlog()
    backlog.dispatched("x", 1000)
    backlog.reported(1000)
    assert backlog.tokens == 1000
    backlog.reported(1500)
    assert backlog.tokens == 1500
    backlog.prefilled("x")
    backlog.prefilled("x")
    assert backlog.tokens == 500
    backlog.reported(0)
    assert backlog.tokens == 0


def test_rou_04_among_nodes_about_as_busy_the_longest_match_wins() -> None:
    nodes = [node("a", queued=9000), node("b", matched=400, queued=9300), node("c", matched=800, queued=9600)]
    decision = decide(nodes, 1000)
    assert (decision.node, decision.why) == ("c", Why.REUSE)


def test_equals_are_told_apart_by_match_then_session_then_who_was_given_least() -> None:
    holder, second = node("a", matched=19, queued=19)._replace(recent_tokens=9.0), node("b", queued=0)
    assert decide([holder, second], 1000, session_node="b").node == "a"
    given = [candidate_with_recent("a", 500), candidate_with_recent("b", 300), candidate_with_recent("c", 400)]
    assert decide(given, 1000, session_node="a").node == "a"
    assert decide(given, 1000).node == "b"


def test_a_full_node_over_its_share_is_given_a_new_chain_only_where_it_saves_more() -> None:
    """Bounded load: what it computes pushes out what is younger than elsewhere."""
    lately = Lately(reuse=0.5)
    over = candidate_with_recent("a", 70_000, matched=200)._replace(full=True)
    calm = [candidate_with_recent(name, 10_000)._replace(full=True) for name in "bcdefgh"]
    assert decide([over, *calm], 1000, lately=lately).node != "a"
    assert decide([over._replace(matched_tokens=900), *calm], 1000, lately=lately).node == "a"
    assert decide([over._replace(full=False), *calm], 1000, lately=lately).node == "a"  # there is room: nothing goes


def test_two_chains_that_push_each_other_out_are_parted() -> None:
    """Half a match stays worth less than a calm node: the pressed one would recompute both for ever."""
    thrashing = candidate_with_recent("a", 7_000_000, matched=200_000)._replace(full=True)
    nodes = [thrashing, *(candidate_with_recent(name, 150_000) for name in "bcdefgh")]
    assert decide(nodes, 400_000, lately=Lately(reuse=0.5)).node != "a"
    alike = [thrashing._replace(recent_tokens=150_000), *nodes[1:]]
    assert decide(alike, 400_000, lately=Lately(reuse=0.5)).node == "a"


def test_an_explanation_names_every_candidate_the_chosen_first() -> None:
    decision = decide([node("a", queued=50), node("b", matched=900), node("c", queued=10)], 1000)
    rows = decision.explain()
    assert [row.node for row in rows] == ["b", "c", "a"]
    assert (rows[0].matched_tokens, rows[2].queued_tokens, decision.why) == (900, 50, Why.REUSE)
    assert decide([node("a")], 1000).why is Why.ONLY


def test_what_a_node_really_computes_corrects_the_backlog_and_is_told_once() -> None:
    backlog = Backlog()
    backlog.dispatched("x", 100)
    backlog.started("x", 900)
    backlog.started("unknown", 5)
    assert (backlog.tokens, backlog.take_surplus(), backlog.take_surplus()) == (900, 800, 0)


def candidate_with_recent(name: str, recent: float, matched: int = 0) -> Candidate:
    return Candidate(
        node=name, matched_tokens=matched, queued_tokens=0, requests=0, prefill_tokens_per_s=1000, recent_tokens=recent
    )
