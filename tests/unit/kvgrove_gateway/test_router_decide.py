"""The routing decision, and the backlog it is made from."""

from kvgrove_gateway.router.decide import Backlog, Candidate, decide


def node(name: str, matched: int = 0, queued: int = 0, requests: int = 0, rate: float = 1000.0) -> Candidate:
    return Candidate(
        node=name, matched_tokens=matched, queued_tokens=queued, requests=requests, prefill_tokens_per_s=rate
    )


def test_the_node_that_holds_the_prefix_wins() -> None:
    assert decide([node("a"), node("b", matched=900)], 1000).node == "b"


def test_affinity_yields_when_its_node_is_too_busy() -> None:
    busy = node("b", matched=900, queued=20_000)
    assert decide([node("a"), busy], 1000).node == "a"
    assert decide([node("a"), node("b", matched=900, queued=4000)], 1000).node == "b"  # W=5: 4,500 saved for 4,000


def test_a_cold_prompt_goes_to_the_idle_node_whatever_caches_hold() -> None:
    """ROU-03."""
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
