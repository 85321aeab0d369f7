"""Shared memory that earlier boots of this node left: looked for, emptied, and waited for where somebody lives (I8).

Role: the place ``dead_boots`` of an erase. Invariants: a segment is emptied only where its owner is seen to be gone;
one whose owner lives is neither touched nor forgotten. Only boots that this node remembers as its own are waited for:
another node of the same name, of another fleet on this machine, is none of our business.
Must not know: what lies in them.
"""

from __future__ import annotations

from kvgrove_daemon.cache.segments import boots_with_segments, remove_dead_segments


class EarlierSegments:
    """Of ``node``, whose boot now is ``boot``; ``earlier``: the boots before it."""

    def __init__(self, node: str, boot: str, earlier: frozenset[str]) -> None:
        self._node = node
        self._boot = boot
        self._earlier = earlier
        self._wiped = 0

    @property
    def wiped(self) -> int:
        """Segments that were emptied and removed since this boot began."""
        return self._wiped

    def look(self) -> int:
        """Empty those whose owners have ended by now; answers how many earlier boots still have some."""
        self._wiped += len(remove_dead_segments(self._node, self._boot))
        return len(boots_with_segments(self._node) & self._earlier)
