"""Children are real programs here: started, crashed, stopped, orphaned."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.processes import Child, ChildSpec, ChildState, Processes, RestartPolicy

QUICK = RestartPolicy(first_delay=0.01, longest_delay=0.02, healthy_after=3600.0, limit=3)
SLEEP = "import time; time.sleep(600)"
UP = "print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + UP
GRACEFUL = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('drained') or 0)); " + UP


class Watched:
    """Processes whose changes of state can be waited for."""

    def __init__(self, policy: RestartPolicy = QUICK) -> None:
        self.seen: list[ChildState] = []
        self._news = asyncio.Event()
        self.ended: list[tuple[str, ChildState]] = []
        self.processes = Processes(self._changed, self._ended, policy)

    async def _ended(self, name: str) -> None:
        await asyncio.sleep(0)
        self.ended.append((name, self.processes[name].status.state))

    def _changed(self, child: Child) -> None:
        self.seen.append(child.status.state)
        self._news.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not reached():
                self._news.clear()
                await self._news.wait()


def spec(tmp_path: Path, program: str, name: str = "child") -> ChildSpec:
    return ChildSpec(name, [sys.executable, "-c", program], tmp_path / "logs" / f"{name}.log")


def poll(reached: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline, "did not happen within 30 s"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_delays_double_to_a_ceiling_and_end() -> None:
    policy = RestartPolicy(first_delay=1, longest_delay=5, limit=5)
    assert [policy.delay(n) for n in range(1, 7)] == [1, 2, 4, 5, 5, None]


def test_a_crashed_child_is_started_again_until_the_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched()
        child = await watched.processes.start(spec(tmp_path, "import sys; sys.exit('out of luck')"))
        await watched.until(lambda: child.status.state is ChildState.FAILED)
        assert watched.seen == [ChildState.RUNNING, ChildState.WAITING] * 3 + [ChildState.RUNNING, ChildState.FAILED]
        assert (child.status.restarts, child.status.last_exit, child.status.pid) == (3, 1, None)
        assert child.status.message == "out of luck"
        assert watched.ended == [("child", ChildState.RUNNING)] * 4
        await watched.processes.stop(1)

    asyncio.run(scenario())


def test_a_child_that_says_it_is_hopeless_is_not_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched()
        child = await watched.processes.start(spec(tmp_path, "import sys; print('bad option'); sys.exit(2)"))
        await watched.until(lambda: child.status.state is ChildState.FAILED)
        assert (child.status.restarts, child.status.message) == (0, "bad option")

    asyncio.run(scenario())


def test_a_child_that_ran_well_outlives_a_file_that_is_broken_when_it_starts_again(tmp_path: Path) -> None:
    """However often it refuses the file: it comes back once that is repaired."""

    async def scenario() -> None:
        broken = tmp_path / "broken"
        program = f"import os, sys, time; os.path.exists({str(broken)!r}) and sys.exit(2); {UP}"
        watched = Watched(RestartPolicy(first_delay=0.01, longest_delay=0.01, healthy_after=0.0, limit=1))
        child = await watched.processes.start(spec(tmp_path, program))
        broken.touch()
        child.kill(restart=True)
        await watched.until(lambda: watched.seen.count(ChildState.WAITING) > 4)
        assert ChildState.FAILED not in watched.seen
        assert child.status.last_exit == 2
        broken.unlink()
        log = tmp_path / "logs" / "child.log"
        await asyncio.to_thread(poll, lambda: child.status.state is ChildState.RUNNING and "up" in log.read_text())
        await watched.processes.stop(5)

    asyncio.run(scenario())


@pytest.mark.parametrize("restart", [True, False])
def test_a_killed_child_comes_back_only_if_it_should(tmp_path: Path, restart: bool) -> None:
    async def scenario() -> None:
        watched = Watched()
        child = await watched.processes.start(spec(tmp_path, SLEEP))
        first = child.status.pid
        child.kill(restart=restart)
        wanted = ChildState.RUNNING if restart else ChildState.STOPPED
        await watched.until(lambda: len(watched.seen) > 1 and child.status.state is wanted)
        assert child.status.last_exit == -signal.SIGKILL
        assert (child.status.pid is not None) == restart
        assert child.status.pid != first
        await watched.processes.stop(5)

    asyncio.run(scenario())


def test_stop_drains_first_and_kills_only_what_does_not_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched()
        good = await watched.processes.start(spec(tmp_path, GRACEFUL, "good"))
        bad = await watched.processes.start(spec(tmp_path, STUBBORN, "bad"))
        for child in (good, bad):
            await asyncio.to_thread(poll, lambda child=child: "up" in child.spec.log_file.read_text())
        await watched.processes.stop(0.5)
        assert good.status.last_exit == 0
        assert "drained" in good.spec.log_file.read_text()
        assert bad.status.last_exit == -signal.SIGKILL
        assert {good.status.state, bad.status.state} == {ChildState.STOPPED}

    asyncio.run(scenario())


def test_stopping_while_waiting_for_the_next_start_ends_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched(RestartPolicy(first_delay=3600, longest_delay=3600))
        child = await watched.processes.start(spec(tmp_path, "raise SystemExit(1)"))
        await watched.until(lambda: child.status.state is ChildState.WAITING)
        await watched.processes.stop(30)
        assert child.status.state is ChildState.STOPPED

    asyncio.run(scenario())


def test_a_program_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(FleetProblem, match="could not be started") as caught:
            await Watched().processes.start(ChildSpec("x", [str(tmp_path / "none")], tmp_path / "x.log"))
        assert "\n" not in caught.value.message

    asyncio.run(scenario())


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = (
        "import asyncio, sys, pathlib\n"
        "from kvgrove_cli.processes import ChildSpec, Processes, RestartPolicy\n"
        "async def ended(name): pass\n"
        "async def main():\n"
        "    processes = Processes(lambda child: None, ended, RestartPolicy())\n"
        f"    spec = ChildSpec('c', [sys.executable, '-c', {SLEEP!r}], pathlib.Path({str(tmp_path / 'c.log')!r}))\n"
        "    child = await processes.start(spec)\n"
        "    print(child.status.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not is_gone(pid)
        process.kill()
    poll(lambda: is_gone(pid))


def test_a_child_is_out_of_reach_of_the_terminals_interrupt(tmp_path: Path) -> None:
    async def scenario() -> None:
        watched = Watched()
        child = await watched.processes.start(spec(tmp_path, SLEEP))
        assert child.status.pid is not None
        assert os.getpgid(child.status.pid) != os.getpgid(0)
        await watched.processes.stop(5)

    asyncio.run(scenario())
