"""Who leads, by one Lease object: the protocol of Kubernetes' own components, as a pure decision.

Nobody's clock is compared with another's. One who waits looks at the Lease again and again, and takes it over once the
same content has been there for its whole duration, counted on its own clock from its own first look; a write that
names the version it read lets one of several win. A leader believes in itself for a shorter time than that, counted
from before it sent its last renewal; so at no moment two of them do.

The term of a leader is the Lease's ``leaseTransitions``: each take-over raises it, a renewal keeps it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

Spec = dict[str, Any]


class Verdict(Enum):
    WAIT = "wait"
    """Another leads, as far as can be told."""
    TAKE = "take"
    """Nobody does: write the Lease under the next term."""
    RENEW = "renew"
    """It is ours: write it again."""


@dataclass(frozen=True)
class _Look:
    spec: Mapping[str, Any]
    since: float


class Election:
    """What one candidate has seen of the Lease. Mutable; ``now``: seconds of the candidate's own clock."""

    def __init__(self, identity: str, duration: float) -> None:
        self.identity = identity
        self._duration = duration
        self._look: _Look | None = None

    def judge(self, spec: Mapping[str, Any] | None, now: float) -> Verdict:
        """What to do with a Lease that reads ``spec``; None: there is none."""
        holder = (spec or {}).get("holderIdentity") or ""
        if spec is None or not holder:
            return Verdict.TAKE
        if holder == self.identity:
            return Verdict.RENEW
        if self._look is None or self._look.spec != spec:
            self._look = _Look(dict(spec), now)
        theirs = float(spec.get("leaseDurationSeconds") or self._duration)
        return Verdict.TAKE if now - self._look.since >= theirs else Verdict.WAIT

    def taken(self, before: Mapping[str, Any] | None, at: datetime, *, above: int = 0) -> Spec:
        """The Lease of a new term, which is above every one that ``before`` tells of, and above ``above``."""
        moment = _micro_time(at)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._duration),
            "acquireTime": moment,
            "renewTime": moment,
            "leaseTransitions": max(term_of(before), above) + 1,
        }

    def renewed(self, before: Mapping[str, Any], at: datetime) -> Spec:
        return {**before, "leaseDurationSeconds": int(self._duration), "renewTime": _micro_time(at)}

    @staticmethod
    def released(before: Mapping[str, Any]) -> Spec:
        """Nobody's, so that the next one need not wait; the term stays on record."""
        return {**before, "holderIdentity": "", "leaseDurationSeconds": 1}


def term_of(spec: Mapping[str, Any] | None) -> int:
    return int((spec or {}).get("leaseTransitions") or 0)


def _micro_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
