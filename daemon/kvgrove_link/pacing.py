"""How long the link waits for what: every wait of a member has its bound here (I11)."""

from dataclasses import dataclass
from random import Random

from kvgrove_protocol.control import NodePlan

SILENT_INTERVALS = 3
"""A planner that says nothing for this many report intervals is taken for gone."""


@dataclass(frozen=True)
class Pacing:
    """All in seconds."""

    first_backoff: float = 0.1
    longest_backoff: float = 5.0
    hello_timeout: float = 3.0
    """From dialling to Welcome."""
    idle_report_interval: float = 1.0
    """Between reports while there is no lease to renew."""
    longest_report_interval: float = 5.0
    """However long leases are: a planner that went silent is noticed within three of these."""
    fetch_timeout: float = 10.0

    def backoff(self, attempt: int, random: Random) -> float:
        """Wait before attempt ``attempt`` (0 is the first retry): doubles up to a bound, spread over its half."""
        longest = min(self.longest_backoff, self.first_backoff * 2.0 ** min(attempt, 32))
        return random.uniform(longest / 2, longest)

    def report_interval(self, plan: NodePlan | None, shortest: float) -> float:
        """A third of the plan's shortest lease, so that two reports may be lost; never less than ``shortest``."""
        if plan is None or not plan.namespaces:
            return max(shortest, self.idle_report_interval)
        third = min(namespace.lease_seconds for namespace in plan.namespaces) / 3
        return max(shortest, min(third, self.longest_report_interval))
