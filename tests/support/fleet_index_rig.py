"""Three daemons, two gateways and callers that go on talking while members come and go: one scenario, and its figures.

Used by the test of it, which asserts what must hold, and by the bench, which prints how long it took.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gateway_rig
import httpx
from gateway_rig import PATIENCE_S, Stage, stage, wait_ready, wait_until

from kvgrove_protocol.control import ModelPlan, NamespacePlan, PrefixPlan
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge

NODES = ("node-0", "node-1", "node-2")
GATEWAYS = ("gateway-0", "gateway-1")
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


@contextmanager
def three_nodes(folder: Path, model: Path) -> Iterator[Stage]:
    """The daemons with ``model``, and a namespace that they serve; no gateway yet."""
    with stage(folder) as rig:
        for name in NODES:
            rig.daemon(name)
        rig.wait_daemons(len(NODES))
        plan = ModelPlan(name="tiny", path=str(model), pool_bytes={"host": 16 << 20})
        rig.planner.issue([plan], [], wait=False)
        rig.planner.wait_named()
        namespace = NamespacePlan(
            uid="uid-bot", name="team/bot", model="tiny", tenants=["acme"], purge=Purge(1, b"n" * 16),
            fence=Fence(1, 1, 1), lease_seconds=30.0,
            prefixes=[PrefixPlan(name="rules", version="1", body=rig.planner.body(RULES))],
        )  # fmt: skip
        rig.planner.issue(list(rig.planner.models), [namespace])
        yield rig


@dataclass
class Report:
    index_equal_after_s: dict[str, float]
    """Event -> until each gateway had compared its index with the listing of every node that is there, and they were
    equal, by count and digest. Nodes tell theirs with each batch, at least once a second."""
    answered: int
    failures: list[str]
    """Of requests that failed in the end."""
    retried_requests: int
    """Sent again by the callers: the node was lost while it answered."""
    gateway_retries: int
    """Made by gateways, unseen by callers."""
    index_blocks: float


def run(fleet: Stage) -> Report:
    """Load, a daemon killed and brought back, a gateway killed and brought back."""
    bases = [fleet.gateway(name) for name in GATEWAYS]
    for base in bases:
        wait_ready(base)
    took: dict[str, float] = {}
    talk = Conversations(list(bases))
    try:
        talk.go_on(20)
        took["load"] = until_equal(bases, NODES)

        fleet.kill("node-1")
        talk.go_on(10)
        fleet.planner.forget("node-1")  # as a supervisor does
        took["daemon_killed"] = until_equal(bases, [node for node in NODES if node != "node-1"])

        fleet.daemon("node-1")
        fleet.wait_daemons(len(NODES))
        took["daemon_back"] = until_equal(bases, NODES)
        talk.go_on(10)

        talk.bases = bases[:1]  # as a load balancer would: a gateway that is going gets no new requests
        lost = retries(bases[1])
        fleet.kill("gateway-1")
        bases[1] = fleet.gateway("gateway-1")
        wait_ready(bases[1])
        talk.bases = list(bases)
        took["gateway_back"] = until_equal(bases, NODES)
        talk.go_on(10)
    finally:
        talk.end()
    took["end"] = until_equal(bases, NODES)
    blocks = re.findall(r"^kvgrove_router_index_blocks (\S+)", metrics(bases[1]), re.MULTILINE)
    return Report(
        index_equal_after_s=took,
        answered=talk.answered,
        failures=talk.failures,
        retried_requests=talk.sent_again,
        gateway_retries=int(lost + sum(retries(base) for base in bases)),
        index_blocks=float(blocks[0]),
    )


def until_equal(bases: Sequence[str], nodes: Sequence[str]) -> float:
    """Wait until every gateway follows exactly ``nodes`` and its index equals what each of them lists; seconds."""
    began = time.monotonic()
    equal = dict.fromkeys(nodes, 0.0)
    live = f'kvgrove_router_sources{{state="live"}} {len(nodes):.1f}'

    def reached(base: str) -> bool:
        text = metrics(base)
        found = {node: blocks for node, blocks in drift(text).items() if node in equal}
        return found == equal and live in text

    for base in bases:
        wait_until(lambda base=base: reached(base), f"{base} knows what {nodes} list")  # type: ignore[misc]
    return time.monotonic() - began


def drift(text: str) -> dict[str, float]:
    """Node -> by how much what the gateway knows of it differs from what the node lists, by count and digest."""
    found = re.findall(r'^kvgrove_index_drift\{node="([^"]+)"\} (\S+)', text, re.MULTILINE)
    return {node: float(value) for node, value in found}


def retries(base: str) -> float:
    return sum(map(float, re.findall(r"^kvgrove_gateway_retries_total\{[^}]*\} (\S+)", metrics(base), re.MULTILINE)))


def metrics(base: str) -> str:
    try:
        return gateway_rig.metrics(base)
    except httpx.TransportError:
        return ""
