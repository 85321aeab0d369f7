"""What a plan asks this gateway to erase, and the receipts for it (I8).

A gateway has no pseudonyms, so it cannot tell whose an entry of a cache is: it gives up the whole cache, which costs
work and never an answer. Texts that prompts are assembled from are the plan's own and go when the plan drops them.
Each erasure is carried out once; its receipt is repeated for as long as the plan asks. On the event loop only.
"""

from collections.abc import Callable, Mapping

from kvgrove_link.member_key import MemberKey
from kvgrove_protocol.control import NodePlan
from kvgrove_protocol.receipts import EraseOutcome, Place, Receipt

Clear = Callable[[], int]
"""Empties a cache, what is being added to it now included; answers how many entries there were."""

WHOLE = ""
"""In place of an erasure's id: the namespace is gone."""


class Erasures:
    """Of one boot."""

    def __init__(self, member: str, boot: str, key: MemberKey, caches: Mapping[Place, Clear]) -> None:
        self._member = member
        self._boot = boot
        self._key = key
        self._caches = caches
        self._receipts: dict[tuple[str, str], Receipt] = {}

    def carry_out(self, plan: NodePlan) -> list[tuple[str, str]]:
        """Erase what ``plan`` asks for and was not erased yet; forget what it no longer asks for.

        Answers what was erased now, as (namespace UID, id of the erasure or `WHOLE`).
        """
        asked = {(uid, WHOLE) for uid in plan.erase_uids}
        asked |= {(namespace.uid, each.id) for namespace in plan.namespaces for each in namespace.erasures}
        self._receipts = {which: receipt for which, receipt in self._receipts.items() if which in asked}
        new = sorted(asked - self._receipts.keys())
        if not new:
            return []
        erased = {place: count for place, clear in self._caches.items() if (count := clear())}
        for uid, erasure in new:
            receipt = Receipt(
                uid=uid,
                erasure=erasure,
                member=self._member,
                boot=self._boot,
                outcome=EraseOutcome.PROVEN,
                places=erased,
            )
            self._receipts[uid, erasure] = self._key.sign(receipt)
        return new

    def receipts(self) -> list[Receipt]:
        """Of all that is asked for now."""
        return list(self._receipts.values())
