"""Which nodes a gateway links to and sends to, over plans that come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import pytest
import zmq.asyncio
from scripted_node import DONE, Peer, eventually, generate, make_link, run

from kvgrove_gateway.errors import Unavailable
from kvgrove_gateway.fleet import Fleet
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.router.builds import NOTED_BLOCKS
from kvgrove_gateway.router.placement import BUILDING_BLOCKS
from kvgrove_gateway.settings import Limits
from kvgrove_protocol.data import BundleChunk, BundleRequest, Generate, Subscribe
from kvgrove_protocol.events import SnapshotChunk

KEYS = [bytes([number]) * 32 for number in range(4)]
BLOCK = 32


@asynccontextmanager
async def fleet_of(
    *names: str, metrics: Metrics | None = None, placements: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[tuple[Fleet, dict[str, Peer]]]:
    """A fleet linked to scripted nodes that hold nothing."""
    context = zmq.asyncio.Context()
    metrics, limits = metrics or Metrics(), Limits()
    peers = {name: Peer(context, name) for name in names}
    fleet = Fleet(
        lambda endpoint, residency: make_link(context, endpoint, residency, metrics, limits),
        limits=limits,
        metrics=metrics,
        clock=time.perf_counter,
    )
    try:
        fleet.follow([peer.endpoint(placement=placements.get(name, "")) for name, peer in peers.items()])
        for peer in peers.values():
            await peer.greet()
            await peer.receive(Subscribe)
        await eventually(lambda: len(fleet.ready) == len(names))
        yield fleet, peers
    finally:
        await fleet.close()
        for peer in peers.values():
            peer.socket.close(0)
        context.term()


def test_a_prompt_goes_to_a_node_of_its_models_placement_whatever_others_hold() -> None:
    async def scene() -> None:
        async with fleet_of("a", "b", "c", placements={"a": "small", "b": "large"}) as (fleet, peers):
            await peers["a"].send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=b"".join(KEYS)))
            await eventually(lambda: fleet.place(4 * BLOCK, KEYS, BLOCK).link.name == "a")
            assert fleet.place(4 * BLOCK, KEYS, BLOCK, placement="small").link.name == "a"
            assert fleet.place(4 * BLOCK, KEYS, BLOCK, placement="large").link.name in ("b", "c")
            assert fleet.place(4 * BLOCK, KEYS, BLOCK, placement="large", without={"b"}).link.name == "c"
            with pytest.raises(Unavailable):
                fleet.place(4 * BLOCK, KEYS, BLOCK, placement="large", without={"b", "c"})

    run(scene)


def test_the_node_that_holds_the_prefix_is_chosen() -> None:
    async def scene() -> None:
        async with fleet_of("a", "b", "c") as (fleet, peers):
            await peers["b"].send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=b"".join(KEYS[:3])))
            await eventually(lambda: fleet.place(4 * BLOCK, KEYS, BLOCK).decision.matched_tokens > 0)
            placed = fleet.place(4 * BLOCK, KEYS, BLOCK)
            assert (placed.link.name, placed.decision.matched_tokens) == ("b", 3 * BLOCK)
            assert fleet.place(4 * BLOCK, KEYS, BLOCK, without={"b"}).link.name != "b"
            with pytest.raises(Unavailable):
                fleet.place(4 * BLOCK, KEYS, BLOCK, without={"a", "b", "c"})

    run(scene)


def test_the_last_token_never_counts_as_held() -> None:
    async def scene() -> None:
        async with fleet_of("a") as (fleet, peers):
            await peers["a"].send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=b"".join(KEYS)))
            await eventually(lambda: fleet.place(4 * BLOCK, KEYS, BLOCK).decision.matched_tokens > 0)
            assert fleet.place(4 * BLOCK, KEYS, BLOCK).decision.matched_tokens == 4 * BLOCK - 1

    run(scene)


def test_a_session_stays_on_its_node_while_nothing_speaks_against_it() -> None:
    async def scene() -> None:
        async with fleet_of("a", "b", "c") as (fleet, _peers):
            placed = fleet.place(100, [], BLOCK, session=b"s")
            first = placed.link
            fleet.dispatched(placed)
            first.submit(generate("busy"), 1)  # one request more than the others have
            assert fleet.place(100, [], BLOCK, session=b"s").link is first
            assert fleet.place(100, [], BLOCK).link is not first

    run(scene)


def test_prompts_that_are_not_noted_as_builds_are_counted() -> None:
    async def scene() -> None:
        metrics = Metrics()
        async with fleet_of("a", metrics=metrics) as (fleet, peers):
            await peers["a"].send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=KEYS[0]))
            await eventually(lambda: fleet.place(4 * BLOCK, KEYS, BLOCK).decision.matched_tokens > 0)
            slot = fleet.place(4 * BLOCK, KEYS, BLOCK).choice.slot
            assert slot is not None
            others = [number.to_bytes(32, "big") for number in range(NOTED_BLOCKS)]
            for _ in range(BUILDING_BLOCKS // NOTED_BLOCKS):
                fleet.router.builds.begin(slot, others, 0, 60.0, time.perf_counter())
            assert metrics.registry.get_sample_value("kvgrove_router_builds_unnoted_total") == 0
            fleet.dispatched(fleet.place(4 * BLOCK, KEYS, BLOCK))
            assert metrics.registry.get_sample_value("kvgrove_router_builds_unnoted_total") == 1

    run(scene)


def test_a_node_that_leaves_the_plan_finishes_what_it_began() -> None:
    async def scene() -> None:
        async with fleet_of("a", "b") as (fleet, peers):
            link = next(link for link in fleet.ready if link.name == "a")
            stream = link.submit(generate(), 10)
            await peers["a"].receive(Generate)
            fleet.follow([peers["b"].endpoint()])
            assert [each.name for each in fleet.ready] == ["b"]
            assert fleet.states() == {"down": 0, "ready": 1, "retired": 1}
            await peers["a"].send(DONE)
            assert await stream.next() == DONE

    run(scene)


def test_a_planner_that_starts_anew_interrupts_nothing() -> None:
    """Its first plan names no node; the gateway goes on with those it is linked to until they are named again."""

    async def scene() -> None:
        async with fleet_of("a", "b") as (fleet, peers):
            before = set(map(id, fleet.ready))
            fleet.follow([])
            assert set(map(id, fleet.ready)) == before
            fleet.follow([peer.endpoint() for peer in peers.values()])
            assert set(map(id, fleet.ready)) == before
            assert fleet.states()["retired"] == 0

    run(scene)


def test_rou_08_another_boot_is_another_link_without_the_old_ones_blocks() -> None:
    async def scene() -> None:
        async with fleet_of("a") as (fleet, peers):
            peer = peers["a"]
            await peer.send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=b"".join(KEYS)))
            await eventually(lambda: fleet.place(4 * BLOCK, KEYS, BLOCK).decision.matched_tokens > 0)
            fleet.follow([peer.endpoint("b2")])
            await peer.greet("b2")
            await peer.receive(Subscribe)
            await peer.send(SnapshotChunk(boot="b2", seq=0, index=0, last=True, keys=b""))
            await eventually(lambda: [link.endpoint.boot for link in fleet.ready] == ["b2"])
            assert fleet.place(4 * BLOCK, KEYS, BLOCK).decision.matched_tokens == 0

    run(scene)


def test_a_retired_link_ends_when_its_node_goes() -> None:
    async def scene() -> None:
        async with fleet_of("a") as (fleet, peers):
            fleet.follow([])
            peers["a"].socket.close(0)
            await eventually(lambda: fleet.states()["retired"] == 0)
            assert not fleet.ready

    run(scene)


def test_a_bundle_is_asked_of_the_next_node_where_one_has_none() -> None:
    async def scene() -> None:
        async with fleet_of("a", "b") as (fleet, peers):
            fetching = asyncio.create_task(fleet.bundle(b"d"))
            await peers["a"].receive(BundleRequest)
            await peers["a"].send(BundleChunk(digest=b"d", chunk=0, chunks=0))
            await peers["b"].receive(BundleRequest)
            await peers["b"].send(BundleChunk(digest=b"d", chunk=0, chunks=1, body=b"all"))
            assert await fetching == b"all"

    run(scene)
