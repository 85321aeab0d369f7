"""What runs kernels: a narrow interface, and CuPy behind it.

Role: scratch memory, small uploads and launches, all ordered on one stream. Invariants: nothing here waits for the
device; what a launch needs stays allocated until the stream is past it, because CuPy's pool gives memory back in the
order of the stream that asked. Must not know: what the ops compute, argument checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvgrove_kernels.arrays import Operand, cupy
from kvgrove_kernels.compile import CompileCache, Variant, default_directory
from kvgrove_kernels.errors import DeviceOutOfMemory

Scalar = np.int32 | np.uint32 | np.int64 | np.uint64 | np.float32
"""One kernel argument, of exactly the parameter's size. Pointers are uint64."""

Argument = Scalar | Operand | None
"""Operands and not addresses, so that their memory is held until the launch is under way; None is a null pointer."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel to start. ``grid`` counts blocks of ``threads`` threads."""

    variant: Variant
    kernel: str
    grid: tuple[int, int, int]
    threads: int
    args: tuple[Argument, ...]

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """The arguments as the kernel takes them, operands by address."""
        return tuple(_scalar(arg) for arg in self.args)


def _scalar(arg: Argument) -> Scalar:
    if arg is None:
        return np.uint64(0)
    return np.uint64(arg.address) if isinstance(arg, Operand) else arg


class Device(Protocol):
    """Where kernels run."""

    @property
    def multiprocessors(self) -> int:
        """How many there are: grids are sized by it."""

    def scratch(self, shape: Sequence[int], dtype: str) -> Operand:
        """Memory that is not initialised, for the launches that follow on this stream. Raises `DeviceOutOfMemory`."""

    def upload(self, array: npt.NDArray[Any]) -> Operand:
        """A small host array on the device, without waiting."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy ``size`` bytes between the device and pinned host memory, both given by address."""

    def is_pinned(self, operand: Operand) -> bool:
        """Whether the device can address this host memory itself."""

    def launch(self, launch: Launch) -> None:
        """Start it after everything launched before. Raises `KernelCompileFailed` on its first use."""


@dataclass(slots=True)
class CupyDevice:
    """One GPU, on whatever CuPy's current stream is. Compiles on first use, and keeps what it loaded."""

    multiprocessors: int
    cache: CompileCache
    _functions: dict[tuple[Variant, str], Any] = field(default_factory=dict)

    def scratch(self, shape: Sequence[int], dtype: str) -> Operand:
        module = cupy()
        try:
            return Operand("scratch", module.empty(tuple(shape), dtype=dtype), dtype)
        except module.cuda.memory.OutOfMemoryError as error:
            raise DeviceOutOfMemory(f"no scratch memory for {dtype} of {tuple(shape)}: use smaller batches") from error

    def upload(self, array: npt.NDArray[Any]) -> Operand:
        # By way of CuPy's pinned pool: a copy from pageable memory would wait.
        return Operand("upload", cupy().asarray(array, blocking=False), str(array.dtype))

    def copy(self, target: int, source: int, size: int) -> None:
        runtime = cupy().cuda.runtime
        stream = cupy().cuda.get_current_stream()
        runtime.memcpyAsync(target, source, size, runtime.memcpyDefault, stream.ptr)

    def is_pinned(self, operand: Operand) -> bool:
        runtime = cupy().cuda.runtime
        return bool(runtime.pointerGetAttributes(operand.address).type == runtime.memoryTypeHost)

    def launch(self, launch: Launch) -> None:
        key = (launch.variant, launch.kernel)
        function = self._functions.get(key)
        if function is None:
            module = cupy().RawModule(path=str(self.cache.cubin(launch.variant)))
            function = self._functions[key] = module.get_function(launch.kernel)
        function(launch.grid, (launch.threads,), launch.scalars)


@cache
def cupy_device(ordinal: int) -> CupyDevice:
    """The GPU ``ordinal`` with its compile cache. Raises `KernelsUnavailable` without CuPy."""
    gpu = cupy().cuda.Device(ordinal)
    arch = f"sm_{gpu.compute_capability}"
    return CupyDevice(int(gpu.attributes["MultiProcessorCount"]), CompileCache(arch, default_directory()))
