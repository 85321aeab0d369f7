"""Bandwidth of every op on KV blocks, as a share of the copy bandwidth measured in the same run.

    python bench/kernels.py [--on cpu|gpu] [--json FILE] [--mib 256]

Bytes are what an op must move: gather, scatter and wipe count what they read and what they write, as the copy does;
checksum what it reads; quantise what it reads and the codes it writes; decode attention the KV it reads.

On a GPU each figure is the median of repeated calls. On a CPU the copy is memcpy, once in pieces as large as the op's
(one fragment each, what paged memory allows at best) and once as a whole, for which the C library uses stores that
bypass the cache; a figure is the best of rounds in which the copies and the ops take turns, in processor time, so that
other load on the machine meets them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgrove_kernels import ops
from kvgrove_kernels.numbers import CODE_BITS, CODECS

BLOCK = 32


@dataclass(frozen=True)
class Figure:
    """``share``: of the copy bandwidth in ``copy_gb_s``; ``bound``: the most that arithmetic would allow of it."""

    op: str
    case: str
    mib: float
    gb_s: float
    copy_gb_s: float
    share: float
    whole_copy_share: float | None = None
    bound: float | None = None


def _median(run: Callable[[], float], repeats: int) -> float:
    run()
    return statistics.median(run() for _ in range(repeats))


def _clocked(call: Callable[[], object]) -> Callable[[], float]:
    def run() -> float:
        started = time.thread_time()
        call()
        return time.thread_time() - started

    return run


def on_cpu(mib: int) -> Iterator[Figure]:
    """Blocks whose fragments are 64 KiB to 1 MiB; half of the pool's blocks, in random order."""
    rng = np.random.default_rng(0)
    layers = 4
    for fragment in (64 << 10, 256 << 10, 1 << 20):
        heads = fragment // (BLOCK * 128 * 4)
        slots = max(4, (mib << 20) // (2 * layers * fragment))
        pool = np.ones((layers, 2, slots * BLOCK, heads, 128), np.float32)
        ids = rng.permutation(slots)[: slots // 2]
        run = ops.gather_blocks(pool, ids, block_size=BLOCK)
        other = np.ones_like(run)
        pieces = [each.view(np.uint8).reshape(-1, fragment) for each in (run, other)]

        def in_pieces(pieces: list[Any] = pieces) -> None:
            for target, source in zip(*pieces, strict=True):
                np.copyto(target, source)

        calls: dict[str, Callable[[], object]] = {
            "pieces": in_pieces,
            "whole": lambda a=run, b=other: np.copyto(a, b),  # type: ignore[misc]
            "gather": lambda p=pool, i=ids, r=run: ops.gather_blocks(p, i, block_size=BLOCK, out=r),  # type: ignore[misc]
            "scatter": lambda p=pool, i=ids, r=run: ops.scatter_blocks(r, p, i, block_size=BLOCK),  # type: ignore[misc]
            "wipe": lambda p=pool, i=ids: ops.wipe_blocks(p, i, block_size=BLOCK),  # type: ignore[misc]
            "checksum": lambda p=pool, i=ids: ops.checksum_blocks(p, i, block_size=BLOCK),  # type: ignore[misc]
        }
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(9):
            for name, call in calls.items():
                best[name] = min(best[name], _clocked(call)())
        speed = {name: (1 if name == "checksum" else 2) * run.nbytes / seconds for name, seconds in best.items()}
        case, size = f"fragments of {fragment >> 10} KiB", run.nbytes / 2**20
        for name in list(calls)[2:]:
            share, of_whole = speed[name] / speed["pieces"], speed[name] / speed["whole"]
            yield Figure(name, case, size, speed[name] / 1e9, speed["pieces"] / 1e9, share, whole_copy_share=of_whole)


def on_gpu(mib: int) -> Iterator[Figure]:
    """A pool of bfloat16, 8 KV heads of 128: fragments of 64 KiB, blocks of 4 MiB at 32 layers."""
    import cupy

    def clocked(call: Callable[[], object]) -> Callable[[], float]:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()

        def run() -> float:
            start.record()
            call()
            end.record()
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3

        return run

    rng = np.random.default_rng(0)
    layers, heads, dim = 32, 8, 128
    block_bytes = 2 * layers * BLOCK * heads * dim * 2
    slots = max(8, (2 * mib << 20) // block_bytes)
    blocks = slots // 2
    pool = cupy.random.randint(-(2**14), 2**14, (layers, 2, slots * BLOCK, heads, dim), dtype=cupy.int16)
    ids = cupy.asarray(rng.permutation(slots)[:blocks].astype(np.int32))
    run = ops.gather_blocks(pool, ids, block_size=BLOCK)
    size = run.nbytes
    copied = cupy.empty_like(run)
    copy = 2 * size / _median(clocked(lambda: cupy.copyto(copied, run)), 20)
    as_bf16 = {"block_size": BLOCK, "dtype": "bfloat16"}
    frequencies = 10_000.0 ** (-np.arange(dim // 2) / (dim // 2))
    deltas = cupy.full(blocks, 5, cupy.int32)
    cases: dict[str, tuple[float, Callable[[], object]]] = {
        "gather": (2 * size, lambda: ops.gather_blocks(pool, ids, block_size=BLOCK, out=run)),
        "scatter": (2 * size, lambda: ops.scatter_blocks(run, pool, ids, block_size=BLOCK)),
        "checksum": (size, lambda: ops.checksum_blocks(pool, ids, block_size=BLOCK)),
        "rope_shift": (
            size,
            lambda: ops.rope_shift(pool, ids, deltas, frequencies, **as_bf16),
        ),  # keys: half, both ways
    }
    for codec in CODECS:
        moved = size * (1 + CODE_BITS[codec] / 16)
        coded = ops.quantize_blocks(pool, ids, codec=codec, **as_bf16)
        cases[f"quantize {codec}"] = moved, lambda codec=codec: ops.quantize_blocks(pool, ids, codec=codec, **as_bf16)  # type: ignore[misc]
        cases[f"dequantize {codec}"] = moved, lambda coded=coded: ops.dequantize_blocks(coded, pool, ids, **as_bf16)  # type: ignore[misc]
    cases["wipe"] = 2 * size, lambda: ops.wipe_blocks(pool, ids, block_size=BLOCK)  # last: it leaves zeros
    for name, (moved, call) in cases.items():
        speed = moved / _median(clocked(call), 20)
        yield Figure(name, f"{blocks} random blocks", size / 2**20, speed / 1e9, copy / 1e9, speed / copy)
    yield from _mirror_on_gpu(pool, clocked, block_bytes)
    yield from _attention_on_gpu(cupy, clocked, copy)


def _mirror_on_gpu(pool: Any, clocked: Callable[..., Callable[[], float]], block_bytes: int) -> Iterator[Figure]:
    """Against one plain copy of the same bytes between pinned memory and the device."""
    import cupy

    layers, _, tokens, heads, dim = pool.shape
    count = min(64, tokens // BLOCK)
    pinned = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(count * block_bytes), 0)
    mirror = np.frombuffer(pinned, np.int16, count * block_bytes // 2).reshape(count, layers, 2, BLOCK, heads, dim)
    plain, runtime = cupy.empty(count * block_bytes, cupy.uint8), cupy.cuda.runtime
    stream = cupy.cuda.get_current_stream().ptr
    ids = np.random.default_rng(1).permutation(tokens // BLOCK)[:count].tolist()
    for to, target, source in (
        ("mirror", mirror.ctypes.data, plain.data.ptr),
        ("pool", plain.data.ptr, mirror.ctypes.data),
    ):
        call = lambda t=target, s=source: runtime.memcpyAsync(t, s, plain.nbytes, runtime.memcpyDefault, stream)  # noqa: E731
        copy = plain.nbytes / _median(clocked(call), 10)
        both = {"block_size": BLOCK, "to": to}
        speed = plain.nbytes / _median(
            clocked(lambda b=both: ops.copy_blocks(pool, ids, mirror, range(count), **b)), 10
        )
        yield Figure("copy", f"to {to}", plain.nbytes / 2**20, speed / 1e9, copy / 1e9, speed / copy)


def _attention_on_gpu(cupy: Any, clocked: Callable[..., Callable[[], float]], copy: float) -> Iterator[Figure]:
    attributes = cupy.cuda.Device().attributes
    # fp32 operations per second: 128 lanes for each multiprocessor.
    lanes = attributes["MultiProcessorCount"] * 128 * attributes["ClockRate"] * 1e3
    rng = np.random.default_rng(2)
    for batch, tokens, kv_heads, group, dim, kind in (
        *((1, 32_768, 8, group, 128, "bfloat16") for group in (1, 4, 8)),
        *((8, 8_192, 8, group, 128, "bfloat16") for group in (1, 2, 4, 8)),
        (8, 8_192, 8, 4, 64, "bfloat16"),
        (8, 8_192, 8, 4, 256, "bfloat16"),
        *((8, 8_192, 8, 4, 128, codec) for codec in CODECS),
    ):
        width = tokens // BLOCK
        slots = batch * width
        table = cupy.asarray(rng.permutation(slots).astype(np.int32).reshape(batch, width))
        context = cupy.full(batch, tokens, cupy.int32)
        query = cupy.asarray(rng.integers(0x3F00, 0x3F80, (batch, kv_heads * group, dim)).astype(np.int16))
        more: dict[str, Any] = {"dtype": "bfloat16"}
        shape = (2, slots * BLOCK, kv_heads, dim)
        if kind in CODE_BITS:
            planes = cupy.random.randint(0, 255, (*shape[:-1], dim * CODE_BITS[kind] // 8), dtype=cupy.uint8)
            scales = cupy.full((slots, kv_heads), 0.01, cupy.float32)
            more |= {"codec": kind, "key_scales": scales, "value_scales": scales}
        else:
            planes = cupy.random.randint(0x3F00, 0x3F80, shape, dtype=cupy.int16)
        call = lambda: ops.paged_attention_decode(query, planes[0], planes[1], table, context, block_size=BLOCK, **more)  # noqa: E731, B023
        speed = planes.nbytes / _median(clocked(call), 20)
        elements = 2 * slots * BLOCK * kv_heads * dim
        bound = lanes / (elements * (group + 1)) * planes.nbytes / copy
        case = f"{kind} batch {batch} x {tokens} tokens, group {group}, head_dim {dim}"
        yield Figure(
            "decode", case, planes.nbytes / 2**20, speed / 1e9, copy / 1e9, speed / copy, bound=min(1.0, bound)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--on", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--mib", type=int, default=256, help="size of the blocks moved, about")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    asked = parser.parse_args()
    figures = []
    print(f"{'op':<17} {'case':<55} {'MiB':>7} {'GB/s':>8} {'copy':>8} {'share':>6}  whole copy / bound")
    for figure in (on_cpu if asked.on == "cpu" else on_gpu)(asked.mib):
        figures.append(figure)
        extra = figure.whole_copy_share if figure.bound is None else figure.bound
        tail = "" if extra is None else f"{extra:6.2f}"
        head = f"{figure.op:<17} {figure.case:<55} {figure.mib:7.0f} {figure.gb_s:8.1f} {figure.copy_gb_s:8.1f}"
        print(f"{head} {figure.share:6.2f}  {tail}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({"on": asked.on, "figures": [asdict(figure) for figure in figures]}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
