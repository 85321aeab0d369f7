"""The device tier: a GPU arena with what only a GPU needs around it.

Role: per-layer views and block tables for attention, a pinned host mirror, copies to and from it on streams of their
own, export to another process of the pod. Invariants:

- A copy under way holds its lease: the bytes it reads or writes neither move nor are reused before its event has
  come (I5). `poll` gives leases back, and nothing here waits but `close`.
- A copy starts after what the compute stream was given before it; who computes on copied-in blocks waits by
  `Copy.before`.
- At most ``max_copies`` copies are under way in each direction (I11); memory that is not there is `PoolNoRoom` or
  `DeviceOutOfMemory`, each with its code, and leaves the pool as it was.

Must not know: which blocks are worth copying, keys, sequences. Single-threaded, as the node's cache is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.dlpack

from kvgrove_daemon.cache.arena import TORCH_DTYPES, CupyArena
from kvgrove_daemon.cache.layout import KVLayout
from kvgrove_daemon.cache.segments import PoolNoRoom
from kvgrove_kernels import ops
from kvgrove_protocol.errors import Retryable

Direction = Literal["out", "in"]
"""Out of the device into the mirror, or back."""

_MIRROR_BITS = {4: np.int32, 2: np.int16}


class CopiesFull(Retryable):
    """As many copies are under way as may be: try again after a `poll`."""

    code = "copies_full"

    def __init__(self, direction: Direction, limit: int) -> None:
        super().__init__(f"{limit} copies {direction} are under way already", field="max_copies")


class Event(Protocol):
    """What CuPy's events offer: a point in a stream."""

    @property
    def done(self) -> bool:
        """Whether the stream has got there. Does not wait."""

    def synchronize(self) -> None:
        """Wait for it."""


class Held(Protocol):
    """A lease, of this process or another."""

    def release(self) -> bool:
        """Give it back."""


class CopiesInFlight:
    """The leases of copies under way on one stream, in the order of their events."""

    def __init__(self, direction: Direction, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._direction = direction
        self._limit = limit
        self._copies: deque[tuple[Event, Held]] = deque()
        self.refused = 0
        """How often the bound was reached."""

    def __len__(self) -> int:
        return len(self._copies)

    def need_room(self) -> None:
        """Raises `CopiesFull`, counted; to be asked before a copy is started, since one that runs cannot be refused."""
        self.poll()
        if len(self._copies) >= self._limit:
            self.refused += 1
            raise CopiesFull(self._direction, self._limit)

    def hold(self, event: Event, lease: Held) -> None:
        self._copies.append((event, lease))

    def poll(self) -> int:
        """Give back the leases of copies that have ended; how many. Events of one stream come in order."""
        ended = 0
        while self._copies and self._copies[0][0].done:
            _, lease = self._copies.popleft()
            lease.release()
            ended += 1
        return ended

    def drain(self) -> None:
        """Wait for every copy and give its lease back."""
        while self._copies:
            event, lease = self._copies.popleft()
            event.synchronize()
            lease.release()


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy that was started."""

    event: Any

    def before(self, stream: Any) -> None:
        """Let what ``stream`` (a CuPy stream) is given from now on start only after the copy."""
        stream.wait_event(self.event)


class DevicePool:
    """A `CupyArena` and its mirror of ``mirror_slots`` blocks. Raises `PoolNoRoom` where the host cannot pin them."""

    def __init__(self, arena: CupyArena, mirror_slots: int, *, max_copies: int = 64) -> None:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        self._cupy = cupy
        self.arena = arena
        self.mirror = _pinned_mirror(cupy, arena.layout, mirror_slots)
        """``(slots, layers, 2, block_size, kv_heads, head_dim)`` as bits; valid until `close`."""
        self._streams = {way: cupy.cuda.Stream(non_blocking=True) for way in ("out", "in")}
        self.copies: dict[Direction, CopiesInFlight] = {
            "out": CopiesInFlight("out", max_copies),
            "in": CopiesInFlight("in", max_copies),
        }

    @property
    def layout(self) -> KVLayout:
        return self.arena.layout

    def planes(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of one layer, ``(slots * block_size, kv_heads, head_dim)``: views, valid until `close`."""
        return self.arena.pool[layer, 0], self.arena.pool[layer, 1]

    def block_table(self, chains: Sequence[Sequence[int]]) -> torch.Tensor:
        """``(sequences, longest chain)`` of int32 on the device; shorter rows end in -1, which is no slot."""
        width = max((len(chain) for chain in chains), default=0)
        rows = torch.full((len(chains), width), -1, dtype=torch.int32).pin_memory()
        for row, chain in zip(rows, chains, strict=True):
            row[: len(chain)] = torch.as_tensor(chain, dtype=torch.int32)
        return rows.to(self.arena.pool.device, non_blocking=True)

    def start_copy(
        self, way: Direction, slots: Sequence[int], mirror_slots: Sequence[int], lease: Held, *, compute: Any
    ) -> Copy:
        """Copy blocks ``slots`` out to ``mirror_slots``, or in from them, after what stream ``compute`` has been given.

        ``lease`` covers both sides, and is released by `poll` once the copy has ended; where this raises (`CopiesFull`,
        `BadArgument`, `DeviceOutOfMemory`) it stays the caller's.
        """
        self.copies[way].need_room()
        stream = self._streams[way]
        stream.wait_event(compute.record())
        with stream:
            ops.copy_blocks(
                self.arena.pool,
                slots,
                self.mirror,
                mirror_slots,
                block_size=self.layout.block_size,
                to="mirror" if way == "out" else "pool",
            )
            event = stream.record()
        self.copies[way].hold(event, lease)
        return Copy(event)

    def poll(self) -> int:
        """Give back the leases of copies that have ended; how many."""
        return sum(copies.poll() for copies in self.copies.values())

    def ipc_handle(self) -> bytes:
        """What `ImportedPool` of another process of the same pod opens the whole allocation by."""
        return bytes(self._cupy.cuda.runtime.ipcGetMemHandle(self.arena.pool.data_ptr()))

    def close(self) -> None:
        """Wait for the copies under way, then give the memory back. Calling it again does nothing."""
        for copies in self.copies.values():
            copies.drain()
        self.mirror = self.mirror[:0].copy()
        self.arena.close()


class ImportedPool:
    """Another process's pool, mapped into this one: the same bytes. The owner must outlive it."""

    def __init__(self, handle: bytes, layout: KVLayout, num_slots: int, device: int = 0) -> None:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        self._runtime = cupy.cuda.runtime
        size = layout.pool_bytes(num_slots)
        with cupy.cuda.Device(device):
            self._address = self._runtime.ipcOpenMemHandle(handle)
            memory = cupy.cuda.UnownedMemory(self._address, size, self, device)
            bits = cupy.ndarray(
                (size // layout.item_bytes,),
                dtype=_MIRROR_BITS[layout.item_bytes],
                memptr=cupy.cuda.MemoryPointer(memory, 0),
            )
        self.pool: torch.Tensor = torch.utils.dlpack.from_dlpack(bits).view(TORCH_DTYPES[layout.dtype])
        self.pool = self.pool.view(layout.pool_shape(num_slots))

    def close(self) -> None:
        """Unmap it; views of `pool` must be gone. Calling it again does nothing."""
        if self._address:
            self.pool = torch.empty(0)
            self._runtime.ipcCloseMemHandle(self._address)
            self._address = 0


def _pinned_mirror(cupy: Any, layout: KVLayout, slots: int) -> npt.NDArray[Any]:
    """Not from CuPy's pool of pinned memory, which rounds up to powers of two."""
    shape = (slots, layout.num_layers, 2, layout.block_size, layout.num_kv_heads, layout.head_dim)
    size = slots * layout.block_bytes
    bits = _MIRROR_BITS[layout.item_bytes]
    if size == 0:
        return np.empty(shape, dtype=bits)
    try:
        memory = cupy.cuda.PinnedMemory(size)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise PoolNoRoom(size, 0, "give the mirror fewer slots, or let the container lock more memory") from error
    pointer = cupy.cuda.PinnedMemoryPointer(memory, 0)
    return np.frombuffer(pointer, dtype=bits, count=size // layout.item_bytes).reshape(shape)
