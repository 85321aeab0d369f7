"""The one compile cache: a kernel variant's cubin, by source digest, architecture and options, in memory and on disk.

Role: NVRTC without a GPU or CuPy. Invariants: equal keys mean equal bytes, whatever process compiled them; a file
appears whole or not at all; a warning is an error; the disk holds at most `MAX_CUBINS`.
Must not know: what kernels do, devices, launches.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvgrove_kernels.errors import KernelCompileFailed, KernelsUnavailable

if TYPE_CHECKING:
    from types import ModuleType

SOURCES: Final = Path(__file__).parent / "cuda"
INCLUDES: Final = (SOURCES, SOURCES / "device")
# --ptxas-options=-v: registers and stack of each kernel in the log, from which `resources` reads what spilled.
OPTIONS: Final = ("--std=c++17", "--ptxas-options=-v")
MAX_CUBINS: Final = 256

_RESOURCES: Final = re.compile(
    r"Function properties for (?P<kernel>\w+)\s+ptxas\s+\.\s+(?P<stack>\d+) bytes stack frame, "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s+: Used (?P<registers>\d+) registers"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One source with the constants it is compiled for."""

    source: str
    defines: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What the compiler says one kernel takes. ``local_bytes``: stack and spills, per thread."""

    kernel: str
    registers: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    cubin: bytes
    log: str

    @property
    def resources(self) -> tuple[Resources, ...]:
        return tuple(
            Resources(m["kernel"], int(m["registers"]), int(m["stack"]) + int(m["stores"]) + int(m["loads"]))
            for m in _RESOURCES.finditer(self.log)
        )


@cache
def source_digest() -> str:
    """SHA-256 over every kernel source and header, names included."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.cu*")):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compile_variant(variant: Variant, arch: str, sources: Path = SOURCES) -> Compiled:
    """Compile for ``arch`` (``sm_90``). Raises `KernelCompileFailed` on errors and on warnings."""
    nvrtc = _nvrtc()
    name = f"{variant.source}.cu"
    code = (sources / name).read_bytes()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(code, name.encode(), 0, [], []))
    try:
        options = [option.encode() for option in _options(variant, arch)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log_bytes = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log_bytes))
        log = bytes(log_bytes).rstrip(b"\0 \n").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS or "warning" in log:
            raise KernelCompileFailed(f"{name} for {arch} with {dict(variant.defines)}:\n{log}", field=variant.source)
        cubin = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(bytes(cubin), log)


def _options(variant: Variant, arch: str) -> Sequence[str]:
    includes = [f"--include-path={path}" for path in INCLUDES]
    defines = [f"--define-macro={name}={value}" for name, value in variant.defines]
    return [f"--gpu-architecture={arch}", *OPTIONS, *includes, *defines]


def _nvrtc() -> ModuleType:
    try:  # comes with torch; only compiling needs it
        return importlib.import_module("cuda.bindings.nvrtc")
    except ModuleNotFoundError as error:
        raise KernelsUnavailable("compiling kernels needs cuda-bindings: install kvgrove[gpu]") from error


def _checked(nvrtc: ModuleType, result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelCompileFailed(f"NVRTC answered {status.name}")
    return values[0] if values else None


def default_directory() -> Path:
    """Where cubins are kept between processes: ``$XDG_CACHE_HOME/kvgrove/kernels``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "kvgrove" / "kernels"


@dataclass(slots=True)
class CompileCache:
    """Cubins of one architecture. Not for several threads at once; several processes may share the directory."""

    arch: str
    directory: Path
    compiled: int = 0
    """How many variants this object had to compile: neither memory nor disk had them."""
    _paths: dict[Variant, Path] = field(default_factory=dict)

    def cubin(self, variant: Variant) -> Path:
        """The file that holds it. Raises `KernelCompileFailed`, and OSError where the directory cannot be written."""
        held = self._paths.get(variant)
        if held is None:
            held = self._paths[variant] = self._on_disk(variant)
        return held

    def _on_disk(self, variant: Variant) -> Path:
        path = self.directory / f"{self.key(variant)}.cubin"
        if path.is_file():
            os.utime(path)  # the oldest go first
            return path
        cubin = compile_variant(variant, self.arch).cubin
        self.compiled += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.directory, delete=False) as whole:
            whole.write(cubin)
        os.replace(whole.name, path)
        self._drop_oldest()
        return path

    def key(self, variant: Variant) -> str:
        """Everything the bytes depend on."""
        version = ".".join(str(part) for part in _nvrtc().nvrtcVersion()[1:])
        parts = (source_digest(), variant.source, repr(variant.defines), self.arch, " ".join(OPTIONS), version)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _drop_oldest(self) -> None:
        by_age = sorted(self.directory.glob("*.cubin"), key=lambda path: path.stat().st_mtime)
        for path in by_age[: max(0, len(by_age) - MAX_CUBINS)]:
            path.unlink(missing_ok=True)
