"""Builds that a node told of, as notes in a gateway's index: bounded, short-lived, and never somebody else's."""

from __future__ import annotations

import math

from kvgrove_gateway.metrics import Metrics
from kvgrove_gateway.residency import NodeResidency
from kvgrove_gateway.router.builds import Builds
from kvgrove_gateway.router.heard import LONGEST_S, HeardBuilds
from kvgrove_gateway.router.index import BlockIndex
from kvgrove_protocol.events import MAX_BUILD_KEYS, MAX_BUILDS, Beacons, Build, EventBatch, NodeLoad, SnapshotChunk

LOAD = NodeLoad(0, 0, 0.0, 0.0, 1)


def joined(start: int, count: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") * 8 for number in range(start, start + count))


def building(index: BlockIndex, slot: int, start: int, count: int) -> int:
    keys = [joined(number, 1) for number in range(start, start + count)]
    found = index.weighed_matches({"n": slot}, keys)
    assert found is not None
    return found["n"].building


def test_i11_bounded_more_builds_and_keys_than_agreed_are_left_out_and_counted() -> None:
    index = BlockIndex(100_000)
    slot, heard = index.open_slot(), HeardBuilds(index)
    heard.begin(slot, [Build(number, joined(number * 1000, 2), 5.0) for number in range(MAX_BUILDS + 7)], 0.0)
    assert (len(heard), heard.left_out) == (MAX_BUILDS, 7)
    heard.end(slot, [0, 999])
    heard.begin(slot, [Build(500, joined(500_000, MAX_BUILD_KEYS + 9), 5.0)], 0.0)
    assert building(index, slot, 500_000, MAX_BUILD_KEYS + 9) == MAX_BUILD_KEYS


def test_notes_run_out_by_themselves_whatever_the_node_said() -> None:
    index = BlockIndex(1000)
    slot, heard = index.open_slot(), HeardBuilds(index)
    for number, seconds in enumerate((1.0, 1e12, math.nan, math.inf)):
        heard.begin(slot, [Build(number, joined(number * 10, 2), seconds)], 100.0)
    heard.expire(slot, 101.0)
    assert [building(index, slot, number * 10, 2) for number in range(4)] == [0, 2, 2, 2]
    heard.expire(slot, 100.0 + LONGEST_S)
    assert (len(heard), len(index)) == (0, 0)


def test_the_gateways_own_note_and_the_nodes_stand_beside_each_other() -> None:
    index = BlockIndex(1000)
    slot, heard, own = index.open_slot(), HeardBuilds(index), Builds(index, 1000)
    keys = [joined(number, 1) for number in range(9)]

    def known() -> int:
        found = index.weighed_matches({"n": slot}, keys) or {}
        own.credit(found, {"n": slot}, keys)
        return found["n"].building

    own.begin(slot, keys[:8], 0, 1.0, 0.0)
    heard.begin(slot, [Build(0, joined(0, 4), 60.0), Build(1, joined(0, 6), 60.0)], 0.0)
    heard.begin(slot, [Build(1, joined(0, 6), 60.0)], 0.0)  # again, from a replay
    assert known() == 8
    own.expire(100.0)
    assert known() == 6
    heard.end(slot, [1])
    assert known() == 4
    heard.end(slot, [0])
    assert (known(), len(index)) == (0, 0)


def test_a_slot_that_ended_takes_its_notes_along_and_the_next_one_is_left_alone() -> None:
    index = BlockIndex(1000)
    view = NodeResidency(index, Metrics(), "n")
    view.begin("b", 0.0, "start")
    view.chunk(SnapshotChunk("b", -1, 0, True, b"", builds=[Build(3, joined(0, 4), 60.0)]), 0.0)
    assert view.slot is not None
    assert building(index, view.slot, 0, 4) == 4
    view.end()
    while index.sweep():
        pass
    assert len(index) == 0
    view.begin("b2", 0.0, "start")
    view.chunk(SnapshotChunk("b2", -1, 0, True, b""), 0.0)
    view.batch(EventBatch("b2", 0, [], LOAD, beacons=Beacons([Build(3, joined(0, 2), 60.0)])), 0.0)
    assert view.slot is not None
    assert building(index, view.slot, 0, 4) == 2
    view.tick(61.0)
    assert building(index, view.slot, 0, 4) == 0
