"""The member's side of freshness leases (I3): pure bookkeeping, the time is passed in.

**Why a lease never outlives what the planner believes.** The member counts a grant from the moment it *sent* the report
that the grant answers, on its own CLOCK_BOOTTIME; the planner counts the same number of seconds from the moment it
*handled* that report, on its own. Sending comes before handling, so the planner's view always ends later, whatever the
two clocks show, however long either message is under way and however long either side is stopped in between. (Clocks
are taken to run at the same rate; the planner adds a margin for the rest.) Grants only ever extend a deadline here,
and the planner waits for the latest of the grants it gave, so reordering and repetition change nothing.

A table belongs to one boot: it starts empty, so a restarted member holds nothing. Read from any thread; written by the
one that runs the link (each write replaces one value of a dict).
"""

from collections import OrderedDict

from kvgrove_protocol.control import LeaseGrant

REMEMBERED_REPORTS = 64
"""Reports whose sending time is kept. An answer to an older one is of no use: its lease would have ended anyway."""


class LeaseTable:
    """Until when this member may use each namespace, by UID. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, float] = OrderedDict()
        self._deadlines: dict[str, float] = {}
        self.unknown_grants = 0
        """Grants that answered a report this table does not remember: dropped and counted."""

    def sent(self, report_id: int, at: float) -> None:
        """Note that ``report_id`` is about to be sent. Call it before the sending, never after."""
        self._sent[report_id] = at
        while len(self._sent) > REMEMBERED_REPORTS:
            self._sent.popitem(last=False)

    def granted(self, grant: LeaseGrant) -> None:
        """Extend the deadlines of the namespaces in ``grant``; an answer to no remembered report changes nothing."""
        at = self._sent.get(grant.report_id)
        if at is None:
            self.unknown_grants += 1
            return
        for uid, seconds in grant.seconds.items():
            self._deadlines[uid] = max(self._deadlines.get(uid, at), at + seconds)

    def valid(self, uid: str, now: float) -> bool:
        """Whether ``uid`` may be used at ``now``. True says nothing about any later moment: ask again at commit."""
        return now < self._deadlines.get(uid, now)

    def remaining(self, uid: str, now: float) -> float:
        """Seconds of lease left, 0.0 without one."""
        return max(0.0, self._deadlines.get(uid, now) - now)

    def forget_expired(self, now: float) -> None:
        """Free the entries of leases that have run out (namespaces come and go; the table must not grow)."""
        self._deadlines = {uid: deadline for uid, deadline in self._deadlines.items() if now < deadline}

    def drop_all(self) -> None:
        """Give every lease up, and refuse answers to reports sent before now."""
        self._sent = OrderedDict()
        self._deadlines = {}
