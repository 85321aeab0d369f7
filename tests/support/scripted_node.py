"""A scripted ROUTER in a daemon's place, for what a real daemon never does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import zmq
import zmq.asyncio

from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.node_link import NodeLink
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.settings import Limits
from kvgrove_link.clock import boottime
from kvgrove_protocol.control import NodeEndpoint
from kvgrove_protocol.data import (
    TO_GATEWAY,
    TO_NODE,
    ClientHello,
    Done,
    Generate,
    Ping,
    Sampling,
    ServerHello,
    ToGateway,
    ToNode,
    Usage,
)
from kvgrove_protocol.identity import Caller

DONE = Done(request_id="r", finish_reason="stop", usage=Usage(prompt=1, reused=0, completion=1, missed={}))


class Peer:
    """The node's side."""

    def __init__(self, context: zmq.asyncio.Context, name: str = "n") -> None:
        self.name = name
        self.socket = context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.peer = b""

    async def receive(self, kind: type[ToNode]) -> ToNode:
        """The next message that is no ping; it must be of ``kind``."""
        while True:
            self.peer, frame = await self.socket.recv_multipart()
            message = TO_NODE.decode(frame)
            if not isinstance(message, Ping) or kind is Ping:
                assert isinstance(message, kind), message
                return message

    async def send(self, *messages: ToGateway | bytes) -> None:
        for message in messages:
            frame = message if isinstance(message, bytes) else TO_GATEWAY.encode(message)
            await self.socket.send_multipart([self.peer, frame])

    def endpoint(self, boot: str = "b1", placement: str = "") -> NodeEndpoint:
        return NodeEndpoint(member=self.name, boot=boot, address=self.address, placement=placement)

    async def greet(self, boot: str = "b1") -> None:
        await self.receive(ClientHello)
        await self.send(ServerHello(member=self.name, boot=boot, version=1))


async def eventually(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - effects that announce themselves nowhere
            await asyncio.sleep(0.01)


def make_link(
    context: zmq.asyncio.Context, endpoint: NodeEndpoint, residency: NodeResidency, metrics: Metrics, limits: Limits
) -> NodeLink:
    return NodeLink(
        context,
        endpoint,
        member="g",
        boot="gb",
        residency=residency,
        limits=limits,
        metrics=metrics,
        clock=boottime,
        random=Random(1),
    )


@asynccontextmanager
async def linked(**limits: float) -> AsyncIterator[tuple[NodeLink, Peer, BlockIndex, Metrics]]:
    context = zmq.asyncio.Context()
    peer, index, metrics = Peer(context), BlockIndex(1000), Metrics()
    residency = NodeResidency(index, metrics)
    link = make_link(context, peer.endpoint(), residency, metrics, Limits(**limits))  # type: ignore[arg-type]
    running = asyncio.create_task(link.run())
    try:
        yield link, peer, index, metrics
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        peer.socket.close(0)
        context.term()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # type: ignore[arg-type]


def generate(request_id: str = "r") -> Generate:
    return Generate(
        request_id=request_id, namespace_uid="u", generation=b"g", fence=None, caller=Caller(), tokens=b"", spans=[],
        sampling=Sampling(), max_new_tokens=1,
    )  # fmt: skip
