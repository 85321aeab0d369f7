"""Those who wait for room: a line for each pool, in order of arrival, and no wait without an end (MEM-02, I11).

Role: say who is next and who has waited long enough. Within a pool the order is strict: a small request does not
overtake a large one, which would otherwise wait for ever on a busy node. Pools do not wait for each other, and who
waits for a flight stands in no line: when it comes back, it takes the place of its arrival.
Must not know: stores, requests, clocks.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class WaitLimits:
    """Bounds of everything that a request may wait for on a node."""

    places: int = 256
    """Requests that wait, for room or for a flight, before further ones are refused."""
    places_per_tenant: int = 128
    """So many of them at most may be one tenant's, so that nobody fills them all alone."""
    room_s: float = 30.0
    """In the waiting room; then refused, retryably, as ``no_room``."""
    flight_s: float = 10.0
    """For other requests' builds, all in all; then computed by itself."""
    retry_base_s: float = 0.1
    """Pause before a block is tried again whose leader failed, doubled for each further failure."""
    retry_max_s: float = 2.0


class WaitingRoom:
    """Numbers of requests by pool. Single-threaded."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, list[int]] = {}
        self._until: dict[int, tuple[Hashable, float]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def enter(self, pool: Hashable, number: int, until: float) -> None:
        """``number`` waits for room in ``pool``, by its order among those who do."""
        insort(self._lines.setdefault(pool, []), number)
        self._until[number] = (pool, until)

    def leave(self, number: int) -> None:
        """No-op for those who are not here."""
        pool, _ = self._until.pop(number, (None, 0.0))
        line = self._lines.get(pool, [])
        at = bisect_left(line, number)
        if line[at : at + 1] == [number]:
            del line[at]
            if not line:
                del self._lines[pool]

    def is_behind(self, pool: Hashable, number: int) -> bool:
        """Whether somebody who came before ``number`` waits for the same pool."""
        first = self.first(pool)
        return first is not None and first < number

    def pools(self) -> list[Hashable]:
        """Those that somebody waits for."""
        return list(self._lines)

    def first(self, pool: Hashable) -> int | None:
        """Whose turn it is; None where nobody waits."""
        line = self._lines.get(pool)
        return line[0] if line is not None else None

    def overdue(self, now: float) -> list[int]:
        return sorted(number for number, (_, until) in self._until.items() if until <= now)

    @property
    def next_deadline(self) -> float | None:
        return min((until for _, until in self._until.values()), default=None)
