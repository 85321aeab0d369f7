"""What can be wrong with a file, and what a caller is told.

Role: the closed list of causes that the disk tier counts, and its errors. Must not know: files.
"""

from __future__ import annotations

import errno
import os
from enum import StrEnum
from typing import Final

from kvgrove_daemon.cache.tiers.medium import MediumFailed, MediumFull
from kvgrove_protocol.errors import Retryable, Terminal


class Cause(StrEnum):
    """Why a file in the directory was not used as data. Also the label of its counter."""

    FOREIGN = "foreign"
    """Not one of ours: set aside (a directory or device is left where it is)."""
    NEWER = "newer_version"
    """Written by a later release: set aside."""
    TRUNCATED = "truncated"
    """Shorter or longer than its header says: set aside."""
    CORRUPT = "corrupt"
    """Bytes are not those that were written: set aside."""
    UNREADABLE = "unreadable"
    """The device or the permissions refuse it: set aside."""
    UNFINISHED = "unfinished"
    """A write that never ended: removed."""
    HALF_ERASED = "half_erased"
    """An erase that never ended: ended."""
    SURPLUS = "surplus"
    """Not adopted yet, and its place was needed: removed, deepest blocks first."""
    LAYOUT = "other_layout"
    """Of another memory layout, so not to be read here (COR-09, COR-10): not adopted."""
    SECRET = "other_secret"  # noqa: S105 - a label
    """Its key is wrapped by no secret that the plan gave: not adopted."""
    ROOT = "other_root"
    """Of another generation, purge epoch or policy version: not adopted."""
    DUPLICATE = "duplicate"
    """The same block is there already: not adopted."""
    ORPHAN = "orphan"
    """An ancestor of it is missing (I6): not adopted."""


class BadExtent(Exception):
    """These bytes are no extent that may be read. Stays within: callers see MediumCorrupt, or a count."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def refused(doing: str, error: OSError) -> MediumFull | MediumFailed:
    """What the operating system's refusal means to a caller."""
    if error.errno in _NO_ROOM:
        return MediumFull(f"disk: no room while {doing}; free some space or raise the quota, it heals by itself")
    return MediumFailed(f"disk: {problem(error)} while {doing}")


def problem(error: OSError) -> str:
    """Its name and words, without the path."""
    name = errno.errorcode.get(error.errno or 0, "EUNKNOWN")
    return f"{name} ({os.strerror(error.errno)})" if error.errno else name


class DirectoryBusy(Terminal):
    """Another process owns the directory."""

    code = "tier_directory_busy"


class DirectoryUnusable(Terminal):
    """The directory cannot be made, locked, read or kept private."""

    code = "tier_directory_unusable"


class SecretUnknown(Retryable):
    """No secret for the namespace now, or another one: what the slot holds stays, and is noise until it is given."""

    code = "tier_secret_unknown"


class EraseIncomplete(MediumFailed):
    """Some slots are not proven empty. What they hold is never read again; erase them again for the evidence."""

    code = "tier_erase_incomplete"

    def __init__(self, erased: int, remaining: int, problem: str, slots: tuple[int, ...] = ()) -> None:
        super().__init__(f"{remaining} of {erased + remaining} extents are not proven erased ({problem}): erase again")
        self.erased, self.remaining, self.slots = erased, remaining, slots


class RewrapIncomplete(MediumFailed):
    """Some survivors are still under the old secret: keep it, and call again."""

    code = "tier_rewrap_incomplete"

    def __init__(self, rewrapped: int, remaining: int, problem: str) -> None:
        super().__init__(f"{remaining} of {rewrapped + remaining} extents keep the old secret ({problem}): call again")
        self.rewrapped, self.remaining = rewrapped, remaining
