"""A soak of one real node: random load with failures, and what must hold whenever it pauses.

Role: drive the daemon, its planner and its gateways through a fixed number of seconds; stop the load from time to time
and prove that nothing is pinned, all bytes are accounted for and every tier is whole; judge growth over the longest
life of the process. In the first part of the time the process is killed now and then; the rest is one life, of which
the beginning is left out, so that what grows is growth. Must not know: how requests are judged, what plans mean.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak_boots import Boots
from soak_load import Load
from soak_verdict import Life, Sample
from soak_world import World

from kvgrove_daemon.cache.segments import SHM
from kvgrove_protocol.receipts import EraseOutcome

IN_FLIGHT = 8
ACTS_PER_S = 3.0
"""How often something goes wrong, or changes."""
SETTLE_S = 120.0
"""How long a pause waits for what must come back. A failed disk is left alone for growing pauses first."""
KILLING_SHARE, KILL_EVERY_S = 0.3, 30.0
"""The part of the time in which the process is killed now and then, once at least."""


class Soak:
    """See the module. `run` answers the report; ``broken`` in it is empty where every promise held."""

    def __init__(self, model: Path, root: Path, *, seed: int, seconds: float, say: Callable[[str], None]) -> None:
        self._root, self._seconds, self._say = root, seconds, say
        self._seed = seed
        self._world = World(seed)
        self._load = Load(self._world)
        self._boots = Boots(model, root, self._world, self._step)
        self._did: Counter[str] = Counter()
        self._broken: list[str] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._pauses: list[dict[str, Any]] = []
        self._life = Life()
        self._totals: Counter[str] = Counter()
        self._disk_until = self._lease_until = self._next_sample = 0.0

    # -- the node ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._boots.start()
        self._disk_until = 0.0  # a new process has a disk that works
        self._life = Life()
        self._load.generation = self._boots.generation
        self._load.connect(self._boots.address)

    def _kill(self) -> None:
        self._account()
        self._boots.kill()
        self._did["kills"] += 1
        self._start()

    def _account(self) -> None:
        """Keep what this life of the process counted, before it ends."""
        did = self._boots.ask(do="look", deep=False)["did"]
        self._totals.update({name: count for name, count in did.items() if isinstance(count, int)})
        self._totals.update({f"removed_{cause}": count for cause, count in did["removed"].items()})

    # -- the load ------------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """The report. Leaves no process and no memory behind, however it ends."""
        began = time.monotonic()
        try:
            self._start()
            self._go()
            self._pause(last=True)
            self._account()
            if code := self._boots.stop():
                self._broken.append(f"the daemon ended with {code} after SIGTERM")
        finally:
            self._end_children()
            self._boots.close()
            self._load.close()
        left = [path.name for path in SHM.glob(f"kvgrove-{self._boots.member}-*")]
        self._broken += [f"a shared-memory segment is left behind: {name}" for name in left]
        return self._report(time.monotonic() - began, left)

    def _go(self) -> None:
        """So many seconds of load; what boots and pauses take comes on top."""
        every = max(4.0, min(30.0, self._seconds / 6))
        killing = self._seconds * KILLING_SHARE
        kills = max(1, round(killing / KILL_EVERY_S))
        to_kill = [killing * (number + 1) / kills for number in range(kills)]
        to_pause = [every * (number + 1) for number in range(int(self._seconds / every) - 1)]
        load, next_act = 0.0, 0.0
        while load < self._seconds:
            began = time.monotonic()
            self._step()
            if self._load.in_flight < IN_FLIGHT:
                self._load.ask()
            if load >= next_act:
                next_act = load + self._world.rng.expovariate(ACTS_PER_S)
                self._act(began)
            load += time.monotonic() - began
            if to_kill and load >= to_kill[0]:
                del to_kill[0]
                self._kill()
            if to_pause and load >= to_pause[0]:
                del to_pause[0]
                self._pause()

    def _step(self) -> None:
        """A moment of everybody's life: planner, gateways, clocks."""
        self._boots.play(0.003)
        self._load.receive()
        self._take_receipts()
        now = time.monotonic()
        if self._lease_until and now >= self._lease_until:
            self._lease_until, self._boots.rig.grant_leases = 0.0, True
        if now >= self._next_sample:
            self._next_sample = now + 1.0
            self._life.samples.append(Sample.of(self._boots.pid, now))

    def _take_receipts(self) -> None:
        report = self._boots.rig.report
        for receipt in report.receipts if report is not None else ():
            if receipt.outcome is EraseOutcome.PROVEN and self._world.erased(receipt.uid, receipt.erasure):
                self._did["erased"] += 1
                self._boots.issue()

    def _act(self, now: float) -> None:
        """Something goes wrong, or changes."""
        rng = self._world.rng
        act = rng.choices(
            ("purge", "document", "quota", "erase", "replace", "peer", "garbage", "lease", "disk", "lend", "reaper"),
            (4, 6, 4, 5, 1, 4, 4, 2, 3, 12, 8),
        )[0]
        match act:
            case "purge":
                self._world.purge()
                self._boots.issue()
            case "document":
                self._world.change_document()
                self._boots.issue()
            case "quota":
                self._world.change_quota()
                self._boots.issue()
            case "erase":
                if not self._world.erase():
                    return
                self._boots.issue()
            case "replace":
                if self._world.erase_uids:
                    return
                self._world.replace_namespace()
                self._boots.issue()
            case "peer":
                self._load.lose_peer()
            case "garbage":
                self._load.send_garbage()
            case "lease":
                self._boots.rig.grant_leases, self._lease_until = False, now + rng.uniform(2.0, 8.0)
            case "disk":
                self._boots.ask(do="disk", errno=rng.choice((errno.ENOSPC, errno.EIO)))
                self._disk_until = now + rng.uniform(0.2, 3.0)
            case "lend":
                self._lend()
            case _:
                self._reap()
        self._did[act] += 1
        if self._disk_until and now >= self._disk_until:
            self._mend_disk()

    def _mend_disk(self) -> None:
        self._disk_until = 0.0
        self._boots.ask(do="disk", errno=0)

    def _lend(self) -> None:
        """Blocks for a process that will not give them back."""
        rng = self._world.rng
        if len(self._children) < 4:
            self._children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]))
        child = rng.choice(self._children)
        pick, seconds = rng.randrange(1 << 30), rng.choice((0.2, 2.0, 30.0))
        self._boots.ask(do="lend", pid=child.pid, seconds=seconds, pick=pick)

    def _reap(self) -> None:
        """A holder dies, or gives one loan back."""
        rng = self._world.rng
        if self._children and rng.random() < 0.6:
            child = self._children.pop(rng.randrange(len(self._children)))
            child.kill()
            child.wait()
        else:
            self._boots.ask(do="give_back", pick=rng.randrange(1 << 30))

    def _end_children(self) -> None:
        while self._children:
            child = self._children.pop()
            child.kill()
            child.wait()

    # -- pauses --------------------------------------------------------------------------------------------------------

    def _pause(self, *, last: bool = False) -> None:
        """Let everything end that is under way, and look whether all of it has."""
        self._end_children()
        if self._disk_until:
            self._mend_disk()
        self._lease_until, self._boots.rig.grant_leases = 0.0, True
        deadline = time.monotonic() + SETTLE_S
        while not (self._load.finish_checks() if last else self._load.in_flight == 0):
            if time.monotonic() > deadline + SETTLE_S:
                break
            self._step()
        while True:
            # One look for both: an idle node goes on warming and copying, so that another one sees another moment.
            seen = self._boots.ask(do="look", deep=True)
            unsettled = _unsettled(seen, last=last)
            if not unsettled and not (last and self._world.erasing):
                break
            if time.monotonic() > deadline:
                break
            self._wait(0.2)
        self._broken += [f"at pause {len(self._pauses) + 1}: {what}" for what in [*unsettled, *seen["broken"]]]
        if last:
            self._broken += [f"erasure not proven: {which}" for which in self._world.erasing]
        self._pauses.append({"pinned": sum(_pinned(seen, last=last).values()), "bytes": seen["bytes"]})
        sample = Sample.of(self._boots.pid, time.monotonic())
        self._life.pauses.append(sample)
        self._say(
            f"pause {len(self._pauses)}: {'whole' if not self._broken else self._broken[-1]}; "
            f"rss {sample.rss >> 20} MiB, {sample.descriptors} descriptors, {sample.threads} threads"
        )

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._step()

    # -- the report ----------------------------------------------------------------------------------------------------

    def _report(self, seconds: float, left: list[str]) -> dict[str, Any]:
        growth = self._life.growth()
        broken = [*self._broken, *self._load.broken, *growth.broken]
        return {
            "seed": self._seed,
            "seconds": round(seconds, 1),
            "pauses": len(self._pauses),
            "pinned_at_pauses": max((pause["pinned"] for pause in self._pauses), default=0),
            "bytes_at_end": self._pauses[-1]["bytes"] if self._pauses else [],
            "segments_left": len(left),
            "requests": dict(self._load.codes),
            "load": dict(self._load.did),
            "events": dict(self._did),
            "cache": dict(self._totals),
            "growth": growth.figures,
            "broken": sorted(Counter(broken).items()),
        }


def _resting(seen: dict[str, Any], *, last: bool) -> bool:
    """A disk that failed just now is left alone for a while, and says so: meanwhile files may wait to be cleared."""
    return not last and any("clearing" in each for each in seen["bytes"])


def _pinned(seen: dict[str, Any], *, last: bool) -> dict[str, int]:
    free = {"tier_clearing"} if _resting(seen, last=last) else set()
    return {what: count for what, count in seen["pinned"].items() if count and what not in free}


def _unsettled(seen: dict[str, Any], *, last: bool) -> list[str]:
    """What is pinned, and bytes that are not those that are accounted for, while nothing is asked for."""
    resting = _resting(seen, last=last)
    bytes_off = [
        f"{each['tier']}: {each['accounted']} bytes are accounted for, {each['real']} are there"
        for each in seen["bytes"]
        if not each["accounted"] <= each["real"] <= each["accounted"] + (each.get("clearing", 0) if resting else 0)
        or (each.get("drafts") and not resting)
    ]
    return [f"{count} {what} are pinned" for what, count in _pinned(seen, last=last).items()] + bytes_off
