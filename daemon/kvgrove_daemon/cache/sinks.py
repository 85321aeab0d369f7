"""Who listens to a pool, and the clock of one in which nothing expires.

Role: what a pool is given that tells nothing of blocks. Must not know: how changes come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ResidencySink(Protocol):
    """Who is told of changes. Called from within the change: it must only note them down."""

    def on_stored(self, keys: Sequence[bytes]) -> None:
        """READY from now on; parents first."""

    def on_removed(self, keys: Sequence[bytes]) -> None:
        """Not READY any more; children first, so that a listener's view is rooted at each moment."""


class SilentSink:
    """For a pool that nobody listens to."""

    def on_stored(self, keys: Sequence[bytes]) -> None:
        del keys

    def on_removed(self, keys: Sequence[bytes]) -> None:
        del keys


def timeless() -> float:
    """The clock of a pool in which nothing expires."""
    return 0.0
