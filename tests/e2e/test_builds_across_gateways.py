"""Two gateways, two idle nodes, one cold prefix: whichever gateway is asked, one node computes it."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pytest
from gateway_rig import PATIENCE_S, Stage, metrics, stage, wait_ready, wait_until
from tokenizers import Tokenizer

from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Isolation, Purge

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

WORDS = ("when", "where", "why", "how", "never", "again", "order", "bicycle", "return", "parcel", "repair", "wheel")
PREFIX_TOKENS = 2000
ATTEMPTS = 4
AHEAD = 6
"""Prompts that the nodes compute first, so that nothing of the prefix is READY when the other gateway decides."""
OPERATOR = "ops"


@dataclass
class Fleet:
    stage: Stage
    bases: list[str]
    tokenizer: Tokenizer
    fresh: Iterator[int] = field(default_factory=lambda: count(100))
    """Seeds of prefixes that nobody has asked for."""

    def prefix(self, seed: int, tokens: int = PREFIX_TOKENS) -> str:
        """A text of ``tokens`` tokens, or one more."""
        rng, text = random.Random(seed), "so"
        while (missing := tokens - len(self.tokenizer.encode(text).ids)) > 0:
            text += "".join(f" {word}" for word in rng.choices(WORDS, k=max(1, missing // 4)))
        return text

    def caller(self, gateway: int, *, key: str = "ann") -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.bases[gateway], headers=headers, timeout=PATIENCE_S)

    def ask(self, gateway: int, text: str, *, key: str = "ann") -> httpx.Response:
        with self.caller(gateway, key=key) as caller:
            return chat(caller, text)

    def builds_heard(self, gateway: int) -> float:
        counted = metrics(self.bases[gateway])
        (heard,) = re.findall(r"^kvgrove_router_builds_heard_total (\S+)", counted, re.MULTILINE)
        return float(heard)

    def wait_heard(self, gateway: int, builds: float) -> None:
        wait_until(lambda: self.builds_heard(gateway) >= builds, f"gateway {gateway} has heard of {builds:g} builds")


def said(text: str) -> dict[str, Any]:
    return {"model": "team/bot", "messages": [{"role": "user", "content": text}]}


def chat(caller: httpx.Client, text: str) -> httpx.Response:
    answer = caller.post("/v1/chat/completions", json=said(text) | {"max_tokens": 2, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return answer


def count_tokens(caller: httpx.Client, text: str) -> None:
    """Has the connection open and the prompt made, and sends it to nobody: what is asked next is placed at once."""
    answer = caller.post("/v1/messages/count_tokens", json=said(text))
    assert answer.status_code == 200, answer.text


def node_of(answer: httpx.Response) -> str:
    return str(answer.json()["kvgrove"]["node"])


def computed(answer: httpx.Response) -> int:
    """Tokens, but for those that a wait for somebody else's build ran out on: how long that takes is the machine's."""
    return sum(count for reason, count in answer.json()["kvgrove"]["missed"].items() if reason != "building")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Fleet]:
    with stage(tmp_path_factory.mktemp("builds")) as rig:
        digest = hashlib.sha256(OPERATOR.encode()).hexdigest()
        with rig.keys.open("a") as keys:
            keys.write(f"- {{id: {OPERATOR}, sha256: {digest}, tenant: acme, user: ann, explain: true}}\n")
        for name in ("node-0", "node-1"):
            rig.daemon(name)
        bases = [rig.gateway("gateway-0"), rig.gateway("gateway-1", "--explain-routes")]
        rig.wait_daemons(2)
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 64 << 20}, prefill_chunk=16)
        rig.planner.issue([model], [], wait=False)
        rig.planner.wait_named()
        namespace = NamespacePlan(
            uid="uid-bot", name="team/bot", model="tiny", tenants=["acme"], isolation=Isolation.TENANT,
            purge=Purge(1, b"n" * 16), fence=Fence(1, 1, 1), lease_seconds=60.0,
        )  # fmt: skip
        rig.planner.wait_leased(rig.planner.issue(list(rig.planner.models), [namespace]))
        for base in bases:
            wait_ready(base)
        yield Fleet(rig, bases, Tokenizer.from_file(f"{model.path}/tokenizer.json"))


@pytest.mark.alone
def test_a_cold_prefix_asked_for_through_two_gateways_is_computed_by_one_node(fleet: Fleet) -> None:
    # In the same moment: nobody can have heard of the other's, but both know the same, and break ties alike. One that
    # decides when it has heard may rightly go where nobody waits, and from then on the two know different things.
    text, barrier = fleet.prefix(2), Barrier(2)

    def ask(gateway: int) -> httpx.Response:
        with fleet.caller(gateway) as caller:
            count_tokens(caller, f"{text} {gateway}")
            barrier.wait()
            return chat(caller, f"{text} {gateway}")

    with ThreadPoolExecutor() as callers:
        answers = list(callers.map(ask, range(2)))
    assert node_of(answers[0]) == node_of(answers[1])
    assert PREFIX_TOKENS < sum(computed(answer) for answer in answers) < PREFIX_TOKENS * 1.5


def test_a_gateway_sends_a_cold_prefix_to_the_node_that_another_one_had_it_built_on(fleet: Fleet) -> None:
    # Queues count too, and views of them are a heartbeat old: an attempt may rightly go elsewhere, not each of them.
    attempts = (asked_while_it_is_built(fleet, fleet.prefix(next(fleet.fresh))) for _ in range(ATTEMPTS))
    first, second = next(
        (
            (first, second)
            for first, second in attempts
            if second.json()["kvgrove"]["route"]["matched_tokens"] >= PREFIX_TOKENS * 0.9
        ),
        (None, None),
    )
    assert first is not None, "the second gateway never weighed what the first one had a node build"
    assert second is not None
    assert node_of(first) == node_of(second)
    assert computed(first) > PREFIX_TOKENS
    assert computed(second) < 100


def asked_while_it_is_built(fleet: Fleet, text: str) -> tuple[httpx.Response, httpx.Response]:
    """Answers through both gateways; when the second decided it had heard of the build, and nothing was there yet."""
    with ThreadPoolExecutor() as callers:
        heard = fleet.builds_heard(1)
        for _ in range(AHEAD):
            callers.submit(fleet.ask, 0, fleet.prefix(next(fleet.fresh)))
        fleet.wait_heard(1, heard + AHEAD)
        first = callers.submit(fleet.ask, 0, f"{text} one")
        fleet.wait_heard(1, heard + AHEAD + 1)
        second = fleet.ask(1, f"{text} two", key=OPERATOR)
        return first.result(), second


def test_i2_isolated_only_an_operators_key_is_told_how_it_was_routed_and_only_where_gateways_tell(
    fleet: Fleet,
) -> None:
    text = fleet.prefix(3, 200)
    fleet.ask(1, text)
    told = fleet.ask(1, text, key=OPERATOR)
    fields = dict(field.split("=") for field in told.headers["x-kvgrove-route"].split("; "))
    route = told.json()["kvgrove"]["route"]
    assert fields["node"] == route["node"] == node_of(told)
    assert int(fields["matched"]) == route["matched_tokens"] > 0
    assert (fields["why"], route["why"], route["attempt"]) == ("reuse", "reuse", 1)
    assert set(route) == {"node", "matched_tokens", "why", "expected_s", "attempt"}
    for answer in (fleet.ask(1, text), fleet.ask(0, text, key=OPERATOR)):
        assert "x-kvgrove-route" not in answer.headers
        assert "route" not in answer.json()["kvgrove"]
