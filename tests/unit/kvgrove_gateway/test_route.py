"""What an operator is told of a request's route, as text and as a body: of the request, and of nothing beside it."""

from __future__ import annotations

from kvgrove_gateway.identity.key_file import parse_keys
from kvgrove_gateway.route import Route
from kvgrove_gateway.router.decide import Candidate, decide

CANDIDATES = [
    Candidate("node-0", matched_tokens=640, queued_tokens=500, requests=1, prefill_tokens_per_s=1000.0),
    Candidate("node-1", matched_tokens=0, queued_tokens=0, requests=0, prefill_tokens_per_s=1000.0),
]
ROUTE = Route.of(decide(CANDIDATES, 1000, anchor=b"secret-key"), attempt=2)


def test_the_header_says_node_match_reason_time_and_attempt() -> None:
    assert ROUTE.header() == "node=node-0; matched=640; why=reuse; expected=0.860; attempt=2"
    assert ROUTE.body() == {
        "node": "node-0",
        "matched_tokens": 640,
        "why": "reuse",
        "expected_s": 0.86,
        "attempt": 2,
    }


def test_i2_isolated_other_nodes_and_keys_are_not_told() -> None:
    for told in (ROUTE.header(), str(ROUTE.body())):
        assert "node-1" not in told
        assert "secret" not in told


def test_a_nodes_name_cannot_add_headers_or_fields() -> None:
    route = Route("a; why=x\r\nset-cookie: y=é", 0, "only", 0.0, 1)
    name = route.header().split("; ")[0]
    assert not set(name) & set("\r\n;: ")
    assert name.isascii()


def test_only_keys_that_say_so_are_operators() -> None:
    entry = "- {{id: {0}, sha256: {1}, tenant: acme{2}}}\n"
    text = "keys:\n" + entry.format("a", "a" * 64, "") + entry.format("b", "b" * 64, ", explain: true")
    assert {entry.id: entry.explain for entry in parse_keys(text.encode())} == {"a": False, "b": True}
