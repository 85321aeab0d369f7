"""``python guarded.py PARENT PROGRAM ARG...``: become PROGRAM, and be killed by the kernel when process PARENT ends.

So no server outlives a test run that was killed. A program of its own, because code between fork and exec of a process
with threads may deadlock. The kernel counts the ending of the *thread* that started this one as the parent's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it ended before the kernel knew of the wish
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606
