"""One real daemon with a pool too small for what it serves, and a disk below: the same answers, nobody else's."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest
from node_rig import Answer, Rig, running
from ports import free_port

from kvgrove_protocol.control import ModelPlan, NamespacePlan, QuotaPlan
from kvgrove_protocol.data import Done, Error, Generate, Sampling, Started, Token, TokenLogprob
from kvgrove_protocol.events import DISK, HOST
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.identity import Purge
from kvgrove_protocol.reasons import MissReason

pytestmark = pytest.mark.e2e

BLOCK = 32
BLOCK_BYTES = 24_576
"""Of the tiny model's KV."""
POOL_SLOTS = 26
SEALED = NamespacePlan(
    uid="uid-1",
    name="team/support",
    model="tiny",
    purge=Purge(1, b"n" * 16),
    fence=Fence(1, 1, 1),
    lease_seconds=20.0,
    secret=b"s" * 32,
    pseudonym_key=b"p" * 32,
)
SURE = 1e-4
"""How far logprobs of equal prompts may lie apart: sums in another order."""


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 1000) for _ in range(count)]


class TieredNode:
    """A running daemon that holds a lease."""

    def __init__(self, rig: Rig, model: ModelPlan, namespace: NamespacePlan, metrics: int) -> None:
        self.rig, self.model, self.namespace = rig, model, namespace
        self._metrics = metrics

    def request(self, prompt: Sequence[int], *, shared: int = 0, tenant: str = "acme") -> Generate:
        asked = self.rig.request(self.namespace, self.model, list(prompt), shared=shared, tenant=tenant)
        return msgspec.structs.replace(asked, max_new_tokens=1, sampling=Sampling(temperature=0.0, top_logprobs=5))

    def ask(self, prompt: Sequence[int], *, shared: int = 0, tenant: str = "acme") -> Told:
        return self.ask_all([self.request(prompt, shared=shared, tenant=tenant)])[0]

    def ask_all(self, requests: Sequence[Generate]) -> list[Told]:
        """Send all of them at once and read until each has ended."""
        told = {request.request_id: Told() for request in requests}
        for request in requests:
            self.rig.send(request)
        while any(answer.done is None for answer in told.values()):
            message = self.rig.receive()
            if not isinstance(message, Started | Token | Done | Error) or message.request_id not in told:
                continue
            answer = told[message.request_id]
            match message:
                case Started():
                    answer.started = message
                case Token():
                    answer.logprobs += message.logprobs
                case Done():
                    answer.done = message
                case Error():
                    raise AssertionError(f"{message.code}: {message.message}")
        return list(told.values())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of ``name`` that carry ``labels``."""
        with urlopen(f"http://127.0.0.1:{self._metrics}/metrics") as answer:
            text = answer.read().decode()
        samples = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(value) for found, value in samples if all(label in found for label in wanted))

    def until_metric(self, name: str, least: float, **labels: str) -> None:
        self.rig.until(lambda: self.metric(name, **labels) >= least)


class Told(Answer):
    def __init__(self) -> None:
        super().__init__()
        self.logprobs: list[TokenLogprob] = []

    @property
    def reused(self) -> int:
        assert self.done is not None
        usage = self.done.usage
        assert usage.reused + sum(usage.missed.values()) == usage.prompt  # I10
        assert self.started is not None
        assert self.started.reused == usage.reused
        return usage.reused

    @property
    def tier(self) -> str:
        assert self.started is not None
        return self.started.tier if self.reused else ""

    @property
    def top(self) -> dict[int, float]:
        return dict(self.logprobs[0].top)


def same(one: Told, other: Told) -> bool:
    """Whether both answer the same prompt."""
    return one.top.keys() == other.top.keys() and all(abs(one.top[at] - other.top[at]) < SURE for at in one.top)


@contextmanager
def tiered(
    state: Path, model: Path, namespace: NamespacePlan = SEALED, *, slots: int = POOL_SLOTS, disk: int = 128 << 20
) -> Iterator[TieredNode]:
    port = free_port()
    with running(state, "node-0", "--metrics", f"127.0.0.1:{port}", "--cache-dir", str(state / "tiers")) as rig:
        plan = ModelPlan(name="tiny", path=str(model), pool_bytes={HOST: slots * BLOCK_BYTES, DISK: disk})
        rig.issue([plan], [namespace])  # a plan that does not know it would have it erased
        named = rig.name_generation(plan)
        rig.issue([named], [namespace])
        rig.connect()
        node = TieredNode(rig, named, namespace, port)
        rig.until(lambda: MissReason.CONTROL_PLANE_LOST not in _missed(node))
        yield node


def _missed(node: TieredNode) -> dict[MissReason, int]:
    done = node.ask([1, 2]).done
    assert done is not None
    return done.usage.missed


def push_out(node: TieredNode, seed: int) -> None:
    """Let other prompts fill the pool."""
    for number in range(4):
        node.ask(tokens(20 * BLOCK, seed + number))


def test_iso_12_what_was_paged_to_disk_comes_back_equal_and_is_nobody_elses(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    prefix, question = tokens(8 * BLOCK, 1), tokens(4 * BLOCK + 5, 2)
    with tiered(tmp_path, tiny_model("llama")) as node:
        cold = node.ask(prefix + question, shared=len(prefix))
        assert cold.reused == 0
        warm = node.ask(prefix + question, shared=len(prefix))
        assert (warm.reused, warm.tier) == (12 * BLOCK, HOST)
        node.until_metric("kvgrove_tier_written_blocks_total", 12, tier=DISK)
        push_out(node, 900)
        before = node.metric("kvgrove_node_reused_tokens_total", tier=DISK)
        other = node.ask(prefix + question, shared=len(prefix), tenant="other")
        assert (other.reused, other.tier) == (8 * BLOCK, DISK)  # the declared prefix, and nothing that is acme's
        push_out(node, 910)
        back = node.ask(prefix + question, shared=len(prefix))
        assert (back.reused, back.tier) == (12 * BLOCK, DISK)
        assert same(cold, warm)
        assert same(cold, back)
        assert same(cold, other)
        # MET-03: each tier's counter moved by what the answers said.
        assert node.metric("kvgrove_node_reused_tokens_total", tier=DISK) - before == 20 * BLOCK
        assert node.metric("kvgrove_tier_loaded_blocks_total", tier=DISK) == 20
        assert node.metric("kvgrove_tier_corrupt_blocks_total") == 0

    with tiered(tmp_path, tiny_model("llama")) as node:  # a restart: adopted once plan and lease are there
        node.until_metric("kvgrove_tier_adopted_blocks_total", 12)
        stranger = node.ask(tokens(8 * BLOCK, 3) + question, tenant="acme")
        assert stranger.reused == 0  # the same question after another beginning
        other = node.ask(prefix + question, shared=len(prefix), tenant="third")
        assert (other.reused, other.tier) == (8 * BLOCK, DISK)
        back = node.ask(prefix + question, shared=len(prefix))
        assert back.reused == 12 * BLOCK
        assert same(cold, back)
        assert same(cold, other)

    purged = msgspec.structs.replace(SEALED, purge=Purge(2, b"m" * 16), fence=Fence(2, 1, 1))
    with tiered(
        tmp_path, tiny_model("llama"), purged
    ) as node:  # another epoch: nothing is adopted, and nothing is left
        after = node.ask(prefix + question, shared=len(prefix))
        assert after.reused == 0
        assert same(cold, after)
        assert node.metric("kvgrove_tier_adopted_blocks_total") == 0


def test_a_daemon_that_is_told_to_end_hands_over_and_its_successor_begins_warm(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    prompt = tokens(10 * BLOCK + 1, 40)
    with tiered(tmp_path, tiny_model("llama"), slots=200) as node:
        cold = node.ask(prompt)
        assert node.metric("kvgrove_tier_written_blocks_total", tier=DISK) == 0  # never reused, and there is room
    with tiered(tmp_path, tiny_model("llama"), slots=200) as node:
        node.until_metric("kvgrove_tier_adopted_blocks_total", 10)
        back = node.ask(prompt)
        assert (back.reused, back.tier) == (10 * BLOCK, DISK)
        assert same(cold, back)


def test_i3_fresh_without_the_namespaces_secret_the_disk_is_noise(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    prompt = tokens(10 * BLOCK + 1, 4)
    with tiered(tmp_path, tiny_model("llama")) as node:
        node.ask(prompt)
        node.ask(prompt)
        node.until_metric("kvgrove_tier_written_blocks_total", 10, tier=DISK)
    another = msgspec.structs.replace(SEALED, secret=b"t" * 32)
    with tiered(tmp_path, tiny_model("llama"), another) as node:
        assert node.ask(prompt).reused == 0
        assert node.metric("kvgrove_tier_adopted_blocks_total") == 0


def test_a_quota_holds_on_disk_too(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    small = msgspec.structs.replace(SEALED, quota={DISK: QuotaPlan(ceiling=6 * 2 * BLOCK_BYTES)})
    with tiered(tmp_path, tiny_model("llama"), small) as node:
        for seed in range(20, 26):
            for _ in range(2):
                node.ask(tokens(4 * BLOCK + 1, seed))
        node.until_metric("kvgrove_tier_written_blocks_total", 4, tier=DISK)
        assert node.metric("kvgrove_tier_bytes", tier=DISK) <= 6 * 2 * BLOCK_BYTES


def test_iso_12_two_hundred_sessions_through_disk_and_back_each_get_their_own_answer(
    tmp_path: Path, tiny_model: Callable[[str], Path]
) -> None:
    """Each session has a text of its own; eight are asked at once, over a pool that holds two of them."""
    sessions = [tokens(8 * BLOCK + 3, 1000 + number) for number in range(200)]
    with tiered(tmp_path, tiny_model("llama"), disk=256 << 20) as node:
        rounds: list[list[Told]] = []
        for _ in range(3):
            told: list[Told] = []
            for first in range(0, len(sessions), 8):
                told += node.ask_all([node.request(session) for session in sessions[first : first + 8]])
            rounds.append(told)
        cold, *warm = rounds
        assert not any(answer.reused for answer in cold)
        for one, other in pairwise(cold):
            assert not same(one, other)  # so a mix-up would show
        for told in warm:
            assert all(same(*pair) for pair in zip(cold, told, strict=True))
        # On a busy disk the gate rightly prefers computing; what it refuses is loaded now and then all the same.
        assert sum(answer.tier == DISK for told in warm for answer in told) >= 4
        assert node.metric("kvgrove_tier_corrupt_blocks_total") == 0
