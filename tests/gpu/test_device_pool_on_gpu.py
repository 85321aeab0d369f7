"""The device pool on a real GPU: mirror, leases of copies, export to another process, no room."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kvgrove_daemon.cache.arena import CupyArena
from kvgrove_daemon.cache.device_pool import CopiesFull, DevicePool
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import PoolNoRoom
from kvgrove_kernels import ops

LAYOUT = KVLayout(num_layers=8, num_kv_heads=4, head_dim=64, dtype="bfloat16", block_size=32)
SLOTS = 16


class Hold:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> bool:
        self.released += 1
        return True


@pytest.fixture
def pool() -> Iterator[DevicePool]:
    pool = DevicePool(CupyArena(LAYOUT, SLOTS), mirror_slots=SLOTS, max_copies=2)
    pool.arena.pool.copy_(torch.randn(pool.arena.pool.shape, generator=torch.Generator().manual_seed(0)))
    torch.cuda.synchronize()
    yield pool
    pool.close()


def test_blocks_go_out_and_come_back(pool: DevicePool) -> None:
    import cupy

    compute, lease = cupy.cuda.Stream(non_blocking=True), Hold()
    wanted = [pool.arena.read_block(slot) for slot in (3, 9)]
    pool.start_copy("out", [3, 9], [5, 6], lease, compute=compute).event.synchronize()
    assert [pool.mirror[place].tobytes() for place in (5, 6)] == wanted
    assert (pool.poll(), lease.released) == (1, 1)
    pool.start_copy("in", [0, 1], [5, 6], lease, compute=compute).before(compute)
    compute.synchronize()
    assert [pool.arena.read_block(slot) for slot in (0, 1)] == wanted


def test_i5_a_lease_covers_its_copy_and_i11_copies_are_bounded(pool: DevicePool) -> None:
    import cupy

    compute, leases = cupy.cuda.Stream(non_blocking=True), [Hold(), Hold(), Hold()]
    busy = cupy.zeros(1 << 28, cupy.float32)
    cupy.cuda.get_current_stream().synchronize()
    with compute:
        for _ in range(200):
            busy += 1
    for lease in leases[:2]:
        pool.start_copy("out", [0], [0], lease, compute=compute)
    assert pool.poll() == 0
    with pytest.raises(CopiesFull):
        pool.start_copy("out", [0], [0], leases[2], compute=compute)
    assert [lease.released for lease in leases] == [0, 0, 0]
    compute.synchronize()
    pool.copies["out"].drain()
    assert [lease.released for lease in leases] == [1, 1, 0]


def test_block_tables_and_planes(pool: DevicePool) -> None:
    table = pool.block_table([[3, 1], [7]])
    assert table.cpu().tolist() == [[3, 1], [7, -1]]
    keys, _ = pool.planes(2)
    assert keys.data_ptr() == pool.arena.pool[2, 0].data_ptr()


# Another process gets nothing but the handle and the layout, as a container of the same pod would.
READ_AND_MARK = """
import sys
import torch
from kvgrove_daemon.cache.device_pool import ImportedPool
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_kernels import ops
layout = KVLayout(num_layers=8, num_kv_heads=4, head_dim=64, dtype="bfloat16", block_size=32)
imported = ImportedPool(bytes.fromhex(sys.stdin.read()), layout, 16)
print(ops.checksum_blocks(imported.pool, range(16), block_size=32).get().tolist())
imported.pool[:, :, :32] = 1.0
torch.cuda.synchronize()
imported.close()
"""


def test_another_process_sees_and_writes_the_same_bytes(pool: DevicePool) -> None:
    expected = ops.checksum_blocks(pool.arena.pool, range(SLOTS), block_size=32).get().tolist()
    command = [sys.executable, "-c", READ_AND_MARK]
    other = subprocess.run(command, input=pool.ipc_handle().hex(), capture_output=True, text=True, check=False)
    assert other.returncode == 0, other.stderr
    assert json.loads(other.stdout) == expected
    assert (pool.arena.pool[:, :, :32] == 1).all()


def test_no_room_is_a_named_reason_and_leaves_the_device_usable() -> None:
    _, total = torch.cuda.mem_get_info()
    with pytest.raises(PoolNoRoom) as refused:
        CupyArena(LAYOUT, 2 * total // LAYOUT.block_bytes)
    assert refused.value.code == "pool_no_room"
    arena = CupyArena(LAYOUT, 2)
    assert np.frombuffer(arena.read_block(1), np.uint8).sum() == 0
    arena.close()
