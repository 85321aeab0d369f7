"""What waits until it is on record, member by member: one member's slow write holds up no other, nor the fleet.

A grant goes out only once all that its member's record was asked for before it is durable (I3). Late is harmless: the
lease counts from the report that it answers, and the planner has counted it since. Of a member only the newest grant
waits; one that it replaces was never sent, and the next report brings another.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Deliver = Callable[[], Awaitable[None]]

AT_ONCE = 4
"""Writes under way: a hundred members' records must not keep the leader's Lease from being renewed."""


@dataclass
class _Lane:
    wanted: int = 0
    """Times that the record was asked for."""
    written: int = 0
    """Of those, how many are durable."""
    queued: bool = False
    held: Deliver | None = None
    held_for: int = 0
    """Of ``wanted``, when it was handed in."""


class Lanes:
    """``write`` makes the record of a member durable, as it is to be at that moment, however long that takes."""

    def __init__(self, write: Callable[[str], Awaitable[None]]) -> None:
        self._write = write
        self._lanes: dict[str, _Lane] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> None:
        """For ever. Raises what ``write`` raises."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._work())

    def record(self, member: str) -> None:
        """Have the record of ``member`` written; what is handed in for it from now on waits for that."""
        lane = self._lanes.setdefault(member, _Lane())
        lane.wanted += 1
        if not lane.queued:
            lane.queued = True
            self._queue.put_nowait(member)

    async def deliver(self, member: str, deliver: Deliver) -> None:
        """At once, or when all that was asked for before is durable; in place of what waits for that now."""
        lane = self._lanes.get(member)
        if lane is None:
            await deliver()
        else:
            lane.held, lane.held_for = deliver, lane.wanted

    async def _work(self) -> None:
        while True:
            member = await self._queue.get()
            lane = self._lanes[member]
            lane.queued, target = False, lane.wanted
            await self._write(member)
            lane.written = max(lane.written, target)
            deliver = lane.held if lane.held_for <= lane.written else None
            if deliver is not None:
                lane.held = None
            if lane.written == lane.wanted and self._lanes.get(member) is lane:
                del self._lanes[member]
            if deliver is not None:
                await deliver()
