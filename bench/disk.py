"""The disk tier beside plain files on the same disk, as JSON.

``python bench/disk.py --json [--directory DIR] [--blocks 64] [--rounds 5]`` prints megabytes (10^6 bytes of KV) per
second, medians of rounds in which ours and the plain files take turns, so that other load meets them alike:

- ``write_mb_s``, ``plain_write_mb_s``: durable, one block at a time: ours against a new file, fsync and fsync of the
  directory, for the same bytes;
- ``write_many_mb_s``, ``plain_write_many_mb_s``: the same in groups of 16 with one fsync of the directory each;
- ``read_mb_s``, ``plain_read_mb_s``: from the page cache, opened and proven against opened and read;
- ``read_device_mb_s``, ``plain_read_device_mb_s``: the same after asking the kernel to drop the pages;
- ``*_ratio``: ours over plain;
- ``survey_blocks_s``: blocks that a start looks at and unseals, files opened and headers read included;
- ``rewrap_blocks_s``, ``erase_mb_s``: survivors put under a new secret, and blocks overwritten, read back and unlinked;
- ``overhead_bytes``: of a block's file beside its KV.

Run it on the disk that the tier will use: the default is the system's folder for temporary files.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvgrove_daemon.cache.tiers.disk import DiskMedium
from kvgrove_daemon.cache.tiers.medium import Facts
from kvgrove_protocol.chain import block_keys

BLOCK_SIZE = 32
BLOCK_BYTES = BLOCK_SIZE * 30 * 2 * 3 * 64 * 2
"""SmolLM2-135M in bfloat16: layers, K and V, heads, head size, bytes."""
GROUP = 16
UID, ROOT = "bench", b"r" * 32
SECRETS = (b"a" * 32, b"b" * 32)
LAYOUT = b"l" * 32

Figures = dict[str, list[float]]


class Plain:
    """One file per block and nothing else."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory

    def path(self, slot: int) -> Path:
        return self._directory / f"{slot:06d}"

    def write_many(self, slots: range, body: bytes) -> None:
        for slot in slots:
            with self.path(slot).open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
        descriptor = os.open(self._directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def read(self, slot: int) -> bytes:
        return self.path(slot).read_bytes()

    def clear(self) -> None:
        for path in self._directory.iterdir():
            path.unlink()


def opened(directory: Path, blocks: int, secret: bytes) -> DiskMedium:
    disk = DiskMedium.open(
        directory,
        layout=LAYOUT,
        block_size=BLOCK_SIZE,
        block_bytes=BLOCK_BYTES,
        capacity_bytes=(blocks + 1) * (BLOCK_BYTES + 65536),
    )
    disk.set_secret(UID, secret)
    return disk


def chain(blocks: int) -> list[Facts]:
    words = np.random.default_rng(7).integers(0, 150_000, blocks * BLOCK_SIZE, dtype="<u4").tobytes()
    keys = block_keys(ROOT, words, block_size=BLOCK_SIZE)
    size = BLOCK_SIZE * 4
    return [
        Facts(UID, ROOT, key, keys[at - 1] if at else ROOT, at, words[at * size : (at + 1) * size])
        for at, key in enumerate(keys)
    ]


def one_round(base: Path, facts: list[Facts], body: bytes, figures: Figures) -> None:
    blocks, megabytes = len(facts), len(facts) * len(body) / 1e6
    disk, plain = opened(base / "ours", blocks, SECRETS[0]), Plain(base / "plain")

    @contextmanager
    def timed(name: str, amount: float = megabytes) -> Iterator[None]:
        began = time.perf_counter()
        yield
        figures[name].append(amount / (time.perf_counter() - began))

    def each(name: str, ours: Callable[[int], object], theirs: Callable[[int], object], step: int = 1) -> None:
        with timed(name):
            for slot in range(0, blocks, step):
                ours(slot)
        with timed(f"plain_{name}"):
            for slot in range(0, blocks, step):
                theirs(slot)

    def write(at: int, count: int) -> None:
        disk.write_many([(slot, facts[slot], body) for slot in range(at, at + count)])

    each("write_mb_s", lambda at: write(at, 1), lambda at: plain.write_many(range(at, at + 1), body))
    disk.release(range(blocks))
    plain.clear()
    each(
        "write_many_mb_s",
        lambda at: write(at, GROUP),
        lambda at: plain.write_many(range(at, at + GROUP), body),
        step=GROUP,
    )
    each("read_mb_s", lambda slot: disk.read(slot, facts[slot]), plain.read)
    drop_cached(base)
    each("read_device_mb_s", lambda slot: disk.read(slot, facts[slot]), plain.read)
    disk.close()
    with timed("survey_blocks_s", blocks):
        disk = opened(base / "ours", blocks, SECRETS[0])
        survivors = disk.survey(UID, {ROOT})
    for slot, survivor in enumerate(survivors):
        disk.adopt(slot, survivor)
    with timed("rewrap_blocks_s", blocks):
        counts = disk.rewrap(UID, *SECRETS)
    if counts.done != blocks or disk.read(blocks - 1, facts[-1]) != body:
        raise SystemExit("what was written is not there: the bench measured something else")
    with timed("erase_mb_s"):
        disk.erase(range(blocks))
    disk.close()


def drop_cached(base: Path) -> None:
    for path in base.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON instead of lines")
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--blocks", type=int, default=64, help="per round, a multiple of 16")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.blocks < GROUP or arguments.blocks % GROUP:
        parser.error(f"--blocks: give a multiple of {GROUP}")
    facts, body = chain(arguments.blocks), np.random.default_rng(1).bytes(BLOCK_BYTES)
    figures: Figures = defaultdict(list)
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as base:
            one_round(Path(base), facts, body, figures)
    result = {name: statistics.median(values) for name, values in figures.items()}
    for name in [name for name in result if f"plain_{name}" in result]:
        result[name.replace("mb_s", "ratio")] = result[name] / result[f"plain_{name}"]
    with tempfile.TemporaryDirectory(dir=arguments.directory) as base:
        result["overhead_bytes"] = opened(Path(base) / "ours", 1, SECRETS[0]).file_bytes - BLOCK_BYTES
    result["block_bytes"] = BLOCK_BYTES
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name:24} {value:12.2f}")


if __name__ == "__main__":
    main()
