"""From a plan to what this node is asked to erase. Pure.

Orders are a level, like the plan: whole each time, and each is carried out once. Namespaces that the node may hold
bytes of and that the plan does not know are erased too (DESIGN section 7): nobody asks about them any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvgrove_daemon.cache.subjects import Subject
from kvgrove_protocol.control import ErasurePlan, NamespacePlan, NodePlan
from kvgrove_protocol.identity import Contributor
from kvgrove_protocol.receipts import seal_of

WHOLE = ""
"""In place of an erasure's id: all of the namespace."""

Which = tuple[str, str]
"""Namespace UID, and the erasure's id or `WHOLE`."""


@dataclass(frozen=True)
class EraseOrder:
    uid: str
    erasure: str
    subject: Subject
    secret: bytes = field(default=b"", repr=False)
    """What survivors are to be wrapped under."""
    former_secret: bytes = field(default=b"", repr=False)
    """What they may be wrapped under still; empty: nothing is to be wrapped anew."""
    asked: bool = True
    """Whether the plan wants a receipt."""

    @property
    def which(self) -> Which:
        return self.uid, self.erasure

    @property
    def seal(self) -> bytes:
        return seal_of(self.secret)


def erase_orders(plan: NodePlan, held: Iterable[str]) -> tuple[EraseOrder, ...]:
    """``held``: UIDs of which bytes may be left here, of earlier boots too."""
    parts = [_part(namespace, each) for namespace in plan.namespaces for each in namespace.erasures]
    asked = [EraseOrder(uid, WHOLE, Subject(namespace=uid)) for uid in sorted({*plan.erase_uids})]
    known = {namespace.uid for namespace in plan.namespaces} | {*plan.erase_uids}
    unknown = [EraseOrder(uid, WHOLE, Subject(namespace=uid), asked=False) for uid in sorted({*held} - known)]
    return (*parts, *asked, *unknown)


def _part(namespace: NamespacePlan, erasure: ErasurePlan) -> EraseOrder:
    who = Contributor(erasure.tenant, erasure.user) if erasure.tenant else None
    return EraseOrder(
        namespace.uid,
        erasure.id,
        Subject(namespace.uid, erasure.root or None, erasure.document or None, who),
        namespace.secret,
        namespace.former_secret,
    )
