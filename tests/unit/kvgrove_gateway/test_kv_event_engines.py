"""Engines that are not ours, named in a gateway's settings: followed over real sockets, and shown.

``KVGROVE_KV_EVENTS`` names a folder of captured payloads (``<run>-seq<number>.msgpack``); without it the tests that
read them are skipped.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
from block_store_rig import run_of
from kv_event_rig import BLOCK, Exporting

from kvgrove_gateway.kv_events.engines import ForeignEngines, root
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.settings import BadSettings, EventSource, parse
from kvgrove_protocol.chain import block_keys

REQUIRED = ["--plain-links", "--member", "g", "--control", "tcp://127.0.0.1:1", "--keys", "keys.yaml"]
URL = "http://engine:8000"


def settings(*options: str) -> object:
    return parse([*REQUIRED, *options]).kv_event_sources


def test_flags_name_an_engine_and_its_two_sockets() -> None:
    assert settings() == []
    assert settings("--kv-event-source", f"{URL}=tcp://engine:5557") == [EventSource(URL, "tcp://engine:5557")]
    both = settings(
        "--kv-event-replay-source", f"{URL}=ipc:///run/replay", "--kv-event-source", f"{URL}=ipc:///run/events"
    )
    assert both == [EventSource(URL, "ipc:///run/events", "ipc:///run/replay")]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kv-event-source", "tcp://engine:5557"], "expected URL=ENDPOINT"),
        (["--kv-event-source", f"{URL}=tcp://engine"], "expected URL=ENDPOINT"),
        (["--kv-event-source", f"{URL}=http://engine:5557"], "expected URL=ENDPOINT"),
        (["--kv-event-replay-source", f"{URL}=tcp://engine:5558"], "name its live source too"),
        (["--kv-event-source", f"{URL}=tcp://a:1", "--kv-event-source", f"{URL}=tcp://b:1"], "given twice"),
        ([part for at in range(65) for part in ("--kv-event-source", f"http://e{at}=tcp://e:1")], "64 are the most"),
        (["--kv-event-block-size", "0"], "must be above 0"),
    ],
)
def test_flags_that_cannot_be_followed_are_refused_with_the_cure(options: list[str], words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        settings(*options)


class Following:
    """Engines of the settings, and what a scrape says of them."""

    def __init__(self, context: zmq.asyncio.Context, source: EventSource, block_size: int) -> None:
        self.metrics = Metrics()
        self.engines = ForeignEngines(
            context, [source], block_size=block_size, capacity=10_000, metrics=self.metrics, clock=time.monotonic
        )

    def shown(self, name: str, **labels: str) -> float:
        self.engines.show()
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def blocks(self) -> float:
        return self.shown("kvgrove_router_engine_blocks", engine=URL)

    def state(self, name: str) -> bool:
        return self.shown("kvgrove_router_engines", state=name) == 1

    def depth(self, raw: bytes, block_size: int) -> int:
        slot = self.engines.engines[URL].slot
        if slot is None:
            return -1
        keys = block_keys(root(None, None), raw, block_size=block_size)
        return (self.engines.index.longest_matches({URL: slot}, keys) or {})[URL]


@asynccontextmanager
async def following(source: EventSource, block_size: int) -> AsyncIterator[Following]:
    context = zmq.asyncio.Context()
    view = Following(context, source, block_size)
    running = asyncio.create_task(view.engines.run())
    try:
        yield view
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        context.destroy(0)


async def eventually(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def captured(run: str) -> list[bytes]:
    folder = os.environ.get("KVGROVE_KV_EVENTS")
    if not folder:
        pytest.skip("KVGROVE_KV_EVENTS is not set: give the folder of captured payloads")
    return [path.read_bytes() for path in sorted(Path(folder).glob(f"{run}-seq*.msgpack"))]


@pytest.mark.parametrize("run", ["ex", "custom"])
def test_what_a_real_vllm_published_fills_the_index_and_is_shown(run: str) -> None:
    """Two runs: hashes as numbers and as bytes. Its last batch clears everything and stores nine blocks."""
    payloads = captured(run)
    event = next(each for each in msgspec.msgpack.decode(payloads[-1])[1] if each["type"] == "BlockStored")
    tokens = b"".join(token.to_bytes(4, "little") for token in event["token_ids"])

    async def scene() -> None:
        context = zmq.asyncio.Context()
        publisher = context.socket(zmq.PUB)
        address = f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}"
        try:
            async with following(EventSource(URL, address), block_size=32) as view:
                await eventually(lambda: view.state("live"))
                for number, payload in enumerate(payloads[:2]):
                    await publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
                await eventually(lambda: view.blocks >= 18)
                for number, payload in enumerate(payloads[2:], start=2):
                    await publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
                await eventually(lambda: view.blocks == 9 and view.depth(tokens, 32) == 9)
            async with following(EventSource(URL, address), block_size=16) as view:
                await eventually(lambda: view.state("live"))
                await publisher.send_multipart([b"", bytes(8), payloads[0]])
                await eventually(lambda: view.state("refused"))  # ROU-10: blocks of another size
                assert view.blocks == 0
        finally:
            context.destroy(0)

    asyncio.run(scene())


def test_our_own_export_is_followed_like_any_engine(tmp_path: Path) -> None:
    exporting = Exporting(tmp_path)
    prompt = run_of(0, 5 * BLOCK)

    async def scene() -> None:
        exporting.serve(prompt)
        exporting.export.start()
        try:
            assert exporting.export.replay_address is not None
            source = EventSource(URL, exporting.export.address, exporting.export.replay_address)
            async with following(source, block_size=BLOCK) as view:
                await eventually(lambda: view.blocks == 5)
                assert view.state("live")
        finally:
            exporting.export.close()

    asyncio.run(scene())
