"""Streams of engines over real sockets: our own export as one engine, and one that speaks as vLLM does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from block_store_rig import run_of
from kv_event_rig import BLOCK, Exporting

from kvgrove_gateway.kv_events.engine import EngineResidency
from kvgrove_gateway.kv_events.source import SourceState
from kvgrove_gateway.kv_events.subscriber import KvEventSubscriber
from kvgrove_gateway.kv_events.translate import Translator
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.chain import block_keys

ROOT = b"q" * 32
END = b"\xff" * 8


async def eventually(reached: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(60):
        while not reached():
            meanwhile()
            await asyncio.sleep(0.02)


class View:
    """A subscriber, and what it believes."""

    def __init__(self, context: zmq.asyncio.Context, events: str, replay: str | None, block: int, probe: float) -> None:
        self.index, self.metrics, self.block = BlockIndex(10_000), Metrics(), block
        engine = EngineResidency(
            self.index, self.metrics, lambda: Translator(lambda _l, _s: ROOT, block_size=block, capacity=10_000)
        )
        self.subscriber = KvEventSubscriber(
            context, events, replay, engine, self.metrics, clock=time.monotonic, probe_s=probe
        )
        self.engine = engine

    @property
    def state(self) -> SourceState:
        return self.engine.position.state

    def depth(self, raw: bytes) -> int:
        """How many leading blocks of a prompt are believed to be there; -1 while that is in doubt."""
        slot = self.engine.slot
        if slot is None:
            return -1
        return sum(self.index.holds(slot, key) for key in block_keys(ROOT, raw, block_size=self.block))

    def resyncs(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("kvgrove_router_resyncs_total", {"reason": reason}) or 0.0


@asynccontextmanager
async def viewing(events: str, replay: str | None, block: int = BLOCK, probe: float = 30.0) -> AsyncIterator[View]:
    context = zmq.asyncio.Context()
    view = View(context, events, replay, block, probe)
    running = asyncio.create_task(view.subscriber.run())
    try:
        yield view
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        context.destroy(0)


class Vllm:
    """Publishes as vLLM does; ``topic_in_replay`` False as releases before 0.26 did, which send three frames."""

    def __init__(self, context: zmq.asyncio.Context, *, topic_in_replay: bool = True) -> None:
        self._out = context.socket(zmq.PUB)
        self.events = f"tcp://127.0.0.1:{self._out.bind_to_random_port('tcp://127.0.0.1')}"
        self._router = context.socket(zmq.ROUTER)
        self.replay = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._topic = [b"kv@here@model"] if topic_in_replay else []
        self.history: list[tuple[int, bytes]] = []
        self.next = 0
        self.asked: list[bytes] = []
        self.answering = True

    async def say(self, *events: dict[str, Any], lose: bool = False) -> None:
        payload = msgspec.msgpack.encode([1.0, list(events), 0])
        self.history.append((self.next, payload))
        if not lose:
            await self._out.send_multipart([b"", self.next.to_bytes(8, "big"), payload])
        self.next += 1

    async def serve(self) -> None:
        while True:
            client, empty, start = await self._router.recv_multipart()
            assert empty == b""
            self.asked.append(start)
            if not self.answering:
                continue
            for number, payload in self.history:
                if number >= int.from_bytes(start, "big"):
                    await self._router.send_multipart([client, b"", *self._topic, number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", *([b""] if self._topic else []), END, b""])

    def close(self) -> None:
        self._out.close(0)
        self._router.close(0)


@asynccontextmanager
async def vllm(**options: Any) -> AsyncIterator[Vllm]:
    context = zmq.asyncio.Context()
    engine = Vllm(context, **options)
    serving = asyncio.create_task(engine.serve())
    try:
        yield engine
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        engine.close()
        context.destroy(0)


def stored(start: int, count: int, *, parent: int | None = None) -> dict[str, Any]:
    """Blocks that are named by their first token."""
    return {
        "type": "BlockStored", "block_hashes": [start + at * BLOCK for at in range(count)],
        "parent_block_hash": parent, "token_ids": list(range(start, start + count * BLOCK)), "block_size": BLOCK,
        "lora_id": None, "medium": "GPU", "lora_name": None,
    }  # fmt: skip


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 120))  # type: ignore[arg-type]


@pytest.mark.parametrize("topic_in_replay", [True, False])
def test_a_late_joiner_replays_and_a_gap_is_filled_in_both_shapes_of_replay(topic_in_replay: bool) -> None:
    async def scene() -> None:
        async with vllm(topic_in_replay=topic_in_replay) as engine:
            await engine.say(stored(0, 3))
            async with viewing(engine.events, engine.replay) as view:
                await eventually(lambda: view.depth(run_of(0, 3 * BLOCK)) == 3)
                await engine.say(removed(2 * BLOCK), lose=True)
                await engine.say(stored(900, 1))
                await eventually(lambda: view.depth(run_of(900, BLOCK)) == 1)
                assert view.depth(run_of(0, 3 * BLOCK)) == 2
                assert view.resyncs("gap") == 1
                assert view.engine.position.complete

    run(scene)


def test_rou_07_a_lost_last_word_is_found_by_asking_whether_the_publisher_is_there() -> None:
    async def scene() -> None:
        async with vllm() as engine, viewing(engine.events, engine.replay, probe=0.4) as view:
            await eventually(lambda: view.state is SourceState.LIVE)
            await engine.say(stored(0, 3))
            await eventually(lambda: view.depth(run_of(0, 3 * BLOCK)) == 3)
            await engine.say({"type": "AllBlocksCleared"}, lose=True)
            await eventually(lambda: view.depth(run_of(0, 3 * BLOCK)) == 0)

    run(scene)


def test_rou_09_a_dead_publisher_is_noticed_and_the_engine_placed_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgrove_gateway.kv_events.subscriber.ANSWER_S", 0.3)

    async def scene() -> None:
        async with vllm() as engine, viewing(engine.events, engine.replay, probe=0.4) as view:
            await eventually(lambda: view.state is SourceState.LIVE)
            await engine.say(stored(0, 3))
            await eventually(lambda: view.depth(run_of(0, 3 * BLOCK)) == 3)
            engine.answering = False
            await eventually(lambda: view.state is SourceState.STALE)
            assert view.engine.slot is None
            engine.answering = True
            await eventually(lambda: view.depth(run_of(0, 3 * BLOCK)) == 3)

    run(scene)


def test_rou_06_a_restarted_engine_is_believed_nothing_of_before() -> None:
    async def scene() -> None:
        async with vllm() as engine, viewing(engine.events, engine.replay) as view:
            await eventually(lambda: view.state is SourceState.LIVE)
            await engine.say(stored(0, 3))
            await engine.say(stored(100, 1))
            await eventually(lambda: view.depth(run_of(100, BLOCK)) == 1)
            engine.next, engine.history = 0, []
            await engine.say(stored(500, 2))
            await eventually(lambda: view.depth(run_of(500, 2 * BLOCK)) == 2)
            assert view.depth(run_of(0, 3 * BLOCK)) == 0
            assert view.resyncs("restart") == 1

    run(scene)


def test_an_engine_with_a_short_history_is_followed_from_there_and_says_so() -> None:
    async def scene() -> None:
        async with vllm() as engine:
            for start in (0, 100, 200):
                await engine.say(stored(start, 1))
            del engine.history[0]
            async with viewing(engine.events, engine.replay) as view:
                await eventually(lambda: view.depth(run_of(200, BLOCK)) == 1)
                assert b"snapshot" in engine.asked  # it was asked for a listing, and knows none
                assert not view.engine.position.complete
                await engine.say(removed(0), stored(300, 1))
                await eventually(lambda: view.depth(run_of(300, BLOCK)) == 1)

    run(scene)


def test_rou_10_another_block_size_is_refused_visibly() -> None:
    async def scene() -> None:
        async with vllm() as engine, viewing(engine.events, engine.replay, block=2 * BLOCK) as view:
            await engine.say(stored(0, 2))
            await eventually(lambda: view.state is SourceState.REFUSED)
            assert view.engine.position.refused == "block_size"
            assert view.engine.slot is None

    run(scene)


def test_our_own_export_is_followed_by_listing_where_its_history_is_short(tmp_path: Path) -> None:
    async def scene() -> None:
        rig = Exporting(tmp_path, slots=64)
        prompts = [run_of(start, 2 * BLOCK) for start in range(0, 1200, 100)]
        for prompt in prompts:
            rig.serve(prompt)
        history = rig.export._publisher._history
        rig.export.start()
        try:
            await eventually(lambda: len(history._kept) == len(prompts))
            while len(history._kept) > 3:
                history._kept.popleft()
            async with viewing(rig.export.address, rig.export.replay_address) as view:
                await eventually(lambda: view.depth(prompts[0]) == 2, rig.turn)
                assert view.engine.position.complete
                assert all(view.depth(prompt) == 2 for prompt in prompts)
                last = run_of(7000, 3 * BLOCK)
                rig.serve(last)
                await eventually(lambda: view.depth(last) == 3, rig.turn)
        finally:
            await asyncio.to_thread(rig.export.close)

    run(scene)
