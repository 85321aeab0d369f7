"""Which objects look different after something happened in the fleet: keys for the work queue. Pure but for memory.

It errs on the side of a look too many: a reconcile that finds nothing to do writes nothing.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kvgrove_operator.holdings import Invalidation
from kvgrove_operator.keys import MEMBERS, WORKLOADS, Key, Kind
from kvgrove_operator.members import MemberLedger
from kvgrove_operator.plan import Desired, Planned, models_of
from kvgrove_operator.plan_problems import model_object, namespace_object
from kvgrove_operator.plan_state import NamespaceState, PlanState
from kvgrove_protocol.control import ModelReport, NamespaceReport, NodeReport
from kvgrove_protocol.receipts import Receipt


class _Said(NamedTuple):
    """Of a member's report, what plans and statuses depend on."""

    term: int
    """Of the plan that it has applied. That it applied a later one of the term is told by its fences."""
    models: list[ModelReport]
    namespaces: list[NamespaceReport]
    receipts: list[Receipt]


class Notices:
    def __init__(self) -> None:
        self._said: dict[str, _Said] = {}
        self._invalidations: dict[str, Invalidation | None] = {}

    def member(self, member: str) -> Iterator[Key]:
        """It came or went: whatever is planned for it looks different too, and is `everything`."""
        self._said.pop(member, None)
        yield Key(Kind.NODE, member)
        yield MEMBERS
        yield WORKLOADS

    def report(self, member: str, report: NodeReport, state: PlanState, desired: Desired) -> list[Key]:
        """Empty where the report says nothing new: then there is nothing to plan either."""
        said = _Said(report.applied.term, report.models, report.namespaces, report.receipts)
        before = self._said.get(member)
        if said == before:
            return []
        self._said[member] = said
        keys = [Key(Kind.NODE, member)]
        if before is None or before.models != said.models or before.term != said.term:
            return [*keys, *everything(state, desired)]
        known = {each.uid: each for each in before.namespaces}
        changed = [each.uid for each in said.namespaces if known.get(each.uid) != each]
        if before.receipts != said.receipts:
            changed += [each.uid for each in said.receipts]
        held = _held(state)
        return keys + [Key(Kind.NAMESPACE, held[uid].name) for uid in dict.fromkeys(changed) if uid in held]

    def invalidations(self, ledger: MemberLedger, state: PlanState) -> Iterator[Key]:
        """Namespaces whose holders stand differently than at the last call."""
        held = _held(state)
        now = {uid: ledger.invalidation(uid) for uid in held}
        before, self._invalidations = self._invalidations, now
        for uid, found in now.items():
            if before.get(uid) != found:
                yield Key(Kind.NAMESPACE, held[uid].name)


def plan(before: Planned | None, planned: Planned, desired: Desired) -> Iterator[Key]:
    """A plan follows ``before``: the objects whose state, plan or problems it changes."""
    if before is None or planned.state.models != before.state.models or planned.models != before.models:
        yield WORKLOADS
        yield from everything(planned.state, desired)
        return
    objects = {problem.object for problem in {*planned.problems} ^ {*before.problems}}
    held, earlier = _held(planned.state), _held(before.state)
    plans, earlier_plans = ({each.uid: each for each in one.namespaces} for one in (planned, before))
    used: set[str] = set()
    for uid in sorted(held.keys() | earlier.keys()):
        now, then = held.get(uid), earlier.get(uid)
        if now != then or plans.get(uid) != earlier_plans.get(uid):
            yield Key(Kind.NAMESPACE, (now or earlier[uid]).name)
            used |= (models_of(now) if now else set()) ^ (models_of(then) if then else set())
    for each in desired.namespaces:
        if namespace_object(each.api_name) in objects:
            yield Key(Kind.NAMESPACE, each.api_name)
    for model in desired.models:
        if model.resource.name in used or model_object(model.resource.name) in objects:
            yield Key(Kind.MODEL, model.resource.name)


def everything(state: PlanState, desired: Desired) -> Iterator[Key]:
    """All objects with a status for people."""
    for held in _held(state).values():
        yield Key(Kind.NAMESPACE, held.name)
    for name in {*state.models, *(model.resource.name for model in desired.models)}:
        yield Key(Kind.MODEL, name)


def _held(state: PlanState) -> Mapping[str, NamespaceState]:
    return state.removed | state.namespaces
