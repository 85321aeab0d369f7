"""Tests that run beside each other, and a few that must have the machine for themselves.

Workers are processes, so the turns are kept by locks on two files: everybody passes the gate, and whoever waits for the
whole room keeps the gate shut behind him.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Runs when it is this one's turn; ``folder`` is the same for all workers."""
    with (folder / "gate.lock").open("a") as gate, (folder / "room.lock").open("a") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
