"""Tells people what a fleet is doing while they wait: a line for each thing that is in another state than before."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from kvgrove_cli.errors import FleetProblem
from kvgrove_cli.fleet import Fleet
from kvgrove_cli.status import FleetStatus


@asynccontextmanager
async def narrated(fleet: Fleet, say: Callable[[str], None]) -> AsyncIterator[None]:
    """While inside, ``say`` gets the lines."""
    task = asyncio.create_task(_narrate(fleet, say))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, FleetProblem):  # what broke the fleet is told by whoever waits for it
            await task


def lines(current: FleetStatus) -> dict[str, str]:
    """Subject -> its state in words."""
    said = {
        f"model {m.name}": _with(f"{m.state} on {m.nodes_ready} of {m.nodes} nodes", m.message) for m in current.models
    }
    said |= {
        f"namespace {n.name}": _with(n.phase + (f" {n.warm_ready}/{n.warm_wanted}" if n.warm_wanted else ""), n.message)
        for n in current.namespaces
    }
    said |= {f"{m.name}": _with(m.state if not m.connected else "connected", m.message) for m in current.members}
    return said | {f"problem: {p.object}": _with(p.reason, p.message) for p in current.problems}


async def _narrate(fleet: Fleet, say: Callable[[str], None]) -> None:
    told: dict[str, str] = {}
    while True:
        told = _tell(told, lines(fleet.status()), say)
        await _until_other(fleet, told)


def _tell(told: dict[str, str], now: dict[str, str], say: Callable[[str], None]) -> dict[str, str]:
    for subject, state in now.items():
        if told.get(subject) != state:
            say(f"{subject}: {state}")
    return now


async def _until_other(fleet: Fleet, told: dict[str, str]) -> None:
    await fleet.wait_for(lambda current: lines(current) != told, math.inf)


def _with(state: str, message: str) -> str:
    return f"{state}: {message}" if message else state
