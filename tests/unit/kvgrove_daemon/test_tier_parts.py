"""The parts of a tier one by one: break-even, slots, health, host memory, pools of a node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pools_rig import node_pools
from tier_rig import LAYOUT, body_of

from kvgrove_daemon.cache.arena import SharedMemoryArena
from kvgrove_daemon.cache.tiers import health as healths
from kvgrove_daemon.cache.tiers.break_even import Found, MeasuredSpeed, Probes, Speed, blocks_worth_loading
from kvgrove_daemon.cache.tiers.health import Health, HealthEvent, HealthState, step
from kvgrove_daemon.cache.tiers.host import HostMedium
from kvgrove_daemon.cache.tiers.medium import Facts, MediumCorrupt, MediumFailed
from kvgrove_daemon.cache.tiers.slots import ClearedSlots
from kvgrove_daemon.node_pools import NodePools, PoolTooSmall, PoolUnsupported
from kvgrove_protocol.events import DEVICE, DISK, HOST

MIB = 1 << 20


# -- break-even


def worth(found: list[Found], rate: float) -> int:
    return blocks_worth_loading(found, block_bytes=MIB, block_tokens=32, prefill_tokens_per_s=rate)


def test_per_05_a_load_is_worth_it_only_when_it_beats_computing() -> None:
    disk = Speed(0.002, 100 * MIB)  # 10 ms a block, and 2 ms for each load
    assert worth([Found(10, disk)], 32 / 0.0105) == 10  # computing a block takes 10.5 ms
    assert worth([Found(3, disk)], 32 / 0.0105) == 0  # so few do not make up for the fixed part
    assert worth([Found(10, disk)], 32 / 0.009) == 0
    assert worth([Found(10, disk)], 0.0) == 10  # nothing measured yet


def test_per_05_a_fast_tier_is_loaded_without_the_slow_one_behind_it() -> None:
    host, disk = Speed(0.0, 10_000 * MIB), Speed(0.05, 10 * MIB)
    assert worth([Found(4, host), Found(4, disk)], 32 / 0.001) == 4
    assert worth([Found(4, disk), Found(40, host)], 32 / 0.05) == 44  # worth it for what lies behind
    assert worth([], 100.0) == 0


def test_per_05_rates_follow_what_loads_took_and_a_refusal_now_and_then_is_tried() -> None:
    speed = MeasuredSpeed(Speed(0.001, 1e9))
    for _ in range(100):
        speed.record(64 * MIB, moving_s=0.64, waiting_s=0.02)
    assert speed.now.bytes_per_s == pytest.approx(100 * MIB, rel=0.01)
    assert speed.now.fixed_s == pytest.approx(0.02, rel=0.01)
    probes = Probes(every=4)
    assert [probes.overrule() for _ in range(8)] == [False, False, False, True] * 2


# -- slots


def test_a_slot_is_handed_out_again_only_when_it_was_cleared() -> None:
    slots = ClearedSlots(4)
    assert slots.allocate(4) is not None
    slots.free([0, 1])
    with slots.evicting():
        slots.free([2])
    assert (slots.empty_count, slots.free_count, slots.uncleared) == (0, 3, 3)
    assert slots.allocate(1) is None
    with pytest.raises(ValueError, match="given back already"):
        slots.free([1])
    assert slots.begin_clearing(1) == ([2], [0])
    with pytest.raises(ValueError, match="given back already"):
        slots.free([0])
    slots.cleared([2])
    slots.not_erased([0])
    assert slots.begin_clearing(9) == ([], [0, 1])
    slots.cleared([0, 1])
    assert (slots.empty_count, slots.uncleared) == (3, 0)


# -- health


def test_the_table_of_health_is_the_one_in_its_docstring() -> None:
    assert healths.__doc__ is not None
    drawn = re.findall(r"^    (\w+) --(\w+)--> (\w+)$", healths.__doc__, re.MULTILINE)
    table = {(HealthState[a.upper()], HealthEvent(e)): HealthState[b.upper()] for a, e, b in drawn}
    assert table == dict(healths.TRANSITIONS)
    assert table.keys() == {(state, event) for state in HealthState for event in HealthEvent}


def test_pauses_grow_to_a_bound_and_end_with_the_first_success() -> None:
    health, pauses, now = Health(), [], 0.0
    for _ in range(9):
        health = step(health, HealthEvent.FAILED, "tier_failed", now)
        assert health == step(health, HealthEvent.FULL, health.reason, now)  # what was under way lengthens nothing
        pauses.append(health.pause_s)
        assert not health.may_write(now)
        now = health.until
        assert health.may_write(now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert step(health, HealthEvent.WORKED, "", now) == Health()


# -- host memory


@pytest.fixture
def medium() -> Iterator[HostMedium]:
    made = HostMedium(SharedMemoryArena(LAYOUT, 3, f"kvgrove-host-medium-{os.getpid():x}"))
    yield made
    made.close()


def facts(number: int) -> Facts:
    key = bytes([number]) * 32
    return Facts(namespace="ns", root=b"r" * 32, key=key, parent=b"r" * 32, depth=0, tokens=b"\0" * 16)


def test_iso_12_host_memory_answers_only_what_was_written_for_the_block(medium: HostMedium) -> None:
    one, other = facts(1), facts(2)
    medium.write_many([(0, one, body_of(one.key)), (1, other, body_of(other.key))])
    assert medium.read(0, one) == body_of(one.key)
    with pytest.raises(MediumCorrupt):
        medium.read(1, one)
    with pytest.raises(MediumCorrupt):
        medium.read(1, other)  # it was set aside
    with pytest.raises(MediumFailed, match="bytes"):
        medium.write_many([(1, other, b"short")])
    medium.release([0])
    with pytest.raises(MediumCorrupt):
        medium.read(0, one)


def test_host_memory_is_empty_after_an_erase(medium: HostMedium) -> None:
    one = facts(1)
    medium.write_many([(2, one, body_of(one.key))])
    assert medium.erase([2]) == 1
    assert medium._arena.read_block(2) == bytes(LAYOUT.block_bytes)
    with pytest.raises(MediumCorrupt):
        medium.read(2, one)


# -- a node's pools


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[NodePools]:
    with node_pools(tmp_path) as pools:
        yield pools


def test_on_a_node_without_a_gpu_the_pool_is_host_memory_and_the_disk_lies_below(pools: NodePools) -> None:
    pool = pools.of(LAYOUT, "none", {HOST: 64 * LAYOUT.block_bytes, DISK: MIB})
    assert (pool.tier, [tier.name for tier in pool.stack.lower]) == (HOST, [DISK])
    assert pool is pools.of(LAYOUT, "none", {HOST: MIB, DISK: MIB})
    assert pools.directories() == {pool.disk.directory.name} if pool.disk is not None else set()


def test_a_disk_that_another_daemon_owns_is_a_tier_less_under_a_named_reason(pools: NodePools, tmp_path: Path) -> None:
    owner = pools.of(LAYOUT, "none", {HOST: 64 * LAYOUT.block_bytes, DISK: MIB})
    other = NodePools(pools.surface)
    pool = other.of(LAYOUT, "none", {HOST: 64 * LAYOUT.block_bytes, DISK: MIB})
    assert owner.stack.lower
    assert not pool.stack.lower
    assert [error.code for error in pool.missing.values()] == ["tier_directory_busy"]
    other.close()


@pytest.mark.parametrize(
    ("pool_bytes", "error", "field"),
    [
        ({DEVICE: MIB}, PoolUnsupported, "spec.pool"),
        ({HOST: 10}, PoolTooSmall, "spec.pool.host"),
        ({HOST: MIB, DISK: 10}, PoolTooSmall, "spec.pool.disk"),
    ],
)
def test_pools_that_cannot_be_name_the_field(
    pools: NodePools, pool_bytes: dict[str, int], error: type[PoolTooSmall | PoolUnsupported], field: str
) -> None:
    with pytest.raises(error) as raised:
        pools.of(LAYOUT, "none", pool_bytes)
    assert raised.value.field == field
    assert not pools.all()
