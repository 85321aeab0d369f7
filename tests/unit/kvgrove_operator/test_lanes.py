"""Nothing that rests on a record goes out before it is durable, and one member's slow record holds up no other (I3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kvgrove_operator.lanes import AT_ONCE, Lanes


class Desk:
    """Writes that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.said: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}

    async def write(self, member: str) -> None:
        self.begun.append(member)
        await self._gate(member).wait()

    def let_go(self, member: str) -> None:
        self._gate(member).set()

    def hold(self, member: str) -> None:
        self._gates[member] = asyncio.Event()

    def says(self, word: str) -> Callable[[], Awaitable[None]]:
        async def say() -> None:
            self.said.append(word)

        return say

    def _gate(self, member: str) -> asyncio.Event:
        return self._gates.setdefault(member, asyncio.Event())


def run(story: Callable[[Desk, Lanes], Awaitable[None]]) -> None:
    async def tell() -> None:
        desk = Desk()
        lanes = Lanes(desk.write)
        running = asyncio.create_task(lanes.run())
        await story(desk, lanes)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(tell())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_i3_a_grant_waits_for_the_record_of_its_member_alone() -> None:
    async def story(desk: Desk, lanes: Lanes) -> None:
        lanes.record("a")
        await lanes.deliver("a", desk.says("a"))
        await lanes.deliver("b", desk.says("b"))
        await settle()
        assert desk.said == ["b"]
        desk.let_go("a")
        await settle()
        assert desk.said == ["b", "a"]
        await lanes.deliver("a", desk.says("later"))
        assert desk.said[-1] == "later", "nothing is owed any more"

    run(story)


def test_i3_what_was_asked_for_while_a_write_was_under_way_needs_a_write_that_began_after() -> None:
    async def story(desk: Desk, lanes: Lanes) -> None:
        lanes.record("a")
        await settle()
        assert desk.begun == ["a"]
        lanes.record("a")  # the write under way may have been composed before this
        await lanes.deliver("a", desk.says("grant"))
        desk.let_go("a")
        desk.hold("a")
        await settle()
        assert desk.begun == ["a", "a"]
        assert desk.said == []
        desk.let_go("a")
        await settle()
        assert desk.said == ["grant"]

    run(story)


def test_i11_of_a_member_only_the_newest_grant_waits_and_only_so_many_writes_are_under_way() -> None:
    async def story(desk: Desk, lanes: Lanes) -> None:
        members = [f"m{number}" for number in range(AT_ONCE + 3)]
        for member in members:
            lanes.record(member)
        await settle()
        assert len(desk.begun) == AT_ONCE
        for word in ("old", "new"):
            await lanes.deliver("m0", desk.says(word))
        for member in members:
            desk.let_go(member)
        await settle()
        assert desk.said == ["new"]
        assert desk.begun == members

    run(story)
