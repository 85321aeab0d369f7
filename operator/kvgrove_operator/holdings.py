"""What the ledger remembers of one namespace's holders, and of one member that holds something. Kept by `holders`."""

from dataclasses import dataclass, field
from math import inf

from kvgrove_operator.evidence import Evidence
from kvgrove_operator.member_events import Issued
from kvgrove_operator.standing import Change, Standing, step
from kvgrove_protocol.control import NO_REVISION, Revision
from kvgrove_protocol.fence import Fence

CLOCK_MARGIN = 1e-3
"""Two machines' clocks are taken to run at rates that differ by less than this (NTP slews by at most 5e-4)."""


@dataclass(frozen=True)
class Invalidation:
    """The newest fence of a namespace, and how many of its recorded holders stand how (I8)."""

    fence: Fence | None
    """None: the namespace is to be erased."""
    confirmed: int
    expired: int
    gone: int
    pending: int

    @property
    def complete(self) -> bool:
        """No request admitted from now on meets anything older (I3)."""
        return self.pending == 0


@dataclass(slots=True)
class Renewal:
    """What one connection's reports have confirmed, and what of it goes on by itself: each report renews that.

    A fleet reports some hundred times for each change, so that a report costs what is `open`, not what is held.
    """

    boot: tuple[str, str]
    """Member and boot."""
    role: str
    at: float = -inf
    """When the last report was answered, by the planner's clock."""
    applied: Revision = NO_REVISION
    """The newest plan that it was heard to have applied."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Namespace UID -> seconds of its lease: those that are confirmed, and that stand on record as they are granted."""
    open: set[str] = field(default_factory=set)
    """UIDs of those that may stand differently by the next report, or on record by the next lease."""


@dataclass(slots=True)
class Holder:
    member: str
    boot: str
    role: str
    seconds: float
    """As on record."""
    ends: float
    """When the last lease granted to it one by one has run out at the latest, by the planner's clock."""
    standing: Standing
    over: bool = False
    """Another boot has taken its member's place."""
    renewal: Renewal | None = None
    """Whose it is as long as it goes on with it."""

    @property
    def deadline(self) -> float:
        """When the last lease granted to it has run out at the latest, by the planner's clock."""
        return self.ends if self.renewal is None else max(self.ends, ending(self.renewal.at, self.seconds))

    def go_on(self, uid: str, renewal: Renewal) -> None:
        """From now on each report on ``renewal`` is granted another lease on ``uid``."""
        self.renewal = renewal
        renewal.seconds[uid] = self.seconds
        renewal.open.discard(uid)

    def stop(self, uid: str) -> None:
        """What was granted so far runs on; nothing more is, until it goes on again."""
        if self.renewal is not None:
            self.ends = self.deadline
            self.renewal.seconds.pop(uid, None)
            self.renewal.open.add(uid)
            self.renewal = None


def ending(granted: float, seconds: float) -> float:
    """When a lease has run out at the latest, by the planner's clock, whatever the clock of its member."""
    return granted + seconds * (1 + CLOCK_MARGIN)


@dataclass(slots=True)
class HeldNamespace:
    issued: Issued | None = None
    since: Revision | None = None
    """Revision that first carried what is in force now; None: this planner has issued nothing yet."""
    gone: int = 0
    """Holders that went since then."""
    holders: dict[tuple[str, str], Holder] = field(default_factory=dict)
    """By member and boot."""
    counts: dict[Standing, int] = field(default_factory=lambda: dict.fromkeys(Standing, 0))
    """Of ``holders``."""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def all_confirmed(self) -> bool:
        return self.counts[Standing.CONFIRMED] == len(self.holders)

    def move(self, holder: Holder, change: Change) -> None:
        self.counts[holder.standing] -= 1
        holder.standing = step(holder.standing, change)
        self.counts[holder.standing] += 1


@dataclass(slots=True)
class HoldingMember:
    uids: dict[str, set[str]] = field(default_factory=dict)
    """Boot -> namespaces of which it is a holder."""
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Boot -> (member, boot): one object for all its namespaces."""
    settled_until: float = -inf
    """Before that no lease of it runs out."""
