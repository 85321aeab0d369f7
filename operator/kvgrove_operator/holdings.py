"""What the ledger remembers of one namespace's holders, and of one member that holds something. Kept by `holders`."""

from dataclasses import dataclass, field
from math import inf

from kvgrove_operator.evidence import Evidence
from kvgrove_operator.member_events import Issued
from kvgrove_operator.standing import Change, Standing, step
from kvgrove_protocol.control import Revision
from kvgrove_protocol.fence import Fence


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
class Holder:
    member: str
    boot: str
    role: str
    seconds: float
    """As on record."""
    deadline: float
    """When the last lease granted to it has run out at the latest, by the planner's clock."""
    standing: Standing
    over: bool = False
    """Another boot has taken its member's place."""


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
