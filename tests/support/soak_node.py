"""A real daemon with a window: ``python soak_node.py --member ...``, and the window's address in ``SOAK_WINDOW``.

Whoever soaks it asks through the window for what only the inside can tell or do: a proof that every tier is whole, what
is pinned, loans to other processes, a disk that fails for a while. All of it is done by the core thread between two
steps, as everything else is. The daemon itself is the one that ships: only the file system below its disk tier is
another, which does what the real one does until it is told to fail.
"""

from __future__ import annotations

import errno
import functools
import gc
import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq

from kvgrove_daemon import __main__ as daemon
from kvgrove_daemon import node, node_pools
from kvgrove_daemon.cache.chains import Chain
from kvgrove_daemon.cache.debug import BrokenInvariant, check
from kvgrove_daemon.cache.lending import Lending, Loan, share_of
from kvgrove_daemon.cache.match import Match
from kvgrove_daemon.cache.processes import Processes
from kvgrove_daemon.cache.segments import SHM
from kvgrove_daemon.cache.tiers.debug import check_tier
from kvgrove_daemon.cache.tiers.disk import DiskMedium, Filesystem
from kvgrove_daemon.cache.tiers.disk.filesystem import Buffer
from kvgrove_daemon.core import Core
from kvgrove_daemon.node_pools import NodePool
from kvgrove_link.clock import boottime

TICK_S = 0.2
"""How often loans are looked after."""


class FailingFilesystem(Filesystem):
    """The real one, until `trouble` names an error: a full disk fails what takes room, a broken one all that writes."""

    trouble = 0

    def _maybe(self, *, takes_room: bool) -> None:
        if self.trouble == errno.EIO or (self.trouble and takes_room):
            raise OSError(self.trouble, os.strerror(self.trouble))

    def create(self, path: Path) -> int:
        self._maybe(takes_room=True)
        return super().create(path)

    def write_at(self, descriptor: int, offset: int, parts: Sequence[Buffer]) -> None:
        self._maybe(takes_room=True)
        super().write_at(descriptor, offset, parts)

    def sync(self, descriptor: int) -> None:
        self._maybe(takes_room=False)
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe(takes_room=False)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._maybe(takes_room=False)
        super().unlink(path)


FILESYSTEM = FailingFilesystem()


class WindowedCore(Core):
    """The daemon's core thread, which also answers through the window."""

    _window: zmq.Socket[bytes] | None = None

    def _turn(self) -> None:
        super()._turn()
        if self._window is None:
            self._open_window()
        self._look_after_loans()
        while self._window is not None and self._window.poll(0):
            question = msgspec.json.decode(self._window.recv())
            self._window.send(msgspec.json.encode(self._answer(**question)))

    def _open_window(self) -> None:
        self._window = zmq.Context.instance().socket(zmq.REP)
        self._window.setsockopt(zmq.LINGER, 0)
        self._window.bind(os.environ["SOAK_WINDOW"])
        self._processes = Processes()
        self._lending: dict[int, Lending] = {}
        self._loans: list[tuple[Lending, str]] = []
        self._next_tick = 0.0

    def _answer(self, do: str, **what: Any) -> dict[str, Any]:
        match do:
            case "disk":
                FILESYSTEM.trouble = int(what["errno"])
                return {}
            case "lend":
                return {"lent": self._lend(int(what["pid"]), float(what["seconds"]), int(what["pick"]))}
            case "give_back":
                return {"given": self._give_back(int(what["pick"]))}
            case "look":
                return self._look(deep=bool(what["deep"]))
        raise ValueError(f"the window does not know {do!r}")

    # -- loans ---------------------------------------------------------------------------------------------------------

    def _lend(self, pid: int, seconds: float, pick: int) -> str:
        """Lend the chain that ends at some READY block to process ``pid``; answers the loan's id or the refusal."""
        pool = self._pools.all()[0]
        resident = pool.store.resident
        ready = resident.index.ready_ids().tolist()
        if not ready:
            return "nothing_ready"
        tail = ready[pick % len(ready)]
        lease = resident.leases.take(tail)
        # What a look-up of that chain would have found; the chain itself is of no interest to lending.
        match = Match(cast(Chain, None), resident.index.depth[tail] + 1, resident, lease)
        lending = self._lending_of(pool)
        with match:
            loan = lending.lend(match, self._processes.see(pid), seconds, boottime())
        if isinstance(loan, Loan):
            self._loans.append((lending, loan.id))
            return loan.id
        return loan.value

    def _lending_of(self, pool: NodePool) -> Lending:
        if id(pool) not in self._lending:
            limits = share_of(pool.arena.num_slots, percent=30, holder_percent=15)
            new_id = functools.partial(secrets.token_hex, 16)
            self._lending[id(pool)] = Lending(pool.store, limits, self._processes, new_id=new_id)
        return self._lending[id(pool)]

    def _give_back(self, pick: int) -> bool:
        if not self._loans:
            return False
        lending, loan = self._loans.pop(pick % len(self._loans))
        return lending.give_back(loan)

    def _look_after_loans(self) -> None:
        if (now := time.monotonic()) >= self._next_tick:
            self._next_tick = now + TICK_S
            for lending in self._lending.values():
                lending.tick(boottime())

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self, *, deep: bool) -> dict[str, Any]:
        """``deep``: prove every tier, which takes a moment."""
        if deep:
            gc.collect()
        pools = self._pools.all()
        stacks = [pool.stack for pool in pools]
        tiers = [tier for stack in stacks for tier in stack.lower]
        stats = [pool.store.stats() for pool in pools]
        lent = [lending.stats() for lending in self._lending.values()]
        waiting = self._runner.flights.stats().waiting + self._runner.waiting_for_room
        return {
            "broken": _broken(pools) if deep else [],
            "pinned": {
                "leases": sum(each.leases for each in stats),
                "builds": sum(each.builds for each in stats),
                "private": sum(each.private for each in stats),
                "retiring": sum(each.retiring for each in stats),
                "quarantined": sum(each.quarantined for each in stats),
                "loans": sum(each.loans for each in lent),
                "requests": len(self._runner.roster),
                "waiting": waiting,
                "tier_leases": sum(tier.resident.leases.active for tier in tiers),
                "tier_private": sum(tier.stats().private for tier in tiers),
                "tier_clearing": sum(tier.stats().clearing for tier in tiers),
                "copies": sum(write.busy for stack in stacks for write in stack.writes),
            },
            "bytes": [figures for pool in pools for figures in _bytes(pool)],
            "did": {
                "lent": sum(each.lent for each in lent),
                "revoked": sum(each.revoked for each in lent),
                "evicted_for_requests": sum(each.evicted_for_requests for each in stats),
                "removed": {str(cause): count for each in stats for cause, count in each.removed.items()},
                "no_room": sum(each.no_room for each in stats),
                "written": sum(tier.written for tier in tiers),
                "loaded": sum(tier.loaded for tier in tiers),
                "corrupt": sum(tier.corrupt for tier in tiers),
                "suspended": [tier.health.reason for tier in tiers],
                "known_chain_bytes": sum(each.known_chain_bytes for each in stats),
            },
        }


def _broken(pools: Sequence[NodePool]) -> list[str]:
    broken: list[str] = []
    for pool in pools:
        for proof in (
            lambda pool=pool: check(pool.store),
            *(functools.partial(check_tier, t) for t in pool.stack.lower),
        ):
            try:
                proof()
            except BrokenInvariant as error:
                broken.append(error.message)
    return broken


def _bytes(pool: NodePool) -> list[dict[str, Any]]:
    """What is accounted, and what the kernel says is there."""
    stats, layout = pool.store.stats(), pool.arena.layout
    states = stats.free + stats.ready + stats.retiring + stats.private + stats.quarantined
    found: list[dict[str, Any]] = []
    if (name := pool.arena.shared_name) is not None:
        found.append({"tier": pool.tier, "accounted": states * layout.block_bytes, "real": (SHM / name).stat().st_size})
    if (disk := pool.disk) is not None:
        tier, state = pool.stack.lower[-1], disk.state()
        stats_below = tier.stats()
        files, drafts = _files(disk.directory)
        accounted = (stats_below.ready + stats_below.retiring + stats_below.private) * disk.file_bytes
        waiting = state.waiting * disk.file_bytes
        found.append({"tier": tier.name, "accounted": accounted + waiting, "real": files, "drafts": drafts})
        if tier.health.reason:  # left alone for a while: what is to be cleared is still there
            found[-1]["clearing"] = stats_below.clearing * disk.file_bytes
    return found


def _files(directory: Path) -> tuple[int, int]:
    """Bytes of the extents, and drafts. Workers may be at it: what has gone meanwhile is not counted."""
    size = drafts = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                size += entry.stat().st_size if entry.name.endswith(".extent") else 0
                drafts += entry.name.endswith(".draft")
    return size, drafts


def main() -> int:
    node_pools.DiskMedium.open = functools.partial(DiskMedium.open, filesystem=FILESYSTEM)  # type: ignore[method-assign]
    node.Core = WindowedCore  # type: ignore[misc]
    return daemon.main()


if __name__ == "__main__":
    sys.exit(main())
