"""Texts that a member holds: fetched once, checked, bounded, and missing by name rather than wrong."""

import asyncio
from collections.abc import Iterable

import pytest

from kvgrove_link.bodies import body_digest
from kvgrove_link.body_store import BodiesMissing, BodyStore
from kvgrove_link.errors import FetchTimeout


class Planner:
    """Answers with what it knows, and remembers what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.bodies = {body_digest(text.encode()): text.encode() for text in texts}
        self.asked: list[list[bytes]] = []
        self.silent = False

    async def fetch(self, digests: list[bytes]) -> dict[bytes, bytes]:
        self.asked.append(digests)
        if self.silent:
            await asyncio.Event().wait()
        return {digest: self.bodies[digest] for digest in digests if digest in self.bodies}


def names(*texts: str) -> list[bytes]:
    return [body_digest(text.encode()) for text in texts]


def store_of(planner: Planner, max_bytes: int = 1000, timeout_s: float = 60.0) -> BodyStore:
    return BodyStore(planner.fetch, max_bytes=max_bytes, timeout_s=timeout_s)


async def texts(store: BodyStore, wanted: Iterable[bytes]) -> list[str]:
    return [*(await store.get(wanted)).values()]


def test_a_text_is_fetched_once_and_kept_until_the_plan_drops_it() -> None:
    async def run() -> None:
        planner = Planner("one", "zwei ä")
        store = store_of(planner)
        assert sorted(await texts(store, names("one", "one"))) == ["one"]
        assert sorted(await texts(store, names("one", "zwei ä"))) == ["one", "zwei ä"]
        assert planner.asked == [names("one"), names("zwei ä")]
        assert store.size == len("onezwei ä".encode())
        store.retain(names("one"))
        assert store.size == 3
        await store.get(names("zwei ä"))
        assert planner.asked[-1] == names("zwei ä")

    asyncio.run(run())


def test_what_cannot_be_had_is_counted_and_what_came_is_kept() -> None:
    async def run() -> None:
        planner = Planner("known")
        store = store_of(planner)
        with pytest.raises(BodiesMissing, match="1 of 2 texts"):
            await store.get(names("known", "unknown"))
        assert await texts(store, names("known")) == ["known"]
        assert len(planner.asked) == 1

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"forged", b"\xff\xfe"])
def test_bytes_that_are_not_the_text_of_their_digest_are_never_given_out(body: bytes) -> None:
    async def run() -> None:
        planner = Planner()
        digest = body_digest(b"\xff\xfe")
        planner.bodies[digest] = body
        store = store_of(planner)
        with pytest.raises(BodiesMissing):
            await store.get([digest])
        assert store.size == 0

    asyncio.run(run())


def test_i11_texts_beyond_the_bound_push_out_the_least_recently_used() -> None:
    async def run() -> None:
        planner = Planner("a" * 40, "b" * 40, "c" * 40, "d" * 101)
        store = store_of(planner, max_bytes=100)
        await store.get(names("a" * 40, "b" * 40))
        await store.get(names("a" * 40))
        await store.get(names("c" * 40))
        assert store.size == 80
        asked = len(planner.asked)
        await store.get(names("a" * 40, "c" * 40))
        assert len(planner.asked) == asked, "used last, kept"
        assert await texts(store, names("d" * 101)) == ["d" * 101], "too large to keep, and given out all the same"
        assert store.size == 80
        await store.get(names("b" * 40))
        assert planner.asked[-1] == names("b" * 40)

    asyncio.run(run())


def test_i11_a_silent_planner_is_waited_for_within_a_bound() -> None:
    async def run() -> None:
        planner = Planner("late")
        planner.silent = True
        store = store_of(planner, timeout_s=0.01)
        with pytest.raises(BodiesMissing):
            await store.get(names("late"))
        planner.silent = False
        assert await texts(store, names("late")) == ["late"]

    asyncio.run(run())


def test_a_link_that_gives_up_is_a_text_that_is_missing_for_now() -> None:
    async def fetch(digests: list[bytes]) -> dict[bytes, bytes]:
        raise FetchTimeout(f"{len(digests)} bodies did not arrive")

    async def run() -> None:
        store = BodyStore(fetch, max_bytes=10, timeout_s=60.0)
        await store.prefetch(names("x"))
        with pytest.raises(BodiesMissing):
            await store.get(names("x"))

    asyncio.run(run())


def test_reading_ahead_fetches_what_is_not_here_and_stops_when_full() -> None:
    async def run() -> None:
        planner = Planner("a" * 60, "b" * 40, "c")
        store = store_of(planner, max_bytes=100)
        await store.prefetch(names("a" * 60, "b" * 40))
        await store.prefetch(names("a" * 60))
        await store.prefetch(names("c"))
        assert len(planner.asked) == 1
        await store.get(names("a" * 60, "b" * 40))
        assert len(planner.asked) == 1

    asyncio.run(run())
