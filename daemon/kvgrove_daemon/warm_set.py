"""How warm the declared prefixes are, and which to warm next.

Warmth = READY / wanted blocks of prompts assembled under the current plan. It is measured against the cache, never
remembered: what was evicted is cold again. Attempts are spaced out, so that a pool that is too small for its warm set
does not make the node compute for ever (I11).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kvgrove_daemon.warmup import Served, WarmTarget

RETRY_S = 5.0
RETRY_MAX_S = 300.0


@dataclass(frozen=True)
class Warmth:
    """Blocks of one namespace's warm set."""

    ready: int = 0
    wanted: int = 0
    coming_ready: int = 0
    coming_wanted: int = 0
    """Of prefixes with versions of documents that are not in force yet."""

    def plus(self, target: WarmTarget, ready: int) -> "Warmth":
        if target.coming:
            return replace(
                self, coming_ready=self.coming_ready + ready, coming_wanted=self.coming_wanted + target.blocks
            )
        return replace(self, ready=self.ready + ready, wanted=self.wanted + target.blocks)


@dataclass
class _Entry:
    target: WarmTarget
    ready: int = 0
    attempts: int = 0
    not_before: float = 0.0


@dataclass
class WarmSet:
    """The targets of the plan in force. Belongs to the core thread.

    ``ready_blocks(target)`` counts the leading READY blocks of a target.
    """

    ready_blocks: Callable[[WarmTarget], int]
    _entries: dict[tuple[Served, str, bool], _Entry] = field(default_factory=dict)

    def replace(self, targets: Iterable[WarmTarget]) -> None:
        """Keep what is still wanted as it is, take up what is new, forget the rest."""
        entries: dict[tuple[Served, str, bool], _Entry] = {}
        for target in targets:
            name = (target.served, target.prefix, target.coming)
            held = self._entries.get(name)
            entries[name] = held if held is not None and held.target == target else _Entry(target)
        self._entries = entries

    def measure(self) -> Mapping[Served, Warmth]:
        """Warmth of each namespace by each generation, from the cache as it is now."""
        totals: dict[Served, Warmth] = {}
        for entry in self._entries.values():
            entry.ready = self.ready_blocks(entry.target)
            if entry.ready == entry.target.blocks:
                entry.attempts = 0  # if it gives way to pressure later, it is warmed again without delay
            served = entry.target.served
            totals[served] = totals.get(served, Warmth()).plus(entry.target, entry.ready)
        return totals

    def next(self, now: float, allowed: Callable[[WarmTarget], bool]) -> WarmTarget | None:
        """A target that is not warm, is ``allowed`` and whose turn has come; it counts as tried from now on."""
        for entry in self._entries.values():
            if entry.ready < entry.target.blocks and entry.not_before <= now and allowed(entry.target):
                entry.not_before = now + min(RETRY_S * 2**entry.attempts, RETRY_MAX_S)
                entry.attempts = min(entry.attempts + 1, 16)
                return entry.target
        return None
