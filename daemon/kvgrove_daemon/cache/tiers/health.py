"""Whether a tier may be written to: one table, a pure step.

::

    WELL --full--> SUSPENDED
    WELL --failed--> SUSPENDED
    WELL --worked--> WELL
    SUSPENDED --full--> SUSPENDED
    SUSPENDED --failed--> SUSPENDED
    SUSPENDED --worked--> WELL

Role: a tier whose medium is full or fails is left alone for a growing, bounded pause, and requests go on without it
(I7). What is stored already stays readable. Invariants: the reason is named for as long as the tier is suspended; after
each pause a little is tried. Must not know: media, clocks (the time is passed in).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class HealthState(StrEnum):
    WELL = "well"
    SUSPENDED = "suspended"


class HealthEvent(StrEnum):
    FULL = "full"
    FAILED = "failed"
    WORKED = "worked"


TRANSITIONS: Final = MappingProxyType(
    {
        (HealthState.WELL, HealthEvent.FULL): HealthState.SUSPENDED,
        (HealthState.WELL, HealthEvent.FAILED): HealthState.SUSPENDED,
        (HealthState.WELL, HealthEvent.WORKED): HealthState.WELL,
        (HealthState.SUSPENDED, HealthEvent.FULL): HealthState.SUSPENDED,
        (HealthState.SUSPENDED, HealthEvent.FAILED): HealthState.SUSPENDED,
        (HealthState.SUSPENDED, HealthEvent.WORKED): HealthState.WELL,
    }
)


@dataclass(frozen=True, slots=True)
class Health:
    """Of one tier."""

    state: HealthState = HealthState.WELL
    reason: str = ""
    """Code of the error that suspended it (``tier_full``, ``tier_failed``); empty while it is well."""
    pause_s: float = 0.0
    until: float = 0.0

    def may_write(self, now: float) -> bool:
        return self.state is HealthState.WELL or now >= self.until


def step(health: Health, event: HealthEvent, reason: str, now: float) -> Health:
    """The health after ``event`` at ``now``. ``reason``: the error's code, where there was one."""
    state = TRANSITIONS[health.state, event]
    if state is HealthState.WELL:
        return Health()
    if health.state is HealthState.SUSPENDED and now < health.until:
        return Health(state, reason, health.pause_s, health.until)  # work that was under way when it broke
    pause = min(max(health.pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
    return Health(state, reason, pause, now + pause)
