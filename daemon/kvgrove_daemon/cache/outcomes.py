"""Answers of a pool: no room, how far a batch got in, what a drop took.

Role: plain facts, shared by those who ask and those who answer. Must not know: how they came about.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvgrove_protocol.reasons import BypassReason


@dataclass(frozen=True, slots=True)
class NoRoom:
    """There is no room now, and waiting inside would not make any: serve cold elsewhere, queue, or try again later."""

    wanted: int
    free: int
    evictable: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """How far `ResidentBlocks.admit` got with blocks ``[0, n)`` of what it was given."""

    tail: int
    """Block id of the last one that is READY now, own or somebody else's."""
    duplicates: int
    """The first so many were READY already; the given slots stay the caller's."""
    stored: int
    """So many after them are READY now in the given slots."""
    refused: BypassReason | None = None
    """Why the rest was not stored."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """One drop: ``blocks`` became unreadable, ``held`` of them keep their slots until their readers have gone.

    An erasure has a number, and ``slots`` names what it freed: with a wiper (`Quarantine.wiper`) they are in quarantine
    until `release`. What ``held`` blocks and ``builds`` under way still use is named to the wiper when they end.
    """

    blocks: int
    held: int
    slots: tuple[int, ...] = ()
    erasure: int = 0
    builds: int = 0
    """Builds under way that hold text of the subject: they store nothing more."""
