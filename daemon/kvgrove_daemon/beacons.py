"""What this node is computing, told to the gateways that follow it before it is READY.

Role: a cold prefix that is asked for through several gateways is built once. The node knows what it builds; a gateway
that hears of it sends others who want the same prefix here, where the node's own flights let them wait (`cache.flights`
bounds that wait). Invariants: every build that was begun is ended, once, by whoever ends the request; at most
`MAX_BUILDS` are told at a time and `MAX_BUILD_KEYS` of each, and what is not told is counted (I11); each has a time to
live, so that no end which went astray steers anybody for long.
Must not know: requests, stores, sockets. Belongs to the core thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvgrove_protocol.events import MAX_BUILD_KEYS, MAX_BUILDS, Beacons, Build

SLACK: Final = 1.5
"""Times the expected duration, which is an estimate of a node that goes on admitting others."""
GRACE_S: Final = 1.0
LONGEST_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Told:
    build: Build
    upto: int
    """Blocks of the prompt: READY up to here, all that was told is there."""


class BuildBeacons:
    """Builds under way by the id of their request, and what changed since `take`."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._begun: dict[int, Build] = {}
        self._ended: list[int] = []
        self._next = 0
        self.untold = 0
        """Builds that were not told, because `MAX_BUILDS` were under way."""

    @property
    def news(self) -> bool:
        return bool(self._begun or self._ended)

    def begin(self, request_id: str, keys: Sequence[bytes], first: int, expected_s: float | None) -> None:
        """The blocks of ``keys`` (all of a prompt) from ``first`` on are computed now.

        ``expected_s``: until that is done; None where the node's pace is not measured. A second call for one request
        is a no-op.
        """
        part = keys[first : first + MAX_BUILD_KEYS]
        if not part or request_id in self._told:
            return
        if len(self._told) >= MAX_BUILDS:
            self.untold += 1
            return
        seconds = LONGEST_S if expected_s is None else min(expected_s * SLACK + GRACE_S, LONGEST_S)
        build = Build(self._next, b"".join(part), seconds)
        self._next += 1
        self._told[request_id] = _Told(build, first + len(part))
        self._begun[build.number] = build

    def progress(self, request_id: str, upto: int) -> None:
        """Blocks below ``upto`` of the request are READY: with the last that was told, the build is over."""
        told = self._told.get(request_id)
        if told is not None and upto >= told.upto:
            self.end(request_id)

    def end(self, request_id: str) -> None:
        """Nothing more of it becomes READY. An unknown request is a no-op."""
        told = self._told.pop(request_id, None)
        if told is not None and self._begun.pop(told.build.number, None) is None:
            self._ended.append(told.build.number)

    def take(self) -> Beacons | None:
        """What changed since the last call; None: nothing."""
        if not self.news:
            return None
        beacons = Beacons(list(self._begun.values()), self._ended)
        self._begun, self._ended = {}, []
        return beacons

    def under_way(self) -> list[Build]:
        """All that were told and have not ended."""
        return [told.build for told in self._told.values()]
