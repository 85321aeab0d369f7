"""I5 on the device tier: a lease covers a copy until the copy's event has come."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kvgrove_daemon.cache.device_pool import CopiesFull, CopiesInFlight


@dataclass
class Point:
    """A point in a stream that the test moves past it."""

    done: bool = False
    waited: bool = False

    def synchronize(self) -> None:
        self.done = self.waited = True


@dataclass
class Hold:
    released: list[str]
    name: str = "lease"
    times: int = field(default=0)

    def release(self) -> bool:
        self.times += 1
        self.released.append(self.name)
        return True


def test_i5_a_lease_is_given_back_only_after_its_copy() -> None:
    released: list[str] = []
    copies, points = CopiesInFlight("out", 8), [Point(), Point()]
    for name, point in zip("ab", points, strict=True):
        copies.hold(point, Hold(released, name))
    assert copies.poll() == 0
    points[0].done = True
    assert copies.poll() == 1
    assert released == ["a"]
    points[1].done = True
    assert copies.poll() == 1
    assert copies.poll() == 0
    assert released == ["a", "b"]


def test_i5_a_later_event_does_not_overtake_an_earlier_one() -> None:
    released: list[str] = []
    copies = CopiesInFlight("in", 8)
    copies.hold(Point(), Hold(released, "first"))
    copies.hold(Point(done=True), Hold(released, "second"))
    assert copies.poll() == 0
    assert released == []


def test_i11_the_bound_is_reached_visibly_and_passes() -> None:
    released: list[str] = []
    copies, point = CopiesInFlight("out", 1), Point()
    copies.need_room()
    copies.hold(point, Hold(released))
    with pytest.raises(CopiesFull) as full:
        copies.need_room()
    assert (full.value.code, copies.refused, len(copies)) == ("copies_full", 1, 1)
    point.done = True
    copies.need_room()
    assert (len(copies), released) == (0, ["lease"])


def test_draining_waits_for_every_copy() -> None:
    released: list[str] = []
    copies, points = CopiesInFlight("out", 8), [Point(), Point(done=True)]
    for point in points:
        copies.hold(point, Hold(released))
    copies.drain()
    assert points[0].waited
    assert released == ["lease", "lease"]
    assert len(copies) == 0


def test_a_bound_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        CopiesInFlight("out", 0)
