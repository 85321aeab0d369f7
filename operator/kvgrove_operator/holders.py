"""Who holds leases on what, until when as the planner counts, and how each stands to the newest fence.

The part of the ledger that knows namespaces and boots, not connections. Pure; rules 1 to 3 of `members` are kept here.
Every change of what must be durable marks the member; `flush` says what to persist.

A fleet of a hundred members with a thousand namespaces has 100,000 holders, so that nothing that happens often may walk
them all: they are found by member too, counted by standing as they change, and looked at for time alone only where some
lease of the member may have run out.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from math import inf

from kvgrove_operator.evidence import WHOLE
from kvgrove_operator.holdings import HeldNamespace, Holder, HoldingMember, Invalidation
from kvgrove_operator.member_events import Issued, MemberRecord, Persist
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.standing import Change, Standing
from kvgrove_operator.verification import genuine
from kvgrove_protocol.control import Hello, NodeReport, Revision
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.receipts import EraseOutcome, Receipt

MAX_FINAL_PROOFS = 1_024
"""Of namespaces that are erased; the oldest goes first."""

CLOCK_MARGIN = 1e-3
"""Two machines' clocks are taken to run at rates that differ by less than this (NTP slews by at most 5e-4)."""


class Holders:
    """All holders of all namespaces. ``records``: from earlier planners, each counted as valid from ``now`` on."""

    def __init__(self, records: Iterable[MemberRecord], now: float) -> None:
        self._namespaces: dict[str, HeldNamespace] = {}
        self._members: dict[str, HoldingMember] = {}
        self._dirty: set[str] = set()
        self._final: OrderedDict[str, Proof] = OrderedDict()
        for record in records:
            holder = Holder(
                record.member,
                record.boot,
                record.role,
                record.seconds,
                now + record.seconds * (1 + CLOCK_MARGIN),
                Standing.PENDING,
            )
            self._enter(record.uid, self._namespaces.setdefault(record.uid, HeldNamespace()), holder)

    # -- changes ---------------------------------------------------------------------------------------------------

    def issue(self, planned: Mapping[str, Issued], revision: Revision, now: float) -> None:
        """Take ``planned`` as in force. Raises Malformed where a fence falls: that planner has lost its memory."""
        for uid, issued in planned.items():
            before = self._namespaces.get(uid)
            if before is not None and before.issued is not None and not issued.fence.covers(before.issued.fence):
                raise Malformed(f"namespaces[{uid}].fence", "is older than the one issued before: fences never fall")
        for uid, issued in planned.items():
            namespace = self._namespaces.setdefault(uid, HeldNamespace())
            if issued == namespace.issued:
                continue
            if namespace.issued is None or issued.fence != namespace.issued.fence:
                self._renew(uid, namespace, revision, now)
            namespace.issued = issued
            namespace.evidence.issue(issued.erasures, issued.seal, namespace.holders)
        for uid, namespace in self._namespaces.items():
            if uid not in planned and (namespace.issued is not None or namespace.since is None):
                self._renew(uid, namespace, revision, now)
                namespace.issued = None
                namespace.evidence.issue([WHOLE], b"", namespace.holders)
        self.settle(now)

    def acknowledge(self, hello: Hello, report: NodeReport) -> list[str]:
        """Note what ``report`` confirms; the UIDs of planned namespaces whose newest fence the member enforces.

        What is to be erased is confirmed by no longer being reported and by a receipt. Receipts that the member of
        ``hello`` has not signed prove nothing, and are passed over.
        """
        boot = (hello.member, hello.boot)
        enforced = {namespace.uid: namespace.fence for namespace in report.namespaces}
        receipts: dict[str, list[Receipt]] = {}
        for receipt in report.receipts:
            if genuine(receipt, hello):
                receipts.setdefault(receipt.uid, []).append(receipt)
        confirmed: list[str] = []
        applied, fence_of, reached = report.applied, enforced.get, None
        for uid, namespace in self._namespaces.items():
            of_it = receipts.get(uid, ()) if receipts else ()
            if of_it:
                namespace.evidence.take(boot, hello.role, of_it, hello.public_key)
            since = namespace.since
            if since is not reached:  # most have the same one
                if since is None or applied < since:
                    continue
                reached = since
            if namespace.issued is not None:
                fence, newest = fence_of(uid), namespace.issued.fence
                if fence != newest and (fence is None or not fence.covers(newest)):
                    continue
                confirmed.append(uid)
            elif uid in enforced or not any(_all_of_it(receipt) for receipt in of_it):
                continue
            holder = namespace.holders.get(boot)
            if holder is not None and holder.standing is not Standing.CONFIRMED:
                namespace.move(holder, Change.ACKED)
        self._forget_erased()
        return confirmed

    def grant(self, uids: Iterable[str], hello: Hello, now: float) -> dict[str, float]:
        """Record leases on ``uids``, whose newest fences the member has just confirmed; the seconds of each."""
        boot, granted, first = (hello.member, hello.boot), {}, inf
        for uid in uids:
            namespace = self._namespaces[uid]
            if namespace.issued is None:
                raise Malformed(uid, "is not planned: nothing may be granted on it")
            granted[uid] = seconds = namespace.issued.lease_seconds
            ends = now + seconds * (1 + CLOCK_MARGIN)
            holder = namespace.holders.get(boot)
            if holder is None:
                self._enter(uid, namespace, Holder(*boot, hello.role, seconds, ends, Standing.CONFIRMED))
                self._dirty.add(hello.member)
                continue
            if seconds > holder.seconds or (seconds < holder.seconds and ends >= holder.deadline):
                holder.seconds = seconds
                self._dirty.add(hello.member)
            holder.deadline = max(holder.deadline, ends)
            first = min(first, ends)
        if (known := self._members.get(hello.member)) is not None:
            known.settled_until = min(known.settled_until, first)  # it may have held no lease for a while
        return granted

    def supersede(self, member: str, boot: str) -> None:
        """``boot`` is the living one of ``member``; the leases of others run out, they may still be running."""
        for _, holder in self._of(member):
            holder.over = holder.boot != boot
        if (known := self._members.get(member)) is not None:
            known.settled_until = -inf

    def leave(self, member: str, boot: str | None = None) -> None:
        """``boot`` (None: every boot) of ``member`` will never use a lease again."""
        for uid, holder in self._of(member):
            if boot in (None, holder.boot):
                self._drop(uid, holder)
        self._forget_erased()

    def settle(self, now: float) -> None:
        """Draw the consequences of time."""
        for member in [name for name, known in self._members.items() if now >= known.settled_until]:
            # Deadlines only move on, and a new holder's lease begins now: none ends before the first of these.
            earliest = inf
            for uid, holder in self._of(member):
                if now < holder.deadline:
                    earliest = min(earliest, holder.deadline)
                else:
                    self._end(uid, holder)
            if (known := self._members.get(member)) is not None:
                known.settled_until = earliest
        self._forget_erased()

    # -- facts -----------------------------------------------------------------------------------------------------

    def flush(self) -> list[Persist]:
        """What has to be durable before anything is sent; each change is said once."""
        members, self._dirty = sorted(self._dirty), set()
        return [Persist(member, self.records(member)) for member in members]

    def records(self, member: str | None = None) -> tuple[MemberRecord, ...]:
        """The durable records, of one member or of all; in a stable order."""
        members = [*self._members] if member is None else [member]
        records = [
            MemberRecord(uid=uid, member=name, boot=holder.boot, role=holder.role, seconds=holder.seconds)
            for name in members
            for uid, holder in self._of(name)
        ]
        return tuple(sorted(records, key=lambda record: (record.member, record.uid, record.boot)))

    def members(self) -> tuple[str, ...]:
        """Those that may hold a lease on anything."""
        return tuple(sorted(self._members))

    def invalidation(self, uid: str) -> Invalidation | None:
        """How the newest fence of ``uid`` stands; None for a namespace that is neither planned nor held."""
        namespace = self._namespaces.get(uid)
        if namespace is None:
            return None
        counts = namespace.counts
        return Invalidation(
            fence=namespace.issued.fence if namespace.issued is not None else None,
            confirmed=counts[Standing.CONFIRMED],
            expired=counts[Standing.EXPIRED],
            gone=namespace.gone,
            pending=counts[Standing.PENDING],
        )

    def proofs(self, uid: str, bearers: Iterable[tuple[str, str]] = ()) -> Mapping[str, Proof]:
        """Erasure id -> how it stands, of the erasures of ``uid``, or `WHOLE`. ``bearers``: who else may hold bytes."""
        namespace = self._namespaces.get(uid)
        if namespace is None:
            return {}
        namespace.evidence.expect({*namespace.holders, *bearers})
        return namespace.evidence.proofs()

    def standings(self, uid: str) -> Mapping[tuple[str, str], Standing]:
        """(member, boot) -> its standing, of every holder of ``uid``."""
        namespace = self._namespaces.get(uid)
        return {boot: holder.standing for boot, holder in namespace.holders.items()} if namespace is not None else {}

    def final_proof(self, uid: str) -> Proof | None:
        """How the erasure of ``uid`` ended; None: it has not, or more than MAX_FINAL_PROOFS have since."""
        return self._final.get(uid)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _renew(self, uid: str, namespace: HeldNamespace, revision: Revision, now: float) -> None:
        namespace.since, namespace.gone = revision, 0
        for holder in [*namespace.holders.values()]:
            namespace.move(holder, Change.ISSUED)
            if now >= holder.deadline:  # it ran out under the fence before, and `settle` has passed it
                self._end(uid, holder)

    def _end(self, uid: str, holder: Holder) -> None:
        """Its last lease has run out."""
        if holder.over:
            self._drop(uid, holder)
        else:
            self._namespaces[uid].move(holder, Change.RAN_OUT)

    def _of(self, member: str) -> Iterator[tuple[str, Holder]]:
        """(UID, holder) of all that the member holds. Safe against removal while it is walked."""
        known = self._members.get(member)
        held = [(uid, boot) for boot, uids in known.uids.items() for uid in uids] if known is not None else []
        for uid, boot in held:
            yield uid, self._namespaces[uid].holders[member, boot]

    def _enter(self, uid: str, namespace: HeldNamespace, holder: Holder) -> None:
        member = self._members.setdefault(holder.member, HoldingMember())
        boot = member.names.setdefault(holder.boot, (holder.member, holder.boot))
        namespace.holders[boot] = holder
        namespace.counts[holder.standing] += 1
        member.uids.setdefault(holder.boot, set()).add(uid)
        member.settled_until = min(member.settled_until, holder.deadline)

    def _drop(self, uid: str, holder: Holder) -> None:
        namespace = self._namespaces[uid]
        namespace.move(holder, Change.LEFT)
        namespace.gone += 1
        self._leave_out(uid, namespace, holder)

    def _leave_out(self, uid: str, namespace: HeldNamespace, holder: Holder) -> None:
        del namespace.holders[holder.member, holder.boot]
        namespace.counts[holder.standing] -= 1
        member = self._members[holder.member]
        member.uids[holder.boot].discard(uid)
        if not member.uids[holder.boot]:
            del member.uids[holder.boot], member.names[holder.boot]
        if not member.uids:
            del self._members[holder.member]
        self._dirty.add(holder.member)

    def _forget_erased(self) -> None:
        erased = [
            uid
            for uid, namespace in self._namespaces.items()
            if namespace.issued is None
            and namespace.since is not None
            and namespace.counts[Standing.CONFIRMED] == len(namespace.holders)
        ]
        for uid in erased:
            namespace = self._namespaces[uid]
            namespace.evidence.expect(namespace.holders)
            for holder in [*namespace.holders.values()]:
                self._leave_out(uid, namespace, holder)
            del self._namespaces[uid]
            self._final[uid] = namespace.evidence.proofs().get(WHOLE, Proof())
        while len(self._final) > MAX_FINAL_PROOFS:
            self._final.popitem(last=False)


def _all_of_it(receipt: Receipt) -> bool:
    return receipt.erasure == WHOLE and receipt.outcome is EraseOutcome.PROVEN
