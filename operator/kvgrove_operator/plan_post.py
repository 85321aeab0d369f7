"""What is sent to a member so that it has the plan in force: the whole, or what changed since one that it has applied.

All members of one role and placement that are at the same plan get the same bytes, so that they are made once.
"""

from collections import OrderedDict

from kvgrove_operator.member_events import SendPlan
from kvgrove_operator.plan import Planned
from kvgrove_protocol.changes import KEPT_PLANS, plan_since
from kvgrove_protocol.control import TO_MEMBER, NodePlan, Revision

Kind = tuple[str, str]
"""Role and placement."""
MAX_KINDS = 64
"""Kept at a time; members of others are sent whole plans."""


class PlanPost:
    def __init__(self) -> None:
        self._sent: dict[Kind, OrderedDict[Revision, NodePlan]] = {}
        self._encoded: dict[tuple[Kind, Revision | None], tuple[Revision, bytes]] = {}

    def letter(self, planned: Planned, effect: SendPlan) -> bytes:
        """Encoded for the link. ``planned``: the plan in force."""
        kind = effect.role, effect.placement
        sent = self._sent.setdefault(kind, OrderedDict())
        while len(self._sent) > MAX_KINDS:  # placements are named by daemons, and one that has gone names none
            del self._sent[next(each for each in self._sent if each != kind)]
        plan = sent.get(effect.revision)
        if plan is None:
            plan = planned.for_member(
                effect.role, nodes=effect.nodes, revision=effect.revision, placement=effect.placement
            )
            sent[effect.revision] = plan
            while len(sent) > KEPT_PLANS:
                sent.popitem(last=False)
        base = sent.get(effect.base) if effect.base != effect.revision else None
        key = kind, base.revision if base is not None else None
        known = self._encoded.get(key)
        if known is None or known[0] != effect.revision:
            self._encoded = {each: held for each, held in self._encoded.items() if held[0] == effect.revision}
            encoded = TO_MEMBER.encode(plan if base is None else plan_since(base, plan))
            known = self._encoded[key] = effect.revision, encoded
        return known[1]
