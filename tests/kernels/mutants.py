"""Breaks kernels one line at a time, and demands that the test bed fails each: a proof of the tests, not the kernels.

Each mutant is a copy of the sources with one text replaced, and the tests that must not survive it. A mutant whose text
is no longer there, or that survives, is a failure. Run by ``make test-kernels``, or alone with part of a source's name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from everything import ALL, sanitizer_environment

from kvgrove_kernels.compile import SOURCES

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    source: str
    text: str
    instead: str
    tests: str
    sanitized: bool = False
    """Only the sanitizers see it: what is read wrongly is not used."""


MOVING, COMPUTING, DECODE = "test_moving_kernels.py", "test_computing_kernels.py", "test_decode_kernel.py"
GATHER, SCATTER = (
    f"{MOVING}::test_gather_at_misaligned_starts",
    f"{MOVING}::test_scatter_writes_its_blocks_and_no_others",
)
LISTED, SKIPPED = f"{MOVING}::test_gather_of_any_list", f"{MOVING}::test_ids_out_of_range_are_skipped_on_the_device"
CHECKSUM, WIPE = f"{MOVING}::test_checksum_equals_the_hosts", f"{MOVING}::test_wipe_clears_its_blocks_and_no_others"
QUANTISED = f"{COMPUTING}::test_quantised_bits_are_the_references"
SHIFTED = f"{COMPUTING}::test_shifted_keys_are_those_of_float64"
DECODED, SPLIT = f"{DECODE}::test_decode_equals_float64_within_rounding", f"{DECODE}::test_splits_change_nothing"
FAR = f"{DECODE}::test_far_apart_scores_keep_their_order"

MUTANTS = [
    Mutant("move_blocks.cu", "from < 0 || from >= src_slots", "from < 0", SKIPPED),
    Mutant("move_blocks.cu", "to < 0 || to >= dst_slots", "to >= dst_slots", SKIPPED),
    Mutant("move_blocks.cu", "apart % 16 == 0", "apart % 8 == 0", GATHER, sanitized=True),
    Mutant("move_blocks.cu", "i64 at = tail + threadIdx.x", "i64 at = tail + 1 + threadIdx.x", GATHER),
    Mutant("move_blocks.cu", "at < head; at += THREADS", "at < head - 1; at += THREADS", GATHER),
    Mutant("move_blocks.cu", "+ plane * dst_plane_stride", "", LISTED),
    Mutant("move_blocks.cu", "dst_ids ? static_cast<i64>(dst_ids[block]) : block", "block", SCATTER),
    Mutant("move_blocks.cu", "unit += gridDim.x", "unit += gridDim.x + 1", LISTED),
    Mutant("checksum_blocks.cu", "key[k] = mix(4 * lane + k + 1) | 1", "key[k] = mix(4 * lane + k + 1)", CHECKSUM),
    Mutant(
        "checksum_blocks.cu",
        "sum = sum * TILE_FACTOR + word.x",
        "sum = sum + word.x",
        f"{MOVING}::test_checksum_of_large_fragments",
    ),
    Mutant(
        "checksum_blocks.cu",
        "for (; exponent; exponent >>= 1, base *= base)",
        "for (; exponent; exponent >>= 1)",
        CHECKSUM,
    ),
    Mutant("checksum_blocks.cu", "plane < planes; plane += 32", "plane < planes; plane += 64", CHECKSUM),
    Mutant("reading.cuh", "if (at + i < end)", "if (at + i <= end)", CHECKSUM),
    Mutant("wipe_blocks.cu", "at < words; at += WIPERS", "at < words - 1; at += WIPERS", WIPE),
    Mutant(
        "wipe_blocks.cu",
        "i64 at = head + 16 * words + threadIdx.x",
        "i64 at = head + 16 * words + threadIdx.x + 1",
        WIPE,
    ),
    Mutant("wipe_blocks.cu", "nonzero_bytes(word.z) +", "", f"{MOVING}::test_residue_counts_every_byte_that_is_left"),
    Mutant(
        "wipe_blocks.cu",
        "known ? count : static_cast<u64>(fragment_bytes)",
        "count",
        f"{MOVING}::test_a_block_that_could_not_be_wiped_is_all_residue",
    ),
    Mutant("warp.cuh", "offset > 0; offset /= 2) value +=", "offset > 1; offset /= 2) value +=", CHECKSUM),
    Mutant("quantize_blocks.cu", "    __syncthreads();\n", "", QUANTISED),
    Mutant("quantize_blocks.cu", "if (scale < SMALLEST_SCALE) scale = 0.0f;", "", QUANTISED),
    Mutant(
        "quantize_blocks.cu", "so_far = fmaxf(so_far, fabsf(values[i]))", "so_far = fmaxf(so_far, values[i])", QUANTISED
    ),
    Mutant("quantize_blocks.cu", "static_cast<u32>(octet / ROW_OCTETS) % heads", "0", QUANTISED),
    Mutant(
        "numbers.cuh",
        "rintf(fminf(fmaxf(value, -largest), largest))",
        "fminf(fmaxf(value, -largest), largest)",
        QUANTISED,
    ),
    Mutant(
        "numbers.cuh",
        "clamped + 0x7FFFFu + (clamped >> 20 & 1u)",
        "clamped + 0x80000u",
        f"{COMPUTING}::test_every_e4m3_tie",
    ),
    Mutant("numbers.cuh", "word ^ 0x80808080u", "word", QUANTISED),
    Mutant(
        "rope_shift.cu", "second = second * by.x + before * by.y", "second = second * by.x - before * by.y", SHIFTED
    ),
    Mutant("rope_shift.cu", "first = before * by.x - second", "first = first * by.y - second", SHIFTED),
    Mutant(
        "rope_shift.cu", "2 * static_cast<i64>(blockIdx.y) * slots", "static_cast<i64>(blockIdx.y) * slots", SHIFTED
    ),
    Mutant("rope_shift.cu", "const double angle", "const float angle", SHIFTED),
    Mutant(
        "paged_attention_decode.cu", "tokens.row[u] >= 0 && octet < OCTETS", "octet < OCTETS", DECODED, sanitized=True
    ),
    Mutant("paged_attention_decode.cu", "static_cast<u32>(tokens.row[u] >= 0) << u", "1u << u", DECODED),
    Mutant("paged_attention_decode.cu", "token < context.end && entry", "entry", DECODED),
    Mutant("paged_attention_decode.cu", "weight[r] *= shrink[r];", "", DECODED),
    Mutant("paged_attention_decode.cu", "sum[h][i] *= by;", "sum[h][i] *= 1.0f;", DECODED),
    Mutant(
        "paged_attention_decode.cu",
        "const float keep = upper ? sums[n + COUNT / 2] : sums[n];",
        "const float keep = sums[n];",
        DECODED,
    ),
    Mutant("paged_attention_decode.cu", "risen[r] = fmaxf(maximum[r],", "risen[r] = fmaxf(0.0f,", FAR),
    Mutant("paged_attention_decode.cu", "QUANTISED ? dot * tokens.key_scale[u] : dot", "dot", DECODED),
    Mutant("paged_attention_decode.cu", "* value_scale[u];", ";", DECODED),
    Mutant("paged_attention_decode.cu", "    __syncthreads();\n", "", DECODED),
    Mutant("paged_attention_decode.cu", "total += share * part.y;", "total += part.y;", SPLIT),
    Mutant(
        "paged_attention_decode.cu",
        "const i32 begin = blockIdx.x * split_tokens",
        "const i32 begin = blockIdx.x",
        SPLIT,
    ),
]


def caught(mutant: Mutant) -> str | None:
    """None where the tests fail as they should; else what is wrong."""
    name = f"{mutant.source}: {mutant.text!r} -> {mutant.instead!r}"
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "cuda"
        shutil.copytree(SOURCES, sources)
        source = sources / mutant.source
        before = source.read_text()
        if before.count(mutant.text) < 1:
            return f"{name}: the text is not in the source any more"
        source.write_text(before.replace(mutant.text, mutant.instead, 1))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            ALL,
            str(HERE / mutant.tests),
        ]
        environment = {**os.environ, "KVGROVE_KERNEL_SOURCES": str(sources), "KVGROVE_SIMT_BUILD": folder}
        if mutant.sanitized:
            environment |= sanitizer_environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    # 1: tests ran and failed; negative: the kernel crashed. Anything else (nothing collected) is no proof.
    if done.returncode == 0:
        return f"{name}: survived {mutant.tests}"
    if "does not compile for the host" in done.stdout:
        return f"{name}: does not compile\n{done.stdout[-1500:]}"
    if done.returncode > 1:
        return f"{name}: pytest ended with {done.returncode}\n{done.stdout[-1500:]}"
    return None


def main() -> int:
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or sys.argv[1] in mutant.source]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [problem for problem in pool.map(caught, chosen) if problem]
    for problem in problems:
        print(problem)
    print(f"{len(chosen) - len(problems)} of {len(chosen)} mutants caught")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
