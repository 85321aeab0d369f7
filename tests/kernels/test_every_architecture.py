"""NVRTC compiles every variant for every architecture: no warning, nothing in local memory."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from kvgrove_kernels.attention import MAX_GROUP
from kvgrove_kernels.compile import Compiled, Variant, compile_variant
from kvgrove_kernels.errors import KernelCompileFailed

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC comes with torch")

ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
FLOATS = ["FLOAT32", "FLOAT16", "BFLOAT16"]
CODES = ["INT8", "E4M3", "INT4"]


def _of(source: str, **constants: int | str) -> Variant:
    return Variant(source, tuple((f"KVG_{name}", value) for name, value in constants.items()))


def _attention(kv: str, query: str, dim: int, group: int, block: int = 32) -> Variant:
    return _of("paged_attention_decode", KV=kv, QUERY=query, HEAD_DIM=dim, BLOCK_SIZE=block, GROUP=group)


QUICK = [
    *[Variant(source) for source in ("move_blocks", "checksum_blocks", "wipe_blocks")],
    _of("quantize_blocks", POOL="BFLOAT16", CODE="INT8", HEAD_DIM=128, BLOCK_SIZE=32),
    _of("rope_shift", POOL="BFLOAT16", HEAD_DIM=128, ROTARY=128, INTERLEAVED=0, BLOCK_SIZE=32),
    _attention("BFLOAT16", "BFLOAT16", 128, 4),
]
FULL = [
    *[
        _of("quantize_blocks", POOL=pool, CODE=code, HEAD_DIM=dim, BLOCK_SIZE=block)
        for pool, code, (dim, block) in product(FLOATS, CODES, [(64, 32), (256, 64)])
    ],
    *[
        _of("rope_shift", POOL=pool, HEAD_DIM=dim, ROTARY=rotary, INTERLEAVED=interleaved, BLOCK_SIZE=32)
        for pool, (dim, rotary), interleaved in product(FLOATS, [(128, 128), (80, 24), (256, 64)], (0, 1))
    ],
    # The most registers: many heads, wide rows, every way of decoding.
    *[_attention(kv, "BFLOAT16", dim, MAX_GROUP) for kv, dim in product(["BFLOAT16", "E4M3", "INT4"], [64, 128, 256])],
    *[_attention("BFLOAT16", "BFLOAT16", 128, group) for group in (1, 2, 3, 5, 6, 7)],
    *[_attention("FLOAT16", "FLOAT16", dim, 4) for dim in (8, 40, 80, 256)],
    *[_attention(code, "FLOAT16", 128, 4, 16) for code in CODES],
    _attention("FLOAT32", "FLOAT32", 128, 4),
    _attention("FLOAT32", "FLOAT32", 256, MAX_GROUP),
]
CASES = [
    *[pytest.param(variant, "sm_90", id=f"{variant.source}-sm_90") for variant in QUICK],
    *[
        pytest.param(
            variant,
            arch,
            marks=pytest.mark.kernels_full,
            id="-".join([variant.source, *(str(v) for _, v in variant.defines), arch]),
        )
        for variant in [*QUICK, *FULL]
        for arch in ARCHITECTURES
        if variant not in QUICK or arch != "sm_90"
    ],
]


@pytest.mark.parametrize(("variant", "arch"), CASES)
def test_compiles_without_warning_and_without_local_memory(variant: Variant, arch: str) -> None:
    compiled = compile_variant(variant, arch)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.resources, compiled.log
    for kernel in compiled.resources:
        assert kernel.local_bytes == 0, f"{kernel.kernel}: {kernel.local_bytes} bytes of stack or spills in each thread"


def test_warnings_and_errors_are_refused(tmp_path: Path) -> None:
    for text, said in (("int unused = 3;", "warning"), ("nonsense", "error")):
        (tmp_path / "bad.cu").write_text(f'extern "C" __global__ void bad() {{ {text} }}')
        with pytest.raises(KernelCompileFailed, match=f"(?s)bad.cu for sm_90.*{said}"):
            compile_variant(Variant("bad"), "sm_90", tmp_path)


def test_local_memory_is_seen(tmp_path: Path) -> None:
    """The check above can fail: an array indexed at run time lies in local memory."""
    indexed = (
        "float a[64]; for (int i = 0; i < 64; ++i) a[i] = x[i * n]; for (int i = 0; i < n; ++i) x[i] += a[i * n & 63];"
    )
    (tmp_path / "local.cu").write_text(f'extern "C" __global__ void local(float* x, int n) {{ {indexed} }}')
    (kernel,) = compile_variant(Variant("local"), "sm_90", tmp_path).resources
    assert kernel.local_bytes >= 256


def test_spills_are_read_from_the_report() -> None:
    report = (
        "ptxas info    : Function properties for sp\n"
        "ptxas         .     256 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 166 registers, used 0 barriers\n"
    )
    (kernel,) = Compiled(b"", report).resources
    assert (kernel.kernel, kernel.registers, kernel.local_bytes) == ("sp", 166, 268)
