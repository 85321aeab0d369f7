"""One request, or one declared text -> what in its stable zone looks volatile (PRO-07). Pure."""

from collections.abc import Iterable

import msgspec

from kvgrove_prompt.linter.patterns import Volatile, matches
from kvgrove_prompt.linter.stable_zone import Zone

MAX_FINDINGS = 100
"""Of one request: more of them say nothing more."""

CURES = {
    Volatile.DATE: "say it in the last user message, where it costs only itself",
    Volatile.CLOCK: "say it in the last user message, where it costs only itself",
    Volatile.TIMESTAMP: "say it in the last user message, where it costs only itself",
    Volatile.UUID: "leave it out, or send it as metadata of the request",
    Volatile.IDENTIFIER: "leave it out, or send it as metadata of the request",
    Volatile.COUNTER: "leave it out: the messages say how many there were",
    Volatile.RANDOM_ORDER: "sort before sending: sets and maps come in another order each time",
    Volatile.VARIES: "move it behind everything that stays the same",
}
"""What to do about each kind."""


class Finding(msgspec.Struct, frozen=True):
    """``zone``: see `stable_zone`. ``start``, ``end``: characters of it; of a ``learned`` one, which was found by
    comparing requests, the word that varies and the one behind it. ``seen``: in how many requests. Holds no text."""

    kind: Volatile
    zone: str
    start: int
    end: int
    seen: int = 1
    learned: bool = False

    @property
    def cure(self) -> str:
        return CURES[self.kind]


def lint(zones: Iterable[Zone]) -> list[Finding]:
    """Findings in the order of ``zones`` and of their texts, at most `MAX_FINDINGS`."""
    found: list[Finding] = []
    for zone in zones:
        for match in matches(zone.text):
            if len(found) == MAX_FINDINGS:
                return found
            found.append(Finding(match.kind, zone.name, match.start, match.end))
    return found
