"""One real daemon, asked for the same cold prefix by several at once: it is computed once, and survives its leader."""

from __future__ import annotations

import random
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from node_rig import Answer, Rig, running

from kvgrove_protocol.control import ModelPlan, NamespacePlan
from kvgrove_protocol.data import Cancel, Done, Error, Generate, Started, Token
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.reasons import MissReason

pytestmark = pytest.mark.e2e

COLD = NamespacePlan(
    uid="uid-cold", name="team/cold", model="tiny", purge=Purge(1, b"n" * 16), fence=Fence(1, 1, 1), lease_seconds=60.0
)
"""Answers asked here are computed alone: no other namespace meets its blocks."""
SHARED = msgspec.structs.replace(COLD, uid="uid-shared", name="team/shared")
PREFIX = 1000
WHOLE = PREFIX // 32 * 32


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


@dataclass
class Node:
    rig: Rig
    model: ModelPlan
    metrics_port: int
    answers: dict[str, Answer] = field(default_factory=dict)

    def send(self, request: Generate) -> str:
        self.answers[request.request_id] = Answer()
        self.rig.send(request)
        return request.request_id

    def until(self, reached: Callable[[], bool]) -> None:
        """Listen until ``reached``."""
        while not reached():
            match self.rig.receive():
                case Started() as started:
                    self.answers[started.request_id].started = started
                case Token() as token:
                    self.answers[token.request_id].token_ids += token.token_ids
                case Done() as done:
                    self.answers[done.request_id].done = done
                case Error() as error:
                    self.answers[error.request_id].error = error
                case _:
                    pass

    def finish(self, *names: str) -> list[Answer]:
        """The whole answers; all must have ended well."""
        self.until(lambda: all(self.answers[n].done is not None or self.answers[n].error is not None for n in names))
        assert [self.answers[name].error for name in names] == [None] * len(names)
        return [self.answers[name] for name in names]

    def request(self, namespace: NamespacePlan, prompt: list[int], **options: object) -> Generate:
        return self.rig.request(namespace, self.model, prompt, **options)  # type: ignore[arg-type]

    def cold(self, prompt: list[int]) -> list[int]:
        return self.rig.ask(self.request(COLD, prompt)).token_ids

    def metric(self, name: str) -> float:
        """Its value after at least one heartbeat, which brings the figures up to date."""
        self.rig.play(1.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            found = re.search(rf"^{name} ([0-9.e+]+)$", page.read().decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Node]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running(tmp_path_factory.mktemp("node"), "node-0", "--metrics", f"127.0.0.1:{port}") as rig:
        model = ModelPlan(name="tiny", path=str(tiny_model("llama")), pool_bytes={"host": 64 << 20}, prefill_chunk=32)
        rig.issue([model], [])
        named = rig.name_generation(model)
        rig.issue([named], [COLD, SHARED])
        rig.connect()
        for namespace in (COLD, SHARED):
            for _ in range(200):
                answer = rig.ask(rig.request(namespace, named, [1], max_new_tokens=1))
                if answer.done is not None and MissReason.CONTROL_PLANE_LOST not in answer.done.usage.missed:
                    break
                rig.play(0.05)
        yield Node(rig, named, port)


def computed(answer: Answer) -> int:
    assert answer.done is not None
    return sum(answer.done.usage.missed.values())


@pytest.mark.parametrize("shared", [0, PREFIX])
def test_two_cold_requests_compute_their_prefix_once(node: Node, shared: int) -> None:
    prefix = tokens(PREFIX, 1 + shared)
    prompts = [prefix + tokens(40, 2), prefix + tokens(50, 3)]
    names = [node.send(node.request(SHARED, prompt, shared=shared)) for prompt in prompts]
    first, second = node.finish(*names)
    assert computed(first) == len(prompts[0])
    assert computed(second) == len(prompts[1]) - WHOLE
    assert [first.token_ids, second.token_ids] == [node.cold(prompt) for prompt in prompts]


def test_i2_two_tenants_wait_for_nobody_but_themselves(node: Node) -> None:
    prefix = tokens(PREFIX, 4)
    joined = node.metric("kvgrove_flight_joined_total")
    prompts = [prefix + tokens(40, 5), prefix + tokens(50, 6)]
    names = [
        node.send(node.request(SHARED, prompt, shared=PREFIX, tenant=tenant))
        for prompt, tenant in zip(prompts, ("acme", "other"), strict=True)
    ]
    answers = node.finish(*names)
    assert node.metric("kvgrove_flight_joined_total") == joined
    assert [answer.token_ids for answer in answers] == [node.cold(prompt) for prompt in prompts]


def test_a_cancelled_leader_is_succeeded_and_the_answer_is_right(node: Node) -> None:
    """The cancel races with the prefill: repeated until it came before the end, which mostly it does at once."""
    before = node.metric("kvgrove_flight_take_overs_total")
    for attempt in range(10):
        prefix = tokens(1900, 100 + attempt)
        leader = node.send(node.request(SHARED, prefix + tokens(40, 7)))
        prompt = prefix + tokens(50, 8)
        follower = node.send(node.request(SHARED, prompt))
        node.until(lambda leader=leader: node.answers[leader].started is not None)  # type: ignore[misc]
        node.rig.send(Cancel(request_id=leader))
        (answer,) = node.finish(follower)
        assert answer.token_ids == node.cold(prompt)
        assert answer.done is not None
        assert answer.done.usage.reused + computed(answer) == len(prompt)
        if node.metric("kvgrove_flight_take_overs_total") > before:
            return
    raise AssertionError("no cancel ever came before the leader was done")
