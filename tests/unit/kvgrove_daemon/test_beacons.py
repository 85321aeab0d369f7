"""What a node tells of its builds: begun and ended once each, never more than the bounds, and soon enough to matter."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from runner_rig import BLOCK, Make, RunnerRig, rigs

from kvgrove_daemon.beacons import LONGEST_S, BuildBeacons
from kvgrove_daemon.event_log import EventLog
from kvgrove_daemon.followers import Followers
from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_gateway.router.placement import Choice, NodeView, Router
from kvgrove_protocol.data import ToGateway
from kvgrove_protocol.events import MAX_BUILD_KEYS, MAX_BUILDS, Beacons, EventBatch, NodeLoad, SnapshotChunk

LOAD = NodeLoad(0, 0, 0.0, 0.0, 1)


def keys(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") * 8 for number in range(count)]


def ended(beacons: Beacons | None) -> list[int]:
    return beacons.ended if beacons is not None else []


def test_a_build_is_told_once_and_its_end_once() -> None:
    beacons = BuildBeacons()
    beacons.begin("r", keys(8), 3, 2.0)
    beacons.begin("r", keys(8), 3, 2.0)
    told = beacons.take()
    assert told is not None
    assert [(build.number, build.keys, build.seconds) for build in told.begun] == [(0, b"".join(keys(8)[3:]), 4.0)]
    assert beacons.take() is None
    beacons.progress("r", 7)
    assert not beacons.news
    beacons.progress("r", 8)
    beacons.end("r")
    assert ended(beacons.take()) == [0]
    assert beacons.under_way() == []


def test_a_build_that_ends_before_it_was_told_is_not_told() -> None:
    beacons = BuildBeacons()
    beacons.begin("r", keys(2), 0, None)
    beacons.end("r")
    assert beacons.take() is None


def test_i11_bounded_no_more_builds_and_keys_than_agreed_are_told_and_the_rest_is_counted() -> None:
    beacons = BuildBeacons()
    for number in range(MAX_BUILDS + 3):
        beacons.begin(str(number), keys(MAX_BUILD_KEYS + 50), 10, 10_000.0)
    told = beacons.take()
    assert told is not None
    assert len(told.begun) == len(beacons.under_way()) == MAX_BUILDS
    assert beacons.untold == 3
    assert {len(build.keys) for build in told.begun} == {MAX_BUILD_KEYS * 32}
    assert {build.seconds for build in told.begun} == {LONGEST_S}
    beacons.progress("0", 10 + MAX_BUILD_KEYS)  # what was told is READY; that the prompt is longer is no matter
    assert ended(beacons.take()) == [0]
    beacons.begin("late", keys(1), 0, None)
    assert len(beacons.under_way()) == MAX_BUILDS


def test_nothing_is_told_where_nothing_is_computed() -> None:
    beacons = BuildBeacons()
    beacons.begin("all there", keys(4), 4, 1.0)
    assert not beacons.news


# -- through a real cache, engine and model, to the router of a gateway that did not send the request ------------------


class OtherGateway:
    """Follows the node of a rig, beside an idle node that holds nothing."""

    def __init__(self, rig: RunnerRig) -> None:
        self.rig = rig
        self.wire: list[ToGateway] = []
        self.node = Followers(rig.log, lambda _, message: self.wire.append(message))
        self.index = BlockIndex(10_000)
        self.views = {name: NodeResidency(self.index, Metrics(), name) for name in ("builder", "idle")}
        for name, view in self.views.items():
            view.begin("boot", 0.0, "start")
            if name == "idle":
                view.chunk(SnapshotChunk("boot", -1, 0, True, b""), 0.0)
        self.router = Router(self.index, clock=lambda: 0.0)
        self.node.add(b"g", {"host": rig.store.snapshot()}, LOAD)
        self.hear()

    def hear(self) -> None:
        self.node.flush(LOAD)
        while self.wire:
            match self.wire.pop(0):
                case EventBatch() as batch:
                    assert self.views["builder"].batch(batch, 0.0) is None
                case SnapshotChunk() as chunk:
                    assert self.views["builder"].chunk(chunk, 0.0) is None

    def choose(self, prompt_keys: list[bytes], tokens: int) -> Choice:
        """The builder is busier than the other one."""
        views = [
            NodeView(name, view.slot, queued_tokens=100 if name == "builder" else 0, requests=0,
                     prefill_tokens_per_s=1000.0)
            for name, view in self.views.items()
        ]  # fmt: skip
        return self.router.choose(views, tokens, prompt_keys, BLOCK)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[[str], Path]) -> Iterator[Make]:
    with rigs(tmp_path_factory.mktemp("digests"), tiny_model("llama")) as maker:
        yield maker


PROMPT = [random.Random(1).randrange(300, 1000) for _ in range(20 * BLOCK)]


def prompt_keys(rig: RunnerRig) -> list[bytes]:
    """Of what runs now."""
    (active,) = rig.runner.roster.of(b"gateway", "1")
    assert active.work is not None
    return list(active.work.build.keys)


def test_other_gateways_send_a_cold_prefix_where_it_is_being_computed(make: Make) -> None:
    rig = make()
    other = OtherGateway(rig)
    rig.ask("1", PROMPT)
    wanted = prompt_keys(rig)
    assert other.choose(wanted, len(PROMPT)).decision.node == "idle"
    other.hear()
    choice = other.choose(wanted, len(PROMPT))
    assert choice.decision.node == "builder"
    assert choice.resident_blocks == 0  # nothing is READY: it is told, not stored
    rig.drain()
    other.hear()
    assert rig.log.beacons.under_way() == []
    assert other.choose(wanted, len(PROMPT)).resident_blocks == len(wanted)


def test_a_gateway_that_starts_meanwhile_hears_of_it_too(make: Make) -> None:
    rig = make()
    rig.ask("1", PROMPT)
    wanted = prompt_keys(rig)
    assert OtherGateway(rig).choose(wanted, len(PROMPT)).decision.node == "builder"
    rig.drain()


@pytest.mark.parametrize("how", ["cancelled", "stale", "link lost"])
def test_a_build_that_comes_to_nothing_steers_nobody_any_more(make: Make, how: str) -> None:
    rig = make()
    other = OtherGateway(rig)
    rig.ask("1", PROMPT)
    wanted = prompt_keys(rig)
    other.hear()
    assert other.choose(wanted, len(PROMPT)).decision.node == "builder"
    if how == "cancelled":
        rig.cancel("1")
    elif how == "stale":
        rig.move_fence()
        rig.turn()
    else:
        other.views["builder"].end()
    other.hear()
    assert other.choose(wanted, len(PROMPT)).decision.node == "idle"
    rig.drain()


def test_cold_requests_are_not_told_of(make: Make) -> None:
    rig = make()
    rig.lease = False
    rig.ask("1", PROMPT)
    assert not rig.log.beacons.news
    rig.drain()


def test_what_followers_with_a_gap_missed_brings_the_beacons_again() -> None:
    log = EventLog("boot")
    log.beacons.begin("r", keys(2), 0, None)
    first = log.flush(LOAD)
    log.beacons.end("r")
    second = log.flush(LOAD)
    assert first is not None
    assert second is not None
    assert log.since("boot", -1) == [first, second]
    assert log.flush(LOAD) is None


def test_older_gateways_read_past_beacons_and_newer_ones_do_without() -> None:
    log = EventLog("boot")
    log.stored(keys(2))
    log.beacons.begin("r", keys(4), 2, None)
    batch = log.flush(LOAD)
    assert batch is not None
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))

    class Older(msgspec.Struct, frozen=True, tag="event_batch", tag_field="type"):
        boot: str
        seq: int

    assert msgspec.convert(raw, Older) == Older("boot", 0)
    del raw["beacons"]
    assert msgspec.convert(raw, EventBatch).beacons is None
