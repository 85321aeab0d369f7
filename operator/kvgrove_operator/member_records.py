"""What is on record of a member: which of its boots may hold a lease on what, and what it has acknowledged (I3). Pure.

One text in JSON: an API server checks, copies and compares every field of every object on each write, and a hundred
members with a thousand namespaces are to be on record before the first grant.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from kvgrove_operator.member_events import MemberRecord
from kvgrove_protocol.fence import Fence

MAX_BOOTS = 16
"""Recorded one by one of each namespace."""
EARLIER_BOOTS = "earlier"
"""In place of a boot's id: all boots that are over, as one."""
NO_FENCE = Fence(purge=0, documents=0, access=0)


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Of one namespace."""

    leases: list[tuple[int, float]]
    """Index of the boot, and seconds of the longest lease of it that may still be running."""
    fence: Fence
    """The highest counters that the member has acknowledged."""


class MemberRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    boots: list[str] = []
    """Random ids of processes."""
    held: dict[str, Holding] = {}
    """Namespace UID -> what the member may hold of it. Recorded before the first lease, removed only on evidence."""

    def leases(self, member: str, role: str) -> list[MemberRecord]:
        """What the ledger of members begins with."""
        return [
            MemberRecord(uid=uid, member=member, boot=self.boots[boot], role=role, seconds=seconds)
            for uid, holding in self.held.items()
            for boot, seconds in holding.leases
        ]

    def fence(self, uid: str) -> Fence:
        holding = self.held.get(uid)
        return holding.fence if holding is not None else NO_FENCE


def records_of(leases: Collection[MemberRecord], fences: Mapping[str, Fence], living: str) -> MemberRecords:
    """``leases``: of one member. ``fences``: by namespace UID. ``living``: the member's present boot, or empty."""
    by_uid: dict[str, list[tuple[str, float]]] = {}
    for lease in leases:
        by_uid.setdefault(lease.uid, []).append((lease.boot, lease.seconds))
    kept = {uid: _bounded(boots, living) for uid, boots in sorted(by_uid.items())}
    numbers: dict[str, int] = {}
    held = {
        uid: Holding(
            [(numbers.setdefault(boot, len(numbers)), seconds) for boot, seconds in boots], fences.get(uid, NO_FENCE)
        )
        for uid, boots in kept.items()
    }
    return MemberRecords(boots=[*numbers], held=held)


def dumped(records: MemberRecords) -> str:
    return msgspec.json.encode(records).decode()


def loaded(text: str) -> MemberRecords:
    """What `dumped` made; of nothing, nothing. Raises ValueError for anything else."""
    if not text:
        return MemberRecords()
    records = msgspec.json.decode(text, type=MemberRecords)
    if any(not 0 <= boot < len(records.boots) for holding in records.held.values() for boot, _ in holding.leases):
        raise ValueError("a lease of a boot that is not listed")
    return records


def _bounded(boots: Sequence[tuple[str, float]], living: str) -> list[tuple[str, float]]:
    """Of a member that restarts again and again only the longest lease of its earlier boots is kept: who waits for that
    waits long enough for each of them.
    """
    if len(boots) <= MAX_BOOTS:
        return [*boots]
    longest = max(seconds for boot, seconds in boots if boot != living)
    return [each for each in boots if each[0] == living] + [(EARLIER_BOOTS, longest)]
