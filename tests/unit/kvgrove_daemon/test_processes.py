"""Evidence that a process has ended, from real ones: death, a recycled number, another boot, a dead first thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvgrove_daemon.cache.foreign_leases import Holder
from kvgrove_daemon.cache.processes import Processes


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def seen(processes: Processes, pid: int) -> Holder:
    holder = processes.see(pid)
    assert holder is not None
    return holder


def test_a_process_has_ended_once_it_is_killed_even_before_its_parent_knows(child: subprocess.Popen[bytes]) -> None:
    processes = Processes()
    holder = seen(processes, child.pid)
    assert not processes.ended(holder)
    child.send_signal(signal.SIGSTOP)
    assert not processes.ended(holder), "stopped is not gone"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and left a zombie
    assert processes.ended(holder)
    assert processes.see(child.pid) is None
    child.wait()
    assert processes.ended(holder)


def test_a_recycled_number_and_an_earlier_boot_are_not_the_holder() -> None:
    processes = Processes()
    mine = seen(processes, os.getpid())
    assert not processes.ended(mine)
    assert processes.ended(replace(mine, started=mine.started - 1))
    assert processes.ended(replace(mine, machine_boot="another"))


@pytest.mark.parametrize("pid", [0, -1, 1 << 30, 1 << 80])
def test_what_is_no_process_is_not_seen(pid: int) -> None:
    assert Processes().see(pid) is None


FIRST_THREAD_ENDS = """
import ctypes, threading
lasting = threading.Thread(target=lambda: (print("up", flush=True), input()))
lasting.start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_while_any_of_its_threads_does() -> None:
    """The state that the kernel shows for it is that of its first thread: a zombie."""
    processes = Processes()
    command = [sys.executable, "-c", FIRST_THREAD_ENDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        holder = seen(processes, process.pid)
        assert not processes.ended(holder)
        process.kill()
        process.wait()
        assert processes.ended(holder)
