"""Kill a process at every write boundary of one disk operation; a program of its own, since it forks.

``python disk_crash.py BASE SCENARIO LOSS`` makes ``BASE/0``, ``BASE/1``, ...: in each a directory is prepared, and a
child does SCENARIO there until it is really killed (SIGKILL) at the boundary of that number. LOSS says what goes with
it: ``none`` (the process alone dies), else the power goes too, and with it what was not synced: ``bytes``, ``names``,
``all``, or ``oldest`` (of each file the first write, as where a device writes in another order).
``BASE/before-0`` is a copy of what was prepared, ``BASE/attic-0`` holds what was unlinked. Prints one JSON line each:
what the child had been answered for by then. Ends when a child lived on.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from disk_rig import (
    NEXT_SECRET,
    OTHER_UID,
    SECRET,
    UID,
    adopt_all,
    body_of,
    chain,
    extents_in,
    open_disk,
)
from watched_filesystem import Countdown, ForgetfulFilesystem

from kvgrove_daemon.cache.tiers.disk import DiskMedium, Filesystem
from kvgrove_daemon.cache.tiers.medium import MediumCorrupt

Acknowledge = Callable[[str], None]
OURS, THEIRS = chain(6), chain(3, seed=1, namespace=OTHER_UID)


def opened(directory: Path, filesystem: Filesystem | None = None) -> DiskMedium:
    disk = open_disk(directory, filesystem=filesystem)
    disk.set_secret(UID, SECRET)
    disk.set_secret(OTHER_UID, SECRET)
    return disk


def prepare(directory: Path, scenario: str) -> None:
    """What was there before, whole and durable."""
    if scenario == "write":
        return
    disk = opened(directory)
    disk.write_many([(at, facts, body_of(facts)) for at, facts in enumerate(OURS[:4])])
    disk.write_many([(8 + at, facts, body_of(facts)) for at, facts in enumerate(THEIRS)])
    disk.close()
    if scenario == "set_aside":
        broken = extents_in(directory)[0]
        broken.write_bytes(broken.read_bytes()[:-1])
        (directory / "notes.txt").write_text("left by somebody")
        (directory / f"{'ab' * 16}.draft").write_bytes(b"never ended")
        (directory / f"{'cd' * 16}.extent").write_bytes(bytes(9000))


def write(directory: Path, filesystem: Filesystem, acknowledge: Acknowledge) -> None:
    disk = opened(directory, filesystem)
    for low, high in ((0, 1), (1, 3), (3, 6)):
        disk.write_many([(at, OURS[at], body_of(OURS[at])) for at in range(low, high)])
        acknowledge(f"written {high}")


def erase(directory: Path, filesystem: Filesystem, acknowledge: Acknowledge) -> None:
    disk = opened(directory, filesystem)
    slots = {facts.depth: slot for slot, facts in adopt_all(disk).items()}
    for depths in ((3,), (1, 2)):
        disk.erase([slots[depth] for depth in depths])
        acknowledge(f"erased {min(depths)}")
    disk.erase_namespace(OTHER_UID)
    acknowledge("namespace erased")


def rewrap(directory: Path, filesystem: Filesystem, acknowledge: Acknowledge) -> None:
    disk = opened(directory, filesystem)
    slots = {facts.depth: slot for slot, facts in adopt_all(disk).items()}
    disk.erase([slots[3]])
    acknowledge("erased 3")
    disk.rewrap(UID, SECRET, NEXT_SECRET)
    acknowledge("rewrapped")


def set_aside(directory: Path, filesystem: Filesystem, acknowledge: Acknowledge) -> None:
    disk = opened(directory, filesystem)
    acknowledge("opened")
    for first, namespace, root in ((0, UID, OURS[0].root), (8, OTHER_UID, THEIRS[0].root)):
        for slot, survivor in enumerate(disk.survey(namespace, {root}), first):
            assert disk.adopt(slot, survivor)
            path = directory / f"{survivor.extent.header.extent.hex()}.extent"
            with path.open("r+b") as file:  # from under the medium, as a failing disk does
                file.seek(-3, os.SEEK_END)
                file.write(b"\xff\xff\xff")
            with suppress(MediumCorrupt):
                disk.read(slot, survivor.facts)
                raise SystemExit("a broken body was read")
    acknowledge("read")


SCENARIOS = {"write": write, "erase": erase, "rewrap": rewrap, "set_aside": set_aside}


def run(directory: Path, scenario: str, loss: str, stop: int) -> tuple[list[str], bool]:
    """What was acknowledged, and whether the child was killed."""
    prepare(directory, scenario)
    if directory.exists():
        shutil.copytree(directory, directory.parent / f"before-{directory.name}")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)

        def die() -> None:
            filesystem.lose_power(loss)
            os.kill(os.getpid(), signal.SIGKILL)

        filesystem = ForgetfulFilesystem(Countdown(stop, die), directory.parent / f"attic-{directory.name}")
        SCENARIOS[scenario](directory, filesystem, lambda line: os.write(writer, f"{line}\n".encode()) and None)
        filesystem.at("the end")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        acknowledged = pipe.read().splitlines()
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return acknowledged, False
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise SystemExit(f"the child ended by itself: status {status}")
    return acknowledged, True


def main(base: Path, scenario: str, loss: str) -> None:
    for stop in range(1000):
        acknowledged, killed = run(base / str(stop), scenario, loss, stop)
        print(json.dumps({"stop": stop, "acknowledged": acknowledged, "killed": killed}), flush=True)
        if not killed:
            return
    raise SystemExit("a thousand boundaries and no end")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
