"""Who holds leases on what, until when as the planner counts, and how each stands to the newest fence.

The part of the ledger that knows namespaces and boots, not connections. Pure; rules 1 to 3 of `members` are kept here.
Every change of what must be durable marks the member; `flush` says what to persist.

A fleet of a hundred members with a thousand namespaces has 100,000 holders, so that nothing that happens often may walk
them all: they are found by member too, counted by standing as they change, renewed together where nothing changed, and
looked at for time alone only where some lease of the member may have run out.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from kvgrove_operator.evidence import WHOLE
from kvgrove_operator.holdings import HeldNamespace, Holder, HoldingMember, Invalidation, Renewal, ending
from kvgrove_operator.member_events import Issued, MemberRecord, Persist
from kvgrove_operator.plan_state import Proof
from kvgrove_operator.standing import Change, Standing
from kvgrove_operator.verification import genuine
from kvgrove_protocol.control import Hello, NodeReport, Revision
from kvgrove_protocol.errors import Malformed
from kvgrove_protocol.fence import Fence
from kvgrove_protocol.receipts import EraseOutcome, Receipt

FenceOf = Callable[[str], Fence | None]

MAX_FINAL_PROOFS = 1_024
"""Of namespaces that are erased; the oldest goes first."""


class Holders:
    """All holders of all namespaces. ``records``: from earlier planners, each counted as valid from ``now`` on."""

    def __init__(self, records: Iterable[MemberRecord], now: float) -> None:
        self._namespaces: dict[str, HeldNamespace] = {}
        self._members: dict[str, HoldingMember] = {}
        self._heard: dict[str, Renewal] = {}
        self._erasing: set[str] = set()
        self._dirty: set[str] = set()
        self._final: OrderedDict[str, Proof] = OrderedDict()
        for record in records:
            ends = ending(now, record.seconds)
            holder = Holder(record.member, record.boot, record.role, record.seconds, ends, Standing.PENDING)
            self._enter(record.uid, self._namespaces.setdefault(record.uid, HeldNamespace()), holder)

    # -- changes ---------------------------------------------------------------------------------------------------

    def issue(self, planned: Mapping[str, Issued], revision: Revision, now: float) -> None:
        """Take ``planned`` as in force. Raises Malformed where a fence falls: that planner has lost its memory."""
        for uid, issued in planned.items():
            before = self._namespaces.get(uid)
            if before is not None and before.issued is not None and not issued.fence.covers(before.issued.fence):
                raise Malformed(f"namespaces[{uid}].fence", "is older than the one issued before: fences never fall")
        for uid in [*planned, *(uid for uid in self._namespaces if uid not in planned)]:
            wanted = planned.get(uid)
            namespace = self._namespaces.setdefault(uid, HeldNamespace())
            if wanted == namespace.issued and namespace.since is not None:
                continue
            for renewal in self._heard.values():
                renewal.open.add(uid)
            if wanted is None or namespace.issued is None or wanted.fence != namespace.issued.fence:
                self._renew(uid, namespace, revision, now)
            namespace.issued = wanted
            erasures, seal = ([WHOLE], b"") if wanted is None else (wanted.erasures, wanted.seal)
            namespace.evidence.issue(erasures, seal, namespace.holders)
            (self._erasing.add if wanted is None else self._erasing.discard)(uid)
        self.settle(now)

    def hear(self, hello: Hello) -> None:
        """A connection of this boot has begun: nothing is confirmed on it yet."""
        self._heard[hello.member] = Renewal((hello.member, hello.boot), hello.role)

    def hang_up(self, member: str) -> None:
        """The connection of ``member``, if any, is over; what was granted on it runs on."""
        self._heard.pop(member, None)

    def answer(
        self, hello: Hello, report: NodeReport, changed: Iterable[str] | None, fence_of: FenceOf, now: float
    ) -> dict[str, float]:
        """Note what ``report`` confirms; UID -> seconds of the leases that are granted and recorded for it: on the
        planned namespaces whose newest fence the member enforces.

        ``changed``: the namespaces of which it says something else than the report before on the same connection;
        None: it is the first. ``fence_of``: the fence it enforces of a namespace. What is to be erased is confirmed by
        no longer being reported and by a receipt. Receipts that the member of ``hello`` has not signed prove nothing,
        and are passed over.
        """
        renewal = self._heard[hello.member]
        if changed is None or report.applied < renewal.applied:
            renewal.open.update(self._namespaces)
        else:
            renewal.open.update(changed)
        renewal.applied = report.applied
        receipts: dict[str, list[Receipt]] = {}
        for receipt in report.receipts:
            if receipt.uid in self._namespaces and genuine(receipt, hello):
                receipts.setdefault(receipt.uid, []).append(receipt)
        granted: dict[str, float] = {}
        for uid in renewal.open | receipts.keys():
            namespace = self._namespaces.get(uid)
            if namespace is None:
                renewal.open.discard(uid)
                continue
            holder = namespace.holders.get(renewal.boot)
            if holder is not None:
                holder.stop(uid)
            if of_it := receipts.get(uid, ()):
                namespace.evidence.take(renewal.boot, renewal.role, of_it, hello.public_key)
            if not _confirms(namespace, renewal.applied, fence_of(uid), of_it):
                continue
            if holder is not None and holder.standing is not Standing.CONFIRMED:
                namespace.move(holder, Change.ACKED)
            if namespace.issued is not None:
                granted[uid] = self._grant(uid, namespace, namespace.issued.lease_seconds, renewal, now)
        renewal.at = now
        granted |= renewal.seconds
        if granted:  # it may have held no lease for a while
            known = self._members[hello.member]
            known.settled_until = min(known.settled_until, now + min(granted.values()))
        self._forget_erased()
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

    def _grant(self, uid: str, namespace: HeldNamespace, seconds: float, renewal: Renewal, now: float) -> float:
        """Record a lease of ``seconds`` from ``now`` on."""
        ends, holder = ending(now, seconds), namespace.holders.get(renewal.boot)
        if holder is None:
            holder = Holder(*renewal.boot, renewal.role, seconds, ends, Standing.CONFIRMED)
            self._enter(uid, namespace, holder)
            self._dirty.add(holder.member)
        elif seconds > holder.seconds or (seconds < holder.seconds and ends >= holder.ends):
            holder.seconds = seconds
            self._dirty.add(holder.member)
        holder.ends = max(holder.ends, ends)
        if holder.seconds == seconds:
            holder.go_on(uid, renewal)
        return seconds

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
        holder.stop(uid)
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
        erased = [uid for uid in self._erasing if self._namespaces[uid].all_confirmed]
        for uid in erased:
            namespace = self._namespaces[uid]
            namespace.evidence.expect(namespace.holders)
            for holder in [*namespace.holders.values()]:
                self._leave_out(uid, namespace, holder)
            del self._namespaces[uid]
            self._erasing.discard(uid)
            self._final[uid] = namespace.evidence.proofs().get(WHOLE, Proof())
        while len(self._final) > MAX_FINAL_PROOFS:
            self._final.popitem(last=False)


def _confirms(namespace: HeldNamespace, applied: Revision, fence: Fence | None, receipts: Sequence[Receipt]) -> bool:
    """Whether a member that has ``applied`` this, and enforces ``fence``, has confirmed what is in force.

    ``receipts``: genuine ones of the namespace.
    """
    if namespace.since is None or applied < namespace.since:
        return False
    if namespace.issued is not None:
        return fence is not None and fence.covers(namespace.issued.fence)
    return fence is None and any(_all_of_it(receipt) for receipt in receipts)


def _all_of_it(receipt: Receipt) -> bool:
    return receipt.erasure == WHOLE and receipt.outcome is EraseOutcome.PROVEN
