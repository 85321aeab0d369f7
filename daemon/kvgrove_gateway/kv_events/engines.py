"""The engines that are not ours which the settings name: each is followed, and what is known of it is shown.

Role: one subscriber for each engine, over an index that is theirs alone: as long as no request is sent to such an
engine, what it holds must not push out what is known of our nodes (I11). Invariants: an engine that is gone, refused or
silent ends nothing else. Must not know: requests, our nodes.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import zmq.asyncio

from kvgrove_gateway.kv_events.engine import EngineResidency
from kvgrove_gateway.kv_events.source import SourceState
from kvgrove_gateway.kv_events.subscriber import KvEventSubscriber
from kvgrove_gateway.kv_events.translate import Translator
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.settings import EventSource
from kvgrove_protocol.canonical import encode

SHOWN_S = 1.0


def root(lora: str | None, salt: str | None) -> bytes:
    """Where chains of an engine's prompts begin: no realm of ours, so that they meet none of our keys."""
    return hashlib.sha256(encode(["kvgrove foreign engine", lora, salt])).digest()


class ForeignEngines:
    """`run` follows all of them until cancelled."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        sources: Sequence[EventSource],
        *,
        block_size: int,
        capacity: int,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        """``block_size``: tokens of a block; an engine that has another is refused. ``capacity``: blocks of all."""
        self.index = BlockIndex(capacity)
        self._metrics = metrics

        def followed(source: EventSource) -> KvEventSubscriber:
            engine = EngineResidency(
                self.index, metrics, lambda: Translator(root, block_size=block_size, capacity=capacity)
            )
            return KvEventSubscriber(context, source.events, source.replay, engine, metrics, clock=clock)

        self._subscribers = {source.engine: followed(source) for source in sources}

    @property
    def engines(self) -> dict[str, EngineResidency]:
        """By the URL that the settings name."""
        return {name: subscriber.engine for name, subscriber in self._subscribers.items()}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, subscriber in self._subscribers.items():
                tasks.create_task(subscriber.run(), name=f"events of {name}")
            tasks.create_task(self._sweep(), name="engines' sweep")

    async def _sweep(self) -> None:
        while True:  # noqa: ASYNC110 - paced on purpose: it must never take the loop for long
            await asyncio.sleep(0 if self.index.sweep() else SHOWN_S)

    def show(self) -> None:
        """Set the gauges."""
        states = Counter(engine.position.state for engine in self.engines.values())
        for state in SourceState:
            self._metrics.engines.labels(state.value).set(states[state])
        for name, engine in self.engines.items():
            self._metrics.engine_blocks.labels(name).set(engine.blocks)
