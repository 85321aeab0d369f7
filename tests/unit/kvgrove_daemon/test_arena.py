"""Arena memory: views, not copies; bytes out and in; segments that are reserved, named, locked and cleaned up."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.earlier_boots import EarlierSegments
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import (
    SHM,
    PoolNoRoom,
    Segment,
    boots_with_segments,
    remove_dead_segments,
    segment_name,
)

NODE = f"arena-test-{os.getpid()}"


@pytest.fixture(params=["float32", "bfloat16", "float16"])
def arena(request: pytest.FixtureRequest) -> Iterator[SharedMemoryArena]:
    layout = KVLayout(num_layers=3, num_kv_heads=2, head_dim=8, dtype=request.param, block_size=4)
    arena = SharedMemoryArena(layout, 6, segment_name(NODE, "0a", 0))
    yield arena
    arena.close()


def test_consecutive_slots_are_one_view_per_layer(arena: SharedMemoryArena) -> None:
    run = arena.pool[1, 0, 2 * 4 : 5 * 4]
    assert run.untyped_storage().data_ptr() == arena.pool.untyped_storage().data_ptr()
    assert run.is_contiguous()
    assert run.shape == (12, 2, 8)


def test_a_block_comes_back_as_it_went(arena: SharedMemoryArena) -> None:
    arena.pool.copy_(torch.randn(arena.pool.shape))
    before = arena.pool.clone()
    data = arena.read_block(3)
    assert len(data) == arena.layout.block_bytes
    arena.wipe([3])
    assert arena.read_block(3) == bytes(arena.layout.block_bytes)
    assert torch.equal(arena.pool[:, :, :12], before[:, :, :12]), "only the wiped slot changed"
    arena.write_block(3, data)
    assert torch.equal(arena.pool, before)


def test_block_bytes_are_in_layer_order(arena: SharedMemoryArena) -> None:
    arena.pool[2, 1, 5 * 4 + 3] = 1  # the last layer's V of the last token of slot 5
    data = arena.read_block(5)
    tail = 2 * 8 * arena.layout.item_bytes
    assert data[:-tail] == bytes(len(data) - tail)
    assert data[-tail:] != bytes(tail)


@pytest.mark.parametrize("slot", [-1, 6])
def test_a_slot_outside_is_refused(arena: SharedMemoryArena, slot: int) -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.5"):
        arena.read_block(slot)


def test_a_block_of_the_wrong_size_is_refused(arena: SharedMemoryArena) -> None:
    with pytest.raises(ValueError, match="not 3"):
        arena.write_block(0, b"abc")


def test_views_outlive_close_and_the_name_does_not() -> None:
    arena = SharedMemoryArena(KVLayout(1, 1, 4, "float32", 2), 2, segment_name(NODE, "0b", 0))
    view = arena.pool[0, 0]
    view.fill_(3)
    arena.close()
    arena.close()
    assert not (SHM / segment_name(NODE, "0b", 0)).exists()
    assert float(view.sum()) == 3 * view.numel()


def test_no_room_is_said_before_anything_is_made() -> None:
    layout = KVLayout(80, 8, 128, "float32", 32)
    with pytest.raises(PoolNoRoom, match=r"needs \d+ MiB, \d+ MiB free; .*/dev/shm"):
        SharedMemoryArena(layout, 10_000_000, segment_name(NODE, "0c", 0))
    assert not list(SHM.glob(f"kvgrove-{NODE}-*"))


HOLDER = """
import sys
from kvgrove_daemon.cache.segments import Segment
segment = Segment(sys.argv[1], 4096)
print("made", flush=True)
sys.stdin.read()
"""


def test_segments_of_a_dead_boot_go_and_those_of_a_live_one_stay() -> None:
    name = segment_name(NODE, "dead", 0)
    command = [sys.executable, "-c", HOLDER, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"made\n"
        assert remove_dead_segments(NODE, "0d") == {}, "its owner lives"
        assert (SHM / name).exists()
        owner.kill()
    assert remove_dead_segments("other", "0d") == {}, "it belongs to another node"
    assert remove_dead_segments(NODE, "dead") == {}, "it belongs to this boot"
    assert remove_dead_segments(NODE, "0d") == {name: 4096}
    assert not (SHM / name).exists()


def test_starters_of_one_name_do_not_take_each_others_segments_for_dead_ones() -> None:
    problems: list[str] = []

    def start_often(boot: str) -> None:
        for number in range(300):
            remove_dead_segments(NODE + "-crowd", boot)
            segment = Segment(segment_name(NODE + "-crowd", boot, number), 4096)
            if not (SHM / segment.name).exists():
                problems.append(segment.name)
            segment.close()

    with ThreadPoolExecutor(4) as starters:
        for done in [starters.submit(start_often, f"{boot}a") for boot in range(4)]:
            done.result()
    assert problems == []
    assert boots_with_segments(NODE + "-crowd") == set()


def test_i8_who_still_maps_a_dead_boots_segment_reads_zeros() -> None:
    name = segment_name(NODE, "dead", 1)
    (SHM / name).write_bytes(b"canary" * 4096)
    with (SHM / name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        earlier = EarlierSegments(NODE, "0d", frozenset({"dead"}))
        assert earlier.look() == 0
        assert earlier.wiped == 1
        assert mapped[:].count(0) == len(mapped)


def test_i8_an_earlier_boot_that_lives_is_waited_for_and_a_namesake_elsewhere_is_not() -> None:
    own, namesake = segment_name(NODE, "dead", 2), segment_name(NODE, "beef", 0)
    with ExitStack() as stack:
        for name in (own, namesake):
            command = [sys.executable, "-c", HOLDER, name]
            owner = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(owner.kill)
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"made\n"
        earlier = EarlierSegments(NODE, "0d", frozenset({"dead"}))
        assert (earlier.look(), earlier.wiped) == (1, 0)
    assert (earlier.look(), earlier.wiped) == (0, 2)


@pytest.mark.parametrize(("node", "boot"), [("a/b", "0"), ("", "0"), ("a", "xyz"), ("a", "")])
def test_names_that_could_not_be_read_back_are_refused(node: str, boot: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        segment_name(node, boot, 0)
