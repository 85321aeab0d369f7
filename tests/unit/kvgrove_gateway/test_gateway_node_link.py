"""The link to a node that misbehaves: a scripted ROUTER in the daemon's place, for what a real daemon never does."""

import asyncio
import time

import msgspec
import pytest
import zmq
from scripted_node import DONE, eventually, generate, linked, run

from kvgrove_gateway.errors import FrameTooLarge, NodeLost, NodeRefused, SlowClient
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.node_link import PULSE_S, LinkState
from kvgrove_protocol.codec import MAX_FRAME_BYTES
from kvgrove_protocol.data import BundleChunk, BundleRequest, Cancel, Done, Error, Generate, Subscribe, Token
from kvgrove_protocol.events import EventBatch, NodeLoad, Removed, SnapshotChunk, Stored

LOAD = NodeLoad(queued_prefill_tokens=7, running=0, prefill_tokens_per_s=5.0, decode_steps_per_s=0.0, free_blocks=0)
KEYS = [bytes([number]) * 32 for number in range(4)]


def losses(metrics: Metrics, reason: str) -> float:
    return metrics.registry.get_sample_value("kvgrove_gateway_node_losses_total", {"reason": reason}) or 0.0


def test_residency_follows_snapshot_batches_and_gaps() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, index, metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            assert link.residency.slot is None  # in doubt: not matched against
            await peer.send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=b"".join(KEYS[:2])))
            await peer.send(EventBatch(boot="b1", seq=1, events=[Stored(KEYS[2]), Removed(KEYS[1])], load=LOAD))
            await eventually(lambda: link.load == LOAD)
            slot = link.residency.slot
            assert slot is not None
            assert [index.holds(slot, key) for key in KEYS] == [True, False, True, False]
            assert link.backlog.tokens == 7
            await peer.send(EventBatch(boot="b1", seq=3, events=[Stored(KEYS[3])], load=LOAD))
            await peer.receive(Subscribe)
            assert link.residency.slot is None
            assert metrics.registry.get_sample_value("kvgrove_router_resyncs_total", {"reason": "gap"}) == 1
            await peer.send(SnapshotChunk(boot="b1", seq=3, index=0, last=True, keys=KEYS[3]))
            await eventually(lambda: link.residency.slot is not None)
            assert link.residency.slot is not None
            assert index.holds(link.residency.slot, KEYS[3])
            assert not index.holds(link.residency.slot, KEYS[0])

    run(scene)


def test_iso_13_bad_frames_are_counted_and_the_link_lives() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            await peer.send(b"", b"\x80\x04\x95pickle", b"\x81\xa4type\xa7nothing", b"\xc1" * 1000)
            await peer.send(EventBatch(boot="b1", seq=0, events=[Stored(b"short")], load=LOAD))
            await peer.send(SnapshotChunk(boot="b1", seq=0, index=0, last=True, keys=b"odd"))
            stream = link.submit(generate(), 10)
            await peer.receive(Generate)
            await peer.send(DONE)
            assert await stream.next() == DONE
            assert (metrics.registry.get_sample_value("kvgrove_gateway_malformed_frames_total") or 0) >= 5

    run(scene)


def test_a_dropped_connection_fails_its_requests_at_once_and_is_dialled_anew() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, metrics):
            await peer.greet()
            await eventually(lambda: link.state is LinkState.READY)
            stream = link.submit(generate(), 10)
            await peer.receive(Subscribe)
            await peer.receive(Generate)
            port = peer.address.rpartition(":")[2]
            peer.socket.close(0)
            with pytest.raises(NodeLost):
                await stream.next()
            assert (link.requests, link.backlog.tokens, link.state) == (0, 0, LinkState.DOWN)
            assert losses(metrics, "disconnected") >= 1
            with pytest.raises(NodeLost):
                link.submit(generate(), 1)
            peer.socket = link._context.socket(zmq.ROUTER)  # the same address, as after a restart
            peer.socket.bind(f"tcp://127.0.0.1:{port}")
            await peer.greet()
            await eventually(lambda: link.state is LinkState.READY)

    run(scene)


def test_a_silent_node_is_given_up() -> None:
    async def scene() -> None:
        async with linked(node_silence_s=1.5) as (link, peer, _, metrics):
            await peer.greet()
            await eventually(lambda: link.state is LinkState.READY)
            stream = link.submit(generate(), 10)
            with pytest.raises(NodeLost):
                await stream.next()
            assert losses(metrics, "silent") == 1

    run(scene)


def test_rou_08_another_boot_is_not_taken_for_the_one_of_the_plan() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, metrics):
            await peer.greet(boot="b2")
            await eventually(lambda: losses(metrics, "other_boot") >= 1)
            assert link.state is LinkState.DOWN
            await peer.greet(boot="b1")
            await eventually(lambda: link.state is LinkState.READY)

    run(scene)


def test_a_refusal_ends_only_its_request() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, _metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            bad, good = link.submit(generate("bad"), 10), link.submit(generate("r"), 5)
            assert link.backlog.tokens == 15
            await peer.receive(Generate)
            await peer.receive(Generate)
            await peer.send(Error(request_id="bad", code="queue_full", message="", retryable=True), DONE)
            with pytest.raises(NodeRefused) as caught:
                await bad.next()
            assert (caught.value.code, caught.value.retryable) == ("queue_full", True)
            assert await good.next() == DONE
            assert (link.requests, link.backlog.tokens) == (0, 0)

    run(scene)


def test_leaving_cancels_once_and_only_what_is_under_way() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, _metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            link.submit(generate("a"), 10)
            await peer.receive(Generate)
            link.release("a")
            link.release("a")
            link.release("never")
            assert await peer.receive(Cancel) == Cancel(request_id="a")
            link.submit(generate("r"), 10)
            await peer.receive(Generate)  # no second cancel came before it

    run(scene)


def test_a_reader_that_lags_is_cut_off_and_the_node_freed() -> None:
    async def scene() -> None:
        async with linked(stream_messages=3) as (link, peer, _, _metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            stream = link.submit(generate("a"), 10)
            await peer.receive(Generate)
            await peer.send(*[Token(request_id="a", token_ids=[number]) for number in range(5)])
            assert await peer.receive(Cancel) == Cancel(request_id="a")
            with pytest.raises(SlowClient):
                await stream.next()

    run(scene)


def test_a_bundle_comes_in_chunks() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, _metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            fetching = asyncio.create_task(link.bundle(b"d"))
            for number in range(6):
                assert await peer.receive(BundleRequest) == BundleRequest(digest=b"d", chunk=number)
                await peer.send(BundleChunk(digest=b"d", chunk=number, chunks=6, body=bytes([number])))
            assert await fetching == bytes(range(6))
            missing = asyncio.create_task(link.bundle(b"x"))
            await peer.receive(BundleRequest)
            await peer.send(BundleChunk(digest=b"x", chunk=0, chunks=0))
            with pytest.raises(NodeLost):
                await missing

    run(scene)


def test_a_request_that_no_node_could_take_ends_alone() -> None:
    async def scene() -> None:
        async with linked() as (link, peer, _, _metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            stream = link.submit(generate("small"), 10)
            with pytest.raises(FrameTooLarge):
                link.submit(msgspec.structs.replace(generate("large"), tokens=bytes(MAX_FRAME_BYTES)), 10)
            with pytest.raises(OverflowError):
                link.submit(msgspec.structs.replace(generate("odd"), max_new_tokens=10**30), 10)
            assert link.requests == 1
            await peer.receive(Generate)
            await peer.send(msgspec.structs.replace(DONE, request_id="small"))
            assert isinstance(await stream.next(), Done)
            assert link.state is LinkState.READY

    run(scene)


def test_a_loop_that_stood_still_does_not_blame_the_node() -> None:
    async def scene() -> None:
        async with linked(node_silence_s=0.5) as (link, peer, _, metrics):
            await peer.greet()
            await peer.receive(Subscribe)
            stream = link.submit(generate(), 10)
            await peer.receive(Generate)
            time.sleep(2 * PULSE_S)  # noqa: ASYNC251 - the loop of gateway and node alike
            await asyncio.sleep(1.5 * PULSE_S)
            await peer.send(DONE)
            assert await stream.next() == DONE
            assert losses(metrics, "silent") == 0

    run(scene)
