"""The fleet's child processes: started, watched, restarted after a crash, drained and stopped.

Invariants: only processes started here are ever signalled, by the handle that started them. A child dies with its
parent: the kernel sends it SIGTERM (PR_SET_PDEATHSIG), so a killed supervisor leaves nothing running. Restarts are
bounded (I11): after too many crashes in a row the child stays down, and its state says so.
This module does not know what a child does.

==========  ==============  ===========================================
state       on              next
==========  ==============  ===========================================
RUNNING     exited          WAITING | FAILED | STOPPED (see `RestartPolicy`)
RUNNING     stop            STOPPED
WAITING     delay over      RUNNING
WAITING     stop            STOPPED
==========  ==============  ===========================================
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from kvgrove_cli.errors import FleetProblem

log = logging.getLogger(__name__)

HOPELESS_EXIT = 2
"""Exit code of a member that another start would not help: its command line or what it was given has to change.

A member that once ran well has a sound command line: what is off then is a file that somebody is changing.
"""

_PR_SET_PDEATHSIG = 1
_LOG_TAIL_BYTES = 4096


class ChildState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class RestartPolicy:
    """Delays double from ``first_delay`` to ``longest_delay``; after ``limit`` crashes in a row the child stays down.

    A run of ``healthy_after`` seconds ends a row.
    """

    first_delay: float = 0.5
    longest_delay: float = 15.0
    healthy_after: float = 60.0
    limit: int = 8

    def delay(self, crashes: int) -> float | None:
        """Seconds to wait after the ``crashes``-th crash in a row; None: give up."""
        if crashes > self.limit:
            return None
        return float(min(self.first_delay * 2 ** (crashes - 1), self.longest_delay))


@dataclass(frozen=True)
class ChildSpec:
    name: str
    argv: Sequence[str]
    log_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""


@dataclass(frozen=True)
class ChildStatus:
    name: str
    state: ChildState
    pid: int | None
    restarts: int
    last_exit: int | None
    """Exit code of the last run that ended; negative: the signal that ended it."""
    message: str = ""
    """Last line of the log of a run that failed."""


class Child:
    """One supervised process. ``start`` once.

    ``changed`` is called after every change of state. ``ended`` is awaited when a process has been reaped, before the
    next one is started: whoever must know that the old one is over is told in time.
    """

    def __init__(
        self,
        spec: ChildSpec,
        policy: RestartPolicy,
        changed: Callable[["Child"], None],
        ended: Callable[[str], Awaitable[None]],
    ) -> None:
        self.spec = spec
        self._policy, self._changed, self._ended = policy, changed, ended
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._state = ChildState.STOPPED
        self._restarts = 0
        self._last_exit: int | None = None
        self._message = ""

    @property
    def status(self) -> ChildStatus:
        running = self._process is not None and self._process.returncode is None
        pid = self._process.pid if self._process is not None and running else None
        return ChildStatus(self.spec.name, self._state, pid, self._restarts, self._last_exit, self._message)

    async def start(self) -> None:
        """Raises FleetProblem where the program cannot be started at all."""
        await self._spawn()
        self._task = asyncio.create_task(self._supervise(), name=f"child {self.spec.name}")

    def kill(self, *, restart: bool) -> None:
        """SIGKILL, as a crash would be; without ``restart`` it stays down."""
        if not restart:
            self._stopping.set()
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` if the process is running."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, drain_seconds: float) -> None:
        """SIGTERM, wait up to ``drain_seconds`` for an orderly end, then SIGKILL. Returns when it is reaped."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=drain_seconds)
        if not done:
            log.warning("%s did not end within %.0f s of SIGTERM: killed", self.spec.name, drain_seconds)
            self.signal(signal.SIGKILL)
        await self._task

    async def _supervise(self) -> None:
        clock = asyncio.get_running_loop().time
        crashes = 0
        proven = False
        while self._process is not None:
            started = clock()
            self._last_exit = await self._process.wait()
            await self._ended(self.spec.name)
            if self._stopping.is_set():
                self._move(ChildState.STOPPED)
                return
            ran_well = clock() - started >= self._policy.healthy_after
            proven = proven or ran_well
            crashes = 1 if ran_well else crashes + 1
            self._message = _last_line(self.spec.log_file)
            if self._last_exit == HOPELESS_EXIT:
                crashes -= 1  # no crash: it waits for a repair, however long that takes
                delay = self._policy.longest_delay if proven else None
            else:
                delay = self._policy.delay(crashes)
            if delay is None:
                log.warning("%s ended with %d and stays down: %s", self.spec.name, self._last_exit, self._message)
                self._move(ChildState.FAILED)
                return
            log.warning("%s ended with %d; next start in %.1f s", self.spec.name, self._last_exit, delay)
            self._move(ChildState.WAITING)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
                self._move(ChildState.STOPPED)
                return
            self._restarts += 1
            try:
                await self._spawn()
            except FleetProblem as problem:
                self._message = problem.message
                self._move(ChildState.FAILED)
                return
            if self._stopping.is_set():  # asked for while the process was being made
                self.signal(signal.SIGTERM)

    async def _spawn(self) -> None:
        parent = os.getpid()
        try:
            with _open_log(self.spec.log_file) as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self.spec.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **self.spec.environment},
                    start_new_session=True,  # Ctrl-C in the terminal is for the parent, which then drains the children
                    preexec_fn=lambda: _die_with(parent),
                )
        except OSError as error:
            raise FleetProblem(f"{self.spec.name} could not be started: {error}", code="spawn_failed") from None
        self._move(ChildState.RUNNING)

    def _move(self, state: ChildState) -> None:
        self._state = state
        self._changed(self)


class Processes:
    """The children of one fleet by name."""

    def __init__(
        self, changed: Callable[[Child], None], ended: Callable[[str], Awaitable[None]], policy: RestartPolicy
    ) -> None:
        self._changed, self._ended, self._policy = changed, ended, policy
        self._children: dict[str, Child] = {}

    async def start(self, spec: ChildSpec) -> Child:
        """Start a child under a name that is not in use."""
        if spec.name in self._children:
            raise FleetProblem(f"a child named {spec.name} is already supervised", code="name_in_use")
        child = Child(spec, self._policy, self._changed, self._ended)
        self._children[spec.name] = child
        await child.start()
        return child

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def statuses(self) -> list[ChildStatus]:
        return [child.status for child in self._children.values()]

    async def stop(self, drain_seconds: float, names: Collection[str] | None = None) -> None:
        """Stop these (default: all) at the same time; see `Child.stop`."""
        chosen = self._children if names is None else names
        await asyncio.gather(*(child.stop(drain_seconds) for name, child in self._children.items() if name in chosen))


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def _last_line(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return next((line.strip()[:400] for line in reversed(lines) if line.strip()), "")
    return ""


_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any fork: a child between fork and exec may not allocate much


def _die_with(parent: int) -> None:
    """Runs in the child before exec: be told when the parent's end comes, also if it has come already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(HOPELESS_EXIT)
