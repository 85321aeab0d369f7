"""The host test bed itself: it must catch what it is there to catch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from shim_device import ShimDevice, ShimFault

from kvgrove_kernels.arrays import Operand
from kvgrove_kernels.compile import Variant
from kvgrove_kernels.device import Launch

KERNELS = """
#include <platform.cuh>
extern "C" __global__ void __launch_bounds__(64)
reversed(const u32* in, u32* out) {
    __shared__ u32 held[64];
    held[threadIdx.x] = in[threadIdx.x];
    BED_BARRIER
    out[threadIdx.x] = held[63 - threadIdx.x];
}
extern "C" __global__ void
half_a_barrier(u32* out) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void
two_barriers(u32* out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}
extern "C" __global__ void
half_a_shuffle(u32* out) {
    if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, threadIdx.x, 1);
}
extern "C" __global__ void
part_of_a_mask(u32* out) {
    out[threadIdx.x] = __shfl_xor_sync(0xFFFFu, threadIdx.x, 1);
}
extern "C" __global__ void
exchanges(u32* out, u32 grid) {
    u32 sum = threadIdx.x;
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    const bool last = __any_sync(0xFFFFFFFFu, threadIdx.x == 63);
    const u32 third = __shfl_sync(0xFFFFFFFFu, threadIdx.x, 3);
    if (blockIdx.x + gridDim.x * blockIdx.y == grid) out[threadIdx.x] = sum + 1000 * last + 10000 * third;
}
extern "C" __global__ void
noise(u32* out) {
    __shared__ u32 left[64];
    out[threadIdx.x] = left[threadIdx.x];
    left[threadIdx.x] = 5;
}
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "bed.cu").write_text(KERNELS)
    return folder


def _run(
    sources: Path,
    kernel: str,
    *more: object,
    order: int = 0,
    barrier: str = "__syncthreads();",
    threads: int = 64,
    grid: tuple[int, int, int] = (1, 1, 1),
) -> np.ndarray:
    out = np.zeros(64, np.uint32)
    variant = Variant("bed", (("BED_BARRIER", barrier),))
    args = (*more, Operand("out", out, "uint32"))
    ShimDevice(order=order, sources=sources).launch(Launch(variant, kernel, grid, threads, args))  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_barriers_make_the_order_of_threads_irrelevant(sources: Path, order: int) -> None:
    values = Operand("in", np.arange(64, dtype=np.uint32), "uint32")
    assert _run(sources, "reversed", values, order=order).tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_a_missing_barrier_gives_wrong_results(sources: Path, order: int) -> None:
    values = Operand("in", np.arange(64, dtype=np.uint32), "uint32")
    got = _run(sources, "reversed", values, order=order, barrier="")
    noise = 0x7B7B7B7B if order % 2 else 0xFFFFFFFF
    assert (got == noise).sum() >= 16, "what was not written yet must read as noise"


def test_a_barrier_that_not_all_reach_is_reported(sources: Path) -> None:
    with pytest.raises(ShimFault, match=r"half_a_barrier: divergent: thread 0 is at a barrier .* thread 40 at the end"):
        _run(sources, "half_a_barrier")


def test_two_barriers_are_not_one(sources: Path) -> None:
    with pytest.raises(
        ShimFault, match=r"divergent: thread 0 is at a barrier \(line 18\), thread 32 at a barrier \(line 20\)"
    ):
        _run(sources, "two_barriers")


def test_a_shuffle_that_not_all_lanes_reach_is_reported(sources: Path) -> None:
    with pytest.raises(ShimFault, match="divergent: thread 0 is at a shuffle"):
        _run(sources, "half_a_shuffle")


def test_a_partial_mask_is_refused(sources: Path) -> None:
    with pytest.raises(ShimFault, match="only whole warps"):
        _run(sources, "part_of_a_mask")


@pytest.mark.parametrize("order", [0, 1, 2])
def test_exchanges_within_each_warp(sources: Path, order: int) -> None:
    out = np.zeros(64, np.uint32)
    args = (Operand("out", out, "uint32"), np.uint32(4))
    launch = Launch(Variant("bed", (("BED_BARRIER", ""),)), "exchanges", (3, 2, 1), 64, args)
    ShimDevice(order=order, sources=sources).launch(launch)
    assert out.tolist() == [496 + 30_000] * 32 + [496 + 32 * 32 + 1000 + 350_000] * 32


def test_shared_memory_is_noise_at_the_start_of_every_block(sources: Path) -> None:
    assert (_run(sources, "noise", grid=(3, 1, 1)) == 0xFFFFFFFF).all()


def test_launches_that_cuda_refuses_are_refused(sources: Path) -> None:
    for bad in ({"threads": 40}, {"threads": 2048}, {"grid": (1, 0, 1)}, {"grid": (1, 65536, 1)}):
        with pytest.raises(ShimFault, match=r"refuse|warps"):
            _run(sources, "noise", **bad)  # type: ignore[arg-type]


def test_arguments_must_be_the_kernels_parameters(sources: Path) -> None:
    for args in ((), (np.uint32(1),), (None, None)):
        launch = Launch(Variant("bed", (("BED_BARRIER", ""),)), "noise", (1, 1, 1), 64, args)
        with pytest.raises(ShimFault, match="number and size"):
            ShimDevice(sources=sources).launch(launch)
