"""Which process holds a lease, and whether it has ended: evidence from the kernel.

Role: name a process so that a later one with its number is told apart (pid, start time, boot of the machine), and say
when it is certainly gone. Invariants: `ended` is True on evidence only; where the kernel does not tell, it is False and
the memory stays held. A pidfd becomes readable when the last thread of the process has ended, after its mappings were
taken down (``pidfd_open(2)``), so a True answer means that nobody of it touches shared memory any more.
Must not know: leases, slots. A child that inherited a mapping is another process: it must be named as a holder itself.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Final

from kvgrove_daemon.cache.foreign_leases import Holder

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_START_FIELD: Final = 22
"""Of ``/proc/PID/stat``, counted from 1 (``proc_pid_stat(5)``)."""
_AFTER_COMM: Final = 3
"""The first field behind the command's name, which may hold blanks and brackets itself."""


class Processes:
    """The processes of this machine, as seen from this pid namespace."""

    def __init__(self) -> None:
        self._boot = _BOOT_ID.read_text().strip()

    def see(self, pid: int) -> Holder | None:
        """The live process ``pid``, or None where there is none, or none that can be watched.

        ``pid`` must be this namespace's number for it, as ``SO_PEERCRED`` gives it, not what the process calls itself.
        """
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return None
        try:
            started = _started(pid)
            # Alive after its start time was read: the number was not passed on in between.
            if started is None or _has_ended(descriptor):
                return None
            return Holder(pid, started, self._boot)
        finally:
            os.close(descriptor)

    def ended(self, holder: Holder) -> bool:
        """Whether ``holder`` is certainly gone. Costs a few system calls, never waits."""
        if holder.machine_boot != self._boot:
            return True
        try:
            descriptor = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # out of descriptors, say: that tells nothing of the holder
        try:
            started = _started(holder.pid)
            return _has_ended(descriptor) or (started is not None and started != holder.started)
        finally:
            os.close(descriptor)


def _has_ended(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def _started(pid: int) -> int | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 1 :].split()[_START_FIELD - _AFTER_COMM])
