"""How one recorded holder of a namespace stands to the newest fence of that namespace (I3).

A holder is one boot of one member that was ever granted a lease on the namespace. An invalidation is complete when no
holder is PENDING.

============  =========  =========  =========  ====
standing      ISSUED     ACKED      RAN_OUT    LEFT
============  =========  =========  =========  ====
PENDING       PENDING    CONFIRMED  EXPIRED    GONE
CONFIRMED     PENDING    CONFIRMED  CONFIRMED  GONE
EXPIRED       EXPIRED    CONFIRMED  EXPIRED    GONE
GONE          GONE       GONE       GONE       GONE
============  =========  =========  =========  ====

EXPIRED outlasts newer fences, because a lease is only ever granted to a holder that has confirmed the newest one: who
is EXPIRED has held no lease since.
"""

from collections.abc import Mapping
from enum import Enum


class Standing(Enum):
    PENDING = "pending"
    """May hold a valid lease, and has not confirmed the newest fence."""
    CONFIRMED = "confirmed"
    """Reported that it enforces the newest fence, or a newer one."""
    EXPIRED = "expired"
    """Has not confirmed; every lease it was granted has run out."""
    GONE = "gone"
    """That boot is over, and so is every lease it was granted."""


class Change(Enum):
    ISSUED = "issued"
    """A newer fence has been issued."""
    ACKED = "acked"
    """The holder reported a fence that covers the newest."""
    RAN_OUT = "ran_out"
    """The last of its leases has run out."""
    LEFT = "left"
    """The boot is over, and its leases were given up or have run out."""


_P, _C, _E, _G = Standing.PENDING, Standing.CONFIRMED, Standing.EXPIRED, Standing.GONE
TABLE: Mapping[Standing, Mapping[Change, Standing]] = {
    _P: {Change.ISSUED: _P, Change.ACKED: _C, Change.RAN_OUT: _E, Change.LEFT: _G},
    _C: {Change.ISSUED: _P, Change.ACKED: _C, Change.RAN_OUT: _C, Change.LEFT: _G},
    _E: {Change.ISSUED: _E, Change.ACKED: _C, Change.RAN_OUT: _E, Change.LEFT: _G},
    _G: {Change.ISSUED: _G, Change.ACKED: _G, Change.RAN_OUT: _G, Change.LEFT: _G},
}


def step(standing: Standing, change: Change) -> Standing:
    """The standing after ``change``."""
    return TABLE[standing][change]
