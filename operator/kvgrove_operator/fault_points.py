"""Named places between two effects, at which a test can have this process killed.

Nothing happens unless the environment variable `VARIABLE` names a file that says ``POINT N``: then the process kills
itself, by SIGKILL, when it passes that point for the Nth time from now on, and the file is gone. The list is closed:
what a new effect rests on gets a point of its own before and after it.
"""

import os
import signal
from enum import StrEnum
from pathlib import Path
from typing import Final

VARIABLE: Final = "KVGROVE_DIE_AT"


class FaultPoint(StrEnum):
    STATE_TO_SAVE = "state-to-save"
    """A plan was made, and nothing of it is durable."""
    SECRET_WRITTEN = "secret-written"  # noqa: S105 - no password
    """One object of the state is durable; others may not be."""
    STATE_SAVED = "state-saved"
    """All of it is durable, and nobody was told."""
    PLAN_SENT = "plan-sent"
    """Members were told, and no status says so."""
    STATUS_TO_WRITE = "status-to-write"
    STATUS_WRITTEN = "status-written"
    """Its Events are not."""
    EVENT_WRITTEN = "event-written"
    RECORD_TO_WRITE = "record-to-write"
    """A member that is to get a lease is not on record."""
    RECORD_WRITTEN = "record-written"
    """It is, and has no lease yet."""


def passing(point: FaultPoint) -> None:
    """Die here, if a test says so."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return
    file = Path(named)
    try:
        wanted, _, left = file.read_text().partition(" ")
    except FileNotFoundError:
        return
    if wanted != point.value:
        return
    if int(left) > 1:
        file.write_text(f"{point.value} {int(left) - 1}")
        return
    file.unlink()
    os.kill(os.getpid(), signal.SIGKILL)
