"""The memory that KV blocks lie in: one contiguous allocation of ``num_slots`` blocks of one layout.

Role: typed views of pool memory, on the host (POSIX shared memory) or on a GPU (CuPy, un-pooled), behind one
interface. Invariants: views never copy; a slot's bytes are ``[layer][K, V]`` parts of ``block_size`` tokens each,
strided over the whole pool (`KVLayout`), so consecutive slots are consecutive tokens in every layer.
Must not know: which slots are free, what they hold, who reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.utils.dlpack

from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import PoolNoRoom, Segment

if TYPE_CHECKING:
    import numpy.typing as npt

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# NumPy and CuPy have no bfloat16, and need none: storage is moved as bits, torch alone does arithmetic on it.
_BITS = {4: np.int32, 2: np.int16}


class Arena(Protocol):
    """What every backend offers. Views are valid until `close`."""

    layout: KVLayout
    num_slots: int
    pool: torch.Tensor
    """``(layers, 2, num_slots * block_size, kv_heads, head_dim)`` in the layout's dtype."""

    @property
    def shared_name(self) -> str | None:
        """The name another process maps this arena by, or None where there is none."""

    def read_block(self, slot: int) -> bytes:
        """A copy of one block: ``layout.block_bytes`` bytes in the order ``[layer][K, V][token][head][dim]``."""

    def write_block(self, slot: int, data: bytes) -> None:
        """The opposite of `read_block`; raises ValueError when ``data`` is not exactly one block."""

    def wipe(self, slots: Iterable[int]) -> None:
        """Overwrite whole slots with zeros."""

    def close(self) -> None:
        """Give the memory back once the last view is gone. Calling it again does nothing."""


class _TorchArena:
    """What both backends share: everything that works on ``pool`` alone."""

    def __init__(self, layout: KVLayout, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        self.layout = layout
        self.num_slots = num_slots
        self.pool: torch.Tensor = torch.empty(0)

    def _block(self, slot: int) -> torch.Tensor:
        if not 0 <= slot < self.num_slots:
            raise ValueError(f"slot {slot} is outside 0..{self.num_slots - 1}")
        size = self.layout.block_size
        return self.pool[:, :, slot * size : (slot + 1) * size]

    def read_block(self, slot: int) -> bytes:
        block = self._block(slot).contiguous().view(torch.uint8).cpu()
        return block.numpy().tobytes()

    def write_block(self, slot: int, data: bytes) -> None:
        if len(data) != self.layout.block_bytes:
            raise ValueError(f"a block has {self.layout.block_bytes} bytes, not {len(data)}")
        block = self._block(slot)
        # bytearray: torch wants writable memory even to read from.
        block.copy_(torch.frombuffer(bytearray(data), dtype=self.pool.dtype).view(block.shape))

    def wipe(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._block(slot).zero_()


class SharedMemoryArena(_TorchArena):
    """Host memory in a shared segment. Raises `PoolNoRoom`."""

    def __init__(self, layout: KVLayout, num_slots: int, name: str) -> None:
        super().__init__(layout, num_slots)
        self._segment = Segment(name, layout.pool_bytes(num_slots))
        bits: npt.NDArray[Any] = np.frombuffer(self._segment.memory, dtype=_BITS[layout.item_bytes])
        self.pool = torch.from_numpy(bits).view(TORCH_DTYPES[layout.dtype]).view(layout.pool_shape(num_slots))

    @property
    def shared_name(self) -> str | None:
        return self._segment.name

    def close(self) -> None:
        self.pool = torch.empty(0)
        self._segment.close()


class CupyArena(_TorchArena):
    """GPU memory from a plain ``cudaMalloc`` of its own: CUDA IPC exports whole allocations, and a piece of CuPy's
    sub-allocating pool would export its neighbours too. Raises `PoolNoRoom`."""

    def __init__(self, layout: KVLayout, num_slots: int, device: int = 0) -> None:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        super().__init__(layout, num_slots)
        size = layout.pool_bytes(num_slots)
        with cupy.cuda.Device(device):
            try:
                memory = cupy.cuda.Memory(size)
            except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError) as error:
                free, _ = cupy.cuda.runtime.memGetInfo()
                raise PoolNoRoom(size, free, "give the pool fewer bytes, or free memory of the GPU") from error
            bits = cupy.ndarray(
                (size // layout.item_bytes,),
                dtype=_BITS[layout.item_bytes],
                memptr=cupy.cuda.MemoryPointer(memory, 0),
            )
            bits.fill(0)
            cupy.cuda.get_current_stream().synchronize()
        # DLPack keeps `bits`, and with it the allocation, alive for as long as torch holds a view.
        self.pool = (
            torch.utils.dlpack.from_dlpack(bits).view(TORCH_DTYPES[layout.dtype]).view(layout.pool_shape(num_slots))
        )

    @property
    def shared_name(self) -> str | None:
        return None

    def close(self) -> None:
        self.pool = torch.empty(0)
