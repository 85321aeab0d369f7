"""What ``make test-kernels`` runs: three proofs at a time, each in its own process, and their output in order.

- the architectures: every variant by NVRTC, without warnings and without local memory, and the test bed's own tests;
- the grid: every kernel from its source on the host, under the address and undefined-behaviour sanitizers;
- the mutants: a kernel with one line broken must fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ALL = "kernels_full or not kernels_full"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ALL]
GRID = ["test_moving_kernels.py", "test_computing_kernels.py", "test_decode_kernel.py"]


def sanitizer_environment() -> dict[str, str]:
    """The sanitizer's runtime must be loaded before Python; its leak check would report Python's own."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=environment, check=False, **streams)
    return done.returncode, done.stdout


def main() -> int:
    # One BLAS thread: the oracles are small, and three processes share the cores.
    base = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    grid = [str(HERE / name) for name in GRID]
    others = [str(path) for path in sorted(HERE.glob("test_*.py")) if path.name not in GRID]
    proofs = {
        "grid under sanitizers": ([*PYTEST, *grid], {**base, **sanitizer_environment()}),
        "architectures and test bed": ([*PYTEST, *others], base),
        "mutants": ([sys.executable, str(HERE / "mutants.py")], base),
    }
    started = time.monotonic()
    failed = []
    with ThreadPoolExecutor(len(proofs)) as pool:
        outcomes = {name: pool.submit(_run, *how) for name, how in proofs.items()}
        for name, outcome in outcomes.items():
            status, output = outcome.result()
            print(f"== {name}: {'failed' if status else 'passed'}\n{output}", flush=True)
            failed += [name] if status else []
    print(f"{len(proofs) - len(failed)} of {len(proofs)} proofs passed in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
