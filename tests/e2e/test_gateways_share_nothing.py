"""Three daemons, two gateways that share nothing but events, and conversations going on while members come and go."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import PATIENCE_S, Stage, stage, wait_ready, wait_until

from kvgrove_protocol.control import ModelPlan, NamespacePlan, PrefixPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]  # six starts of a process, on a busy machine

NODES = ("node-0", "node-1", "node-2")
RULES = "The rules of the house are long, and everybody is glad that they are cached. " * 8
WORDS = ("when", "where", "why", "how", "never", "again", "order", "bicycle", "return", "parcel", "repair", "wheel")


class Conversations:
    """Callers that each go on talking: every turn sends all turns before it. What fails in the end is kept."""

    def __init__(self, bases: list[str], callers: int = 3) -> None:
        self.bases = bases
        self.failures: list[str] = []
        self.answered = self.sent_again = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._talk, args=(number,)) for number in range(callers)]
        for thread in self._threads:
            thread.start()

    def _talk(self, number: int) -> None:
        rng = random.Random(number)
        turns: list[dict[str, str]] = []
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not self._stop.is_set():
                if len(turns) > 12:
                    turns = []
                turns.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=12))})
                body = {"model": "team/bot", "messages": turns, "max_tokens": 2, "temperature": 0,
                        "kvgrove": {"prefix": "rules"}}  # fmt: skip
                said = self._ask(client, body, rng)
                if said is None:
                    turns.pop()
                else:
                    turns.append({"role": "assistant", "content": said})

    def _ask(self, client: httpx.Client, body: dict[str, Any], rng: random.Random) -> str | None:
        """As SDKs do: what is said to be lost half way is sent again, twice at most."""
        for attempt in range(3):
            bases = self.bases
            base = bases[rng.randrange(len(bases))]
            try:
                answer = client.post(f"{base}/v1/chat/completions", json=body, headers={"Authorization": "Bearer ann"})
            except httpx.TransportError as error:
                if base in self.bases:  # one that was taken away meanwhile is restarting
                    self._note(f"{base}: {error!r}")
                return None
            if answer.status_code == 200:
                with self._lock:
                    self.answered += 1
                return str(answer.json()["choices"][0]["message"]["content"])
            if answer.json()["error"]["code"] != "node_lost" or attempt == 2:
                self._note(f"{base}: {answer.status_code} {answer.text[:200]}")
                return None
            with self._lock:
                self.sent_again += 1
        return None

    def _note(self, failure: str) -> None:
        with self._lock:
            self.failures.append(failure)

    def go_on(self, answers: int) -> None:
        """Until so many more requests were answered."""
        wanted = self.answered + answers
        wait_until(lambda: self.answered >= wanted, f"{answers} more answers; failures: {self.failures}")

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("ha")) as rig:
        for name in NODES:
            rig.daemon(name)
        rig.wait_daemons(len(NODES))
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 16 << 20})
        rig.planner.issue([model], [], wait=False)
        rig.planner.wait_named()
        namespace = NamespacePlan(
            uid="uid-bot", name="team/bot", model="tiny", tenants=["acme"], purge=Purge(1, b"n" * 16),
            fence=Fence(1, 1, 1), lease_seconds=30.0,
            prefixes=[PrefixPlan(name="rules", version="1", body=rig.planner.body(RULES))],
        )  # fmt: skip
        rig.planner.issue(list(rig.planner.models), [namespace])
        yield rig


def drift(base: str) -> dict[str, float]:
    """Node -> by how much what the gateway knows of it differs from what the node lists, by count and digest."""
    found = re.findall(r'^kvgrove_index_drift\{node="([^"]+)"\} (\S+)', metrics(base), re.MULTILINE)
    return {node: float(value) for node, value in found}


def metrics(base: str) -> str:
    try:
        return httpx.get(f"{base}/metrics", timeout=60).text
    except httpx.TransportError:
        return ""


def wait_equal(bases: list[str]) -> None:
    """Every gateway has compared its index with each node's own listing, and they are equal."""
    equal = dict.fromkeys(NODES, 0.0)
    live = f'kvgrove_router_sources{{state="live"}} {len(NODES):.1f}'
    for base in bases:
        wait_until(
            lambda base=base: drift(base) == equal and live in metrics(base),  # type: ignore[misc]
            f"{base} knows what the nodes list",
        )


def test_no_request_fails_and_each_index_equals_the_nodes_after_every_loss(fleet: Stage) -> None:
    bases = [fleet.gateway(name) for name in ("gateway-0", "gateway-1")]
    for base in bases:
        wait_ready(base)
    talk = Conversations(list(bases))
    try:
        talk.go_on(20)
        wait_equal(bases)

        fleet.kill("node-1")
        talk.go_on(10)
        fleet.planner.forget("node-1")
        fleet.daemon("node-1")
        fleet.wait_daemons(len(NODES))
        wait_equal(bases)
        talk.go_on(10)

        talk.bases = bases[:1]  # as a load balancer would: a gateway that is going gets no new requests
        fleet.kill("gateway-1")
        bases[1] = fleet.gateway("gateway-1")
        wait_ready(bases[1])
        talk.bases = list(bases)
        wait_equal(bases)
        talk.go_on(10)
    finally:
        talk.end()
    assert talk.failures == []
    assert talk.sent_again <= 3  # what node-1 was answering when it was killed: at most one for each caller
    wait_equal(bases)
    blocks = re.findall(r"^kvgrove_router_index_blocks (\S+)", metrics(bases[1]), re.MULTILINE)
    assert float(blocks[0]) > 0
