"""A `Device` whose kernels are the CUDA sources themselves, compiled for the host and run by `simt.hpp`.

Role: build each variant once (kept by digest under a folder), load it, start launches in a chosen thread order.
Invariants: nothing of the sources is changed; a launch's arguments must match the kernel's parameters in size.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvgrove_kernels.arrays import Operand
from kvgrove_kernels.compile import SOURCES, Variant
from kvgrove_kernels.device import Launch

SIMT = Path(__file__).parent
# Both are elsewhere for mutants, each of which has sources of its own.
TESTED = Path(os.environ.get("KVGROVE_KERNEL_SOURCES") or SOURCES)
BUILD = Path(os.environ.get("KVGROVE_SIMT_BUILD") or Path(__file__).parents[3] / "build" / "simt")
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-fsanitize-sections=simt_shared",
)
# -O0: compiling with sanitizers is most of the time, and optimising trebles it. -ffp-contract=off: the reference rounds
# after every operation. Warnings that only GPU idioms cause are off.
FLAGS = ("-std=c++17", "-O0", "-g1", "-shared", "-fPIC", "-ffp-contract=off")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


class ShimFault(AssertionError):
    """The machine stopped a kernel: a barrier that not all reach, a grid or arguments that CUDA would refuse."""


def sanitized() -> bool:
    """Whether this process has the address sanitizer's runtime loaded, without which its libraries cannot be."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


@dataclass(slots=True)
class ShimDevice:
    """``order``: of threads, 0 ascending, 1 descending, others shuffled. ``sources``: the kernels'."""

    order: int = 0
    sources: Path = TESTED
    multiprocessors: int = 2
    launched: list[str] = field(default_factory=list)
    _libraries: dict[Variant, ctypes.CDLL] = field(default_factory=dict)

    def scratch(self, shape: Sequence[int], dtype: str) -> Operand:
        noise = np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xA5, dtype=np.uint8)
        return Operand("scratch", noise.view(dtype).reshape(tuple(shape)), dtype)

    def upload(self, array: np.ndarray[Any, Any]) -> Operand:
        return Operand("upload", array.copy(), str(array.dtype))

    def copy(self, target: int, source: int, size: int) -> None:
        self.launched.append("copy")
        ctypes.memmove(target, source, size)

    def is_pinned(self, operand: Operand) -> bool:
        return operand.array is not None  # host memory all of it

    def launch(self, launch: Launch) -> None:
        library = self._libraries.get(launch.variant)
        if library is None:
            library = self._libraries[launch.variant] = ctypes.CDLL(str(build(launch.variant, self.sources)))
        self.launched.append(launch.kernel)
        arguments = [np.array(value) for value in launch.scalars]
        pointers = (ctypes.c_void_p * len(arguments))(*(each.ctypes.data for each in arguments))
        sizes = (ctypes.c_uint * len(arguments))(*(each.nbytes for each in arguments))
        message = ctypes.create_string_buffer(512)
        start = getattr(library, f"simt_{launch.kernel}")
        grid = (ctypes.c_uint * 3)(*launch.grid)
        if start(
            grid, launch.threads, self.order, pointers, sizes, len(arguments), message, ctypes.c_size_t(len(message))
        ):
            raise ShimFault(f"{launch.kernel}: {message.value.decode()}")


def build(variant: Variant, sources: Path) -> Path:
    """The shared library of ``variant``, built unless the same sources and flags already were."""
    compiler = shutil.which("g++")
    assert compiler, "the host test bed needs g++"
    # A line taken out leaves names unused, which would hide from the tests whether they notice.
    warnings = WARNINGS if sources == SOURCES else ("-w",)
    flags = FLAGS + warnings + (SANITIZERS if sanitized() else ())
    defines = tuple(f"-D{name}={value}" for name, value in variant.defines)
    digest = hashlib.sha256(repr((flags, defines, variant.source)).encode())
    for path in (*sorted(sources.rglob("*.cu*")), SIMT / "simt.hpp", SIMT / "platform.cuh"):
        digest.update(path.name.encode() + path.read_bytes())
    target = BUILD / f"{variant.source}-{digest.hexdigest()[:24]}.so"
    if target.is_file():
        return target
    BUILD.mkdir(parents=True, exist_ok=True)
    source = sources / f"{variant.source}.cu"
    kernels = re.findall(r"__global__ void(?: __launch_bounds__\([^)]*\))?\s+(\w+)\(", source.read_text())
    assert kernels, f"{source.name} has no kernel"
    wrapper = f'#include "{source}"\n' + "".join(f"SIMT_KERNEL({kernel})\n" for kernel in kernels)
    unfinished = target.with_suffix(f".{os.getpid()}")
    # The host's platform.cuh is found first; the device's lies in a folder that is not searched.
    command = [compiler, *flags, *defines, f"-I{SIMT}", f"-I{sources}", "-x", "c++", "-", "-o", str(unfinished)]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, input=wrapper, text=True, capture_output=True, env=environment, check=False)
    if done.returncode:
        raise AssertionError(f"{source.name} {defines} does not compile for the host:\n{done.stderr[:4000]}")
    unfinished.replace(target)
    return target
