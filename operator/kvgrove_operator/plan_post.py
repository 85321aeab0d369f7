"""What is sent to a member so that it has the plan in force: the whole, or what changed since one that it has applied.

All members of one role that are at the same plan get the same bytes, so that they are made once.
"""

from collections import OrderedDict

from kvgrove_operator.member_events import SendPlan
from kvgrove_operator.plan import Planned
from kvgrove_protocol.changes import KEPT_PLANS, plan_since
from kvgrove_protocol.control import TO_MEMBER, NodePlan, Revision


class PlanPost:
    def __init__(self) -> None:
        self._sent: dict[str, OrderedDict[Revision, NodePlan]] = {}
        self._encoded: dict[tuple[str, Revision | None], tuple[Revision, bytes]] = {}

    def letter(self, planned: Planned, effect: SendPlan) -> bytes:
        """Encoded for the link. ``planned``: the plan in force."""
        sent = self._sent.setdefault(effect.role, OrderedDict())
        plan = sent.get(effect.revision)
        if plan is None:
            plan = planned.for_member(effect.role, nodes=effect.nodes, revision=effect.revision)
            sent[effect.revision] = plan
            while len(sent) > KEPT_PLANS:
                sent.popitem(last=False)
        base = sent.get(effect.base) if effect.base != effect.revision else None
        key = effect.role, base.revision if base is not None else None
        known = self._encoded.get(key)
        if known is None or known[0] != effect.revision:
            self._encoded = {each: held for each, held in self._encoded.items() if held[0] == effect.revision}
            encoded = TO_MEMBER.encode(plan if base is None else plan_since(base, plan))
            known = self._encoded[key] = effect.revision, encoded
        return known[1]
