"""Callers' arrays as the ops see them.

Role: take NumPy, CuPy and torch arrays without copying them, and refuse what a kernel could not work on with an error
that names the argument. Invariants: an `Operand` aliases the caller's memory; nothing here waits for a device.
Must not know: what any op computes.

Neither NumPy nor CuPy has a bfloat16 or an fp8 type: such arrays are 2-byte and 1-byte integers, whose meaning the
caller gives as ``dtype``. Torch tensors carry it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from kvgrove_kernels.errors import BadArgument, KernelsUnavailable

Element = Literal["float32", "float16", "bfloat16"]
"""What a KV pool that is not quantised holds."""

Ids = npt.NDArray[np.int32]
Array = Any
"""A `numpy.ndarray`, `cupy.ndarray` or `torch.Tensor`: CuPy has no types of its own, and is not always installed."""

_ELEMENT_STORAGE: Final = {"float32": ("float32",), "float16": ("float16",), "bfloat16": ("int16", "uint16")}


@dataclass(frozen=True, slots=True)
class Operand:
    """One argument: the caller's memory as a NumPy or CuPy array, and what its bits mean."""

    name: str
    array: Any
    element: str
    """An `Element`, or the array's own dtype name."""

    @property
    def on_device(self) -> bool:
        return not isinstance(self.array, np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def address(self) -> int:
        if isinstance(self.array, np.ndarray):
            return int(self.array.ctypes.data)
        return int(self.array.data.ptr)

    def part(self, first: int, count: int) -> Operand:
        """``count`` of its first axis, from ``first`` on: a view."""
        return Operand(self.name, self.array[first : first + count], self.element)

    def need_shape(self, shape: Sequence[int]) -> None:
        if self.shape != tuple(shape):
            raise BadArgument(self.name, f"shape must be {tuple(shape)}, not {self.shape}")

    def need_dtype(self, *names: str) -> None:
        if str(self.array.dtype) not in names:
            raise BadArgument(self.name, f"dtype must be {' or '.join(names)}, not {self.array.dtype}")

    def need_element(self) -> Element:
        """The KV type; raises `BadArgument` for anything that is not one."""
        for known in get_args(Element):
            if self.element == known:
                return known  # type: ignore[no-any-return]
        raise BadArgument(
            self.name,
            f"must hold float32, float16 or bfloat16 (2-byte integers with dtype='bfloat16'), not {self.element}",
        )

    def need_side_of(self, other: Operand) -> None:
        if self.on_device != other.on_device:
            side = "the device" if other.on_device else "the host"
            raise BadArgument(self.name, f"must be on {side}, where {other.name} is")

    def on_host(self) -> npt.NDArray[Any]:
        """The NumPy array; raises `BadArgument` for a device array, which reading would have to wait for."""
        if not isinstance(self.array, np.ndarray):
            raise BadArgument(self.name, "must be on the host")
        return self.array

    def need_alignment(self, size: int) -> None:
        """Only kernels that have no path for misaligned starts ask for this; on the host it does not matter."""
        if self.on_device and self.address % size:
            raise BadArgument(self.name, f"must start at a multiple of {size} bytes on the device")

    def need_apart_from(self, other: Operand) -> None:
        """Raises `BadArgument` where the two share memory: blocks move in no particular order."""
        before = self.address + self.nbytes <= other.address
        after = other.address + other.nbytes <= self.address
        if self.on_device == other.on_device and not (before or after):
            raise BadArgument(self.name, f"must not overlap {other.name}")


def operand(name: str, value: Array, dtype: str | None = None, *, writable: bool = False) -> Operand:
    """``value`` without a copy. Raises `BadArgument` for strided, read-only or foreign arrays."""
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        array, element = _from_torch(name, value)
        if dtype is not None and dtype != element:
            raise BadArgument("dtype", f"says {dtype}, but {name} is a torch tensor of {element}")
    elif isinstance(value, np.ndarray) or library == "cupy":
        array, element = value, dtype or str(value.dtype)
    else:
        raise BadArgument(name, f"must be a NumPy, CuPy or torch array, not {type(value).__qualname__}")
    if not array.flags.c_contiguous:
        raise BadArgument(name, "must be contiguous in C order: pass a copy, or the whole pool")
    if writable and isinstance(array, np.ndarray) and not array.flags.writeable:
        raise BadArgument(name, "must be writable")
    if element in _ELEMENT_STORAGE and str(array.dtype) not in _ELEMENT_STORAGE[element]:
        storage = " or ".join(_ELEMENT_STORAGE[element])
        raise BadArgument(name, f"{element} is stored as {storage} here, not as {array.dtype}")
    return Operand(name, array, element)


def _from_torch(name: str, tensor: Any) -> tuple[Any, str]:
    import torch  # noqa: PLC0415 - the caller has it loaded; the package itself runs without

    if not tensor.is_contiguous():
        raise BadArgument(name, "must be contiguous in C order: pass a copy, or the whole pool")
    element = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)
    elif tensor.dtype == torch.float8_e4m3fn:
        plain = plain.view(torch.uint8)
    if plain.device.type == "cpu":
        return plain.numpy(), element
    return cupy().from_dlpack(plain), element


def like(value: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
    """A new array of the same library and device as ``value``, not initialised."""
    library = type(value).__module__.partition(".")[0]
    if library == "torch":
        import torch  # noqa: PLC0415 - see `_from_torch`

        return torch.empty(
            tuple(shape), dtype=value.dtype if dtype is None else getattr(torch, dtype), device=value.device
        )
    module = np if isinstance(value, np.ndarray) else cupy()
    return module.empty(tuple(shape), dtype=value.dtype if dtype is None else dtype)


def cupy() -> Any:
    """The CuPy module. Raises `KernelsUnavailable` where it is not installed."""
    try:
        import cupy  # noqa: PLC0415 - an extra: only machines with a GPU have it
    except ModuleNotFoundError as error:
        raise KernelsUnavailable("device arrays need CuPy: install kvgrove[gpu]") from error
    return cupy


def block_ids(name: str, ids: Array | Sequence[int], slots: int, *, distinct: bool) -> Operand:
    """Block ids as an int32 operand.

    Host ids are checked: each in ``0..slots-1`` and, where blocks are written, none twice. Device ids are not, since
    reading them would wait for the device: kernels skip an id out of range, and of blocks written twice one wins.
    """
    if type(ids).__module__.partition(".")[0] in ("cupy", "torch"):
        given = operand(name, ids)
        if given.on_device:
            given.need_dtype("int32")
            _need_vector(given)
            return given
        ids = given.on_host()
    array = np.ascontiguousarray(ids)
    if array.size and array.dtype.kind not in "iu":
        raise BadArgument(name, f"must be integers, not {array.dtype}")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= slots):
        raise BadArgument(name, f"every id must be in 0..{slots - 1}")
    host = Operand(name, array.astype(np.int32), "int32")
    _need_vector(host)
    if distinct and np.unique(array).size != array.size:
        raise BadArgument(name, "no id may occur twice: blocks are written in no particular order")
    return host


def short_vector(name: str, values: Array | Sequence[float], dtype: str) -> Operand:
    """A vector of numbers as an operand of ``dtype``: host values are converted, device arrays must have it."""
    if type(values).__module__.partition(".")[0] in ("cupy", "torch"):
        given = operand(name, values)
        given.need_dtype(dtype)
    else:
        array = np.asarray(values)
        if array.size and array.dtype.kind not in ("iu" if dtype == "int32" else "iuf"):
            raise BadArgument(name, f"must convert to {dtype}, and is {array.dtype}")
        given = Operand(name, np.ascontiguousarray(array, dtype=dtype), dtype)
    _need_vector(given)
    return given


def _need_vector(ids: Operand) -> None:
    if len(ids.shape) != 1:
        raise BadArgument(ids.name, f"must have one dimension, not {len(ids.shape)}")
