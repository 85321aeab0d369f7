"""What a fleet begins with, and how it ends: facts of earlier leaders, and being told of a later one. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvgrove_crds.cache_node import CacheNode
from kvgrove_operator import cache_nodes
from kvgrove_operator.member_events import MemberRecord
from kvgrove_operator.observed import Observed
from kvgrove_operator.plan_state import PlanState
from kvgrove_protocol.errors import Terminal
from kvgrove_protocol.fence import Fence, highest


class Outdated(Terminal):
    """A member follows a planner of a later term: this one has lost its memory, or its place."""

    code = "outranked"

    def __init__(self, term: int) -> None:
        super().__init__(f"a member follows a plan of term {term}, which is later than ours")
        self.term = term


@dataclass(frozen=True)
class Memory:
    """What earlier leaders left."""

    plan: PlanState
    nodes: tuple[CacheNode, ...]

    def records(self) -> list[MemberRecord]:
        return [record for node in self.nodes for record in cache_nodes.leases_of(node)]

    def term(self) -> int:
        """The latest that any member is on record to have followed: a leader's own is above it."""
        return max((node.status.applied.term for node in self.nodes if node.status and node.status.applied), default=0)

    def fences(self) -> Mapping[str, Fence]:
        """Namespace UID -> the highest counters on record."""
        return cache_nodes.fences_of(self.nodes)


@dataclass
class FleetCounters:
    """All only rise."""

    plans: int = 0
    persists: int = 0
    waits: int = 0
    """Tries to make something durable that found the API server away."""
    messages: dict[str, int] = field(default_factory=dict)


def with_fences(observed: Observed, *recorded: Mapping[str, Fence]) -> Observed:
    """``observed``, with counters that are on record beside what members report now."""
    fences = dict(observed.fences_seen)
    for each in recorded:
        for uid, fence in each.items():
            fences[uid] = highest(fences.get(uid), fence)
    return replace(observed, fences_seen=fences)
